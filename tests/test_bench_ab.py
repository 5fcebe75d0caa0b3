"""One side of ``ab`` by itself: what it says beside its answers, how it ends; and in which order two measure."""

import signal
import sys

import pytest

from dsmla_bench.bench.ab import ANSWER, Side, SideError, alternate

READY = f'import sys, time; print({ANSWER!r} + \'{{"run": "/a/run"}}\', flush=True); '


@pytest.fixture
def side():
    """Starts Python with this code as the head."""
    started = []

    def start(code):
        started.append(Side("head", [sys.executable, "-c", code]))
        return started[-1]

    yield start
    for one in started:
        one._process.kill()
        one._process.wait()
        one._process.stdout.close()


def test_what_a_side_prints_beside_its_answers_is_passed_on(side, capfd):
    talking = side("print('warming up', flush=True); " + READY)
    assert talking.wait_until_ready() == "/a/run"
    talking.finish()
    assert capfd.readouterr().err == "warming up\n"


def test_a_side_that_went_between_two_turns_is_told_by_its_name_and_code(side):
    gone = side(READY + "sys.exit(9)")
    gone.wait_until_ready()
    gone._process.wait(timeout=20)
    with pytest.raises(SideError, match=r"--head ended with exit code 9 before it was done: \[") as ended:
        gone.measure(0)
    assert ended.value.code == 9
    gone.interrupt()  # which nobody is there to hear
    gone.finish()


@pytest.mark.parametrize(("code", "ended_by"), [(READY, signal.SIGINT), ("import time; ", signal.SIGTERM)])
def test_an_interrupted_side_may_finish_its_run_and_one_without_a_run_just_ends(side, code, ended_by):
    """SIGINT lets Python clean up; a side that is still importing would answer it with a traceback."""
    stopped = side(code + "time.sleep(60)")
    if ended_by is signal.SIGINT:
        stopped.wait_until_ready()
    stopped.interrupt()
    assert stopped._process.wait(timeout=20) == -ended_by


class Noting:
    """A side that notes its turns in a list of both."""

    def __init__(self, name, turns):
        self.name, self.turns = name, turns

    def measure(self, process, rows):
        self.turns.append((process, self.name, rows))


def test_two_sides_take_turns_so_that_drift_falls_on_both():
    turns = []
    base, head = Noting("base", turns), Noting("head", turns)
    announced = list(alternate(base, head, range(4, 8), ["a row"]))
    order = [(4, "base"), (4, "head"), (5, "head"), (5, "base"), (6, "base"), (6, "head"), (7, "head"), (7, "base")]
    assert announced == order
    assert turns == [(*turn, ["a row"]) for turn in order]
