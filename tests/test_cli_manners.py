"""How the command line behaves: help, mistakes, quiet, terminals of any width, colour, completion, repeating a row."""

import re
import shlex

import pytest
import typer
from builders import case, compiled_sweep, h200_sweep, refused, run_of, timed

from dsmla_bench.bench.cases import Axes, expand
from dsmla_bench.cli import app, kernels
from dsmla_bench.cli.common import say
from dsmla_bench.cli.progress import Lines, counted
from dsmla_bench.cli.settings import invocation
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import default_formats
from dsmla_bench.kernels.operations import all_operations
from dsmla_bench.reports.repeating import repeat_command
from dsmla_bench.results import Run
from dsmla_bench.summary import summarise

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d")
ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@pytest.fixture
def terminal(cli, monkeypatch):
    """Runs the command where standard output is a terminal of that width; as ``cli`` does."""

    def run(width, *arguments, **environment):
        for name, value in {"COLUMNS": str(width), "TERM": "xterm-256color", **environment}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        return cli(*arguments)

    return run


@pytest.fixture(autouse=True)
def _nothing_drawn(monkeypatch):
    """What ``report`` prints is looked at here, not its files."""
    monkeypatch.setattr("dsmla_bench.reports.report.write_report", lambda *_: [])


def helps(group=None, path=()):
    """Path → what the help says, of every command and group."""
    group = group or typer.main.get_command(app)
    found = {path: group.help}
    for name, command in getattr(group, "commands", {}).items():
        found |= helps(command, (*path, name))
    return found


# Help


@pytest.mark.parametrize("path", list(helps()), ids=lambda path: ".".join(path) or "root")
def test_every_help_has_two_examples_that_can_be_run(cli, path):
    _, examples = helps()[path].split("\b\nExamples:\n")
    examples = [shlex.split(line) for line in examples.splitlines()]
    assert len(examples) >= 2
    for program, *arguments in examples:
        assert program == "dsmla-bench"
        assert tuple(arguments[: len(path)]) == path
        assert cli("--dump-config", *arguments)[0] == 0


def test_the_help_of_every_command_names_what_all_have(cli):
    for path in helps():
        code, out, _ = cli(*path, "--help")
        assert code == 0
        assert all(option in out for option in ("--config", "--dump-config", "--quiet", "--debug"))


@pytest.mark.parametrize("path", [[], ["history"]], ids=["root", "history"])
def test_a_group_without_a_command_prints_its_help_and_nothing_else(cli, path):
    code, out, err = cli(*path)
    assert (code, err) == (2, "")
    assert "Usage: dsmla-bench" in out


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["kernel"], "no such command 'kernel'; did you mean 'kernels'; see dsmla-bench --help"),
        (["kernels", "--token", "1"], "no such option: --token (Possible options: --json, --tokens, --topk); see "),
        (["kernels", "--tokens"], "option '--tokens' requires an argument"),
        (["kernels", "x"], "got unexpected extra argument(s) (x); see dsmla-bench kernels --help"),
        (
            ["kernels", "--processes", "0"],
            "invalid value for '--processes': Input should be greater than or equal to 1",
        ),
        (["kernels", "--processes", "x"], "invalid value for '--processes': Input should be a valid integer"),
        (["export", "runs/A"], "export needs --to, which says for whom: one of bencher, csv, "),
        (["compare", "a"], "missing argument 'head'; see dsmla-bench compare --help"),
        (["history", "add", "a"], "missing option '--store'; see dsmla-bench history add --help"),
        (["formats", "--arch", "sm90", "--kv-cache-dtype", "fp9"], "--kv-cache-dtype must be one of auto, bfloat16, "),
        (["formats", "--arch", "sm90", "--backend", "FLASHMLA"], "--backend must be one of FLASH_ATTN_MLA_SPARSE, "),
        (["formats", "--arch", "all", "--kv-cache-dtype", "fp9"], "--kv-cache-dtype must be one of auto, bfloat16, "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_sentence_and_exit_code_2(cli, arguments, sentence):
    code, out, err = cli(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"dsmla-bench: {sentence}")
    assert err.count("\n") == 1


def test_a_value_of_the_wrong_type_is_said_with_what_was_found(cli):
    assert ", found '0'; see dsmla-bench kernels --help" in cli("kernels", "--processes", "0")[2]


def test_a_spelling_that_vllm_has_and_no_backend_takes_is_an_answer(cli):
    code, out, _ = cli("formats", "--arch", "sm90", "--kv-cache-dtype", "fp8_e5m2")
    assert code == 0
    assert "is refused: no sparse MLA backend of vLLM 0.33 accepts fp8_e5m2; it works with" in out


@pytest.mark.parametrize("place", ["behind", "before", "environment"])
def test_debug_shows_where_a_mistake_was_found(cli, monkeypatch, place):
    before = ["--debug"] * (place == "before")
    behind = ["--debug"] * (place == "behind")
    if place == "environment":
        monkeypatch.setenv("DSMLA_BENCH_DEBUG", "1")
    code, _, err = cli(*before, "report", "nowhere", *behind)
    *trace, last = err.splitlines()
    assert (code, trace[0]) == (2, "Traceback (most recent call last):")
    assert last.startswith("dsmla-bench: nowhere: not a run ")


def test_a_fault_of_our_own_is_one_sentence_too_and_no_finding(cli, monkeypatch):
    for fault, said in ((KeyError("rows"), "KeyError: 'rows'"), (KeyError(), "KeyError: no message")):

        def broken(_, fault=fault):
            raise fault

        monkeypatch.setattr(Run, "load", broken)
        assert cli("report", "run") == (2, "", f"dsmla-bench: stopped by {said}; see where with --debug\n")


# Quiet


def test_quiet_leaves_results_warnings_and_mistakes(cli, tmp_path):
    run = run_of(tmp_path / "runs", [timed(case(), 5.0)])
    with open(run.path / "rows.jsonl", "a") as file:
        file.write("{")
    code, out, err = cli("report", run.path, "--quiet")
    assert (code, "write · fp8_ds_mla" in out) == (0, True)
    assert err == f"dsmla-bench: {run.path}/rows.jsonl:2: the last line is cut short and was set aside\n"
    assert cli("--quiet", "report", "nowhere")[2].startswith("dsmla-bench: nowhere: ")


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_silences_remarks_and_progress(capsys, monkeypatch, terminal):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setattr("dsmla_bench.cli.progress.INTERVAL_S", 0)
    monkeypatch.setenv("TERM", "xterm")
    with invocation() as settings:
        settings.quiet = True
        say("quiet")
        assert list(counted("ab", 2)) == ["a", "b"]
        assert capsys.readouterr().err == ""
        settings.quiet = False
        say("loud")
        assert list(counted("ab", 2)) == ["a", "b"]
        err = ESCAPE.sub("", capsys.readouterr().err)
    assert err.startswith("dsmla-bench: loud\n")
    assert ("2/2" if terminal else "dsmla-bench: 2 of 2 (100%), about 0.0 minutes left: b\n") in err


def test_a_log_gets_a_line_of_progress_every_30_seconds(capsys):
    seconds = iter(range(0, 1000, 20))
    tell = Lines(total=400, done=100, clock=lambda: next(seconds))
    for number in range(1, 7):
        tell(f"case {number}")
    assert capsys.readouterr().err.splitlines() == [
        "dsmla-bench: 102 of 400 (26%), about 99.3 minutes left: case 2",
        "dsmla-bench: 104 of 400 (26%), about 98.7 minutes left: case 4",
        "dsmla-bench: 106 of 400 (26%), about 98.0 minutes left: case 6",
    ]


# Terminals


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize(
    "command",
    [
        "formats",
        "formats --format nvfp4_ds_mla",
        "formats --format b12x_nvfp4_432",
        "formats --arch all",
        "formats --arch sm80 --kv-cache-dtype nvfp4_ds_mla",
        "formats --model deepseek-v3.2 --memory 141GB --weights 85GB",
        "list",
        "env",
        "export",
        "report {timed}",
        "report {compiled}",
        "compare {timed} {timed} --all",
        "accuracy reference",
        "kernels --help",
    ],
)
def test_what_is_printed_fits_the_terminal(terminal, tmp_path, width, command):
    runs = {"timed": h200_sweep, "compiled": compiled_sweep}
    paths = {name: run_of(tmp_path, made()).path for name, made in runs.items() if f"{{{name}}}" in command}
    code, out, err = terminal(width, *command.format(**paths).split())
    assert (code, err) == (0, "")
    assert max(len(ESCAPE.sub("", line)) for line in out.splitlines()) <= width


def test_a_table_with_too_little_room_loses_no_number(terminal):
    wide, narrow = (set(re.findall(r"[\d.]+", terminal(width, "formats")[1])) for width in (200, 80))
    assert wide == narrow
    assert {"1152", "73728", "3.273", "448"} < wide


def test_a_command_that_is_to_be_copied_is_never_broken(terminal, tmp_path):
    run = run_of(tmp_path, [refused(case(), "runtime_error", "boom")])
    lines = terminal(80, "report", run.path)[1].splitlines()
    (line,) = [line for line in lines if line.startswith("repeat: ")]
    assert len(line) > 80


def test_colour_is_for_terminals_and_for_those_who_want_it(terminal, cli, tmp_path):
    rows = [timed(case(), 5.0), refused(case(tokens=1), "runtime_error", "boom")]
    command = ("report", run_of(tmp_path, rows).path)
    assert COLOUR.search(terminal(80, *command)[1])
    assert not COLOUR.search(terminal(80, *command, NO_COLOR="1")[1])
    assert "\x1b" not in terminal(80, *command, TERM="dumb")[1]


def test_what_is_piped_has_no_colour_and_no_limit(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    out = cli("formats")[1]
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) > 150


# Completion


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("dsmla-bench ker", {"kernels"}),
        ("dsmla-bench history ", {"add", "list", "check"}),
        ("dsmla-bench kernels --page", {"--page-orders"}),
        ("dsmla-bench kernels --dump", {"--dump-config"}),
    ],
)
def test_the_shell_completes_commands_and_options(cli, monkeypatch, words, completed):
    monkeypatch.setenv("_DSMLA_BENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    code, out, err = cli()
    assert (code, err, set(out.split())) == (0, "", completed)


# Repeating a row


def test_every_case_of_a_sweep_has_a_command_that_measures_it_alone(monkeypatch):
    """The command is parsed by ``kernels`` itself, whose plan must then hold this one case."""
    planned = []
    monkeypatch.setattr(kernels, "show_plan", lambda plan, **_: planned.append(plan))
    operations = tuple(operation.name for operation in all_operations())
    formats = tuple(fmt.key for fmt in default_formats())
    axes = Axes(operations, formats, ("triton", "vllm"), requests=3, l2_states=("hot", "cold"), block_sizes=(16,))
    manifest = {"config": {"processes": 3, "seed": 7, "methods": ["graph"]}}
    cases = expand(axes, Architecture.parse("sm90"))
    command = typer.main.get_command(app)
    for one in cases[:: len(cases) // 40]:
        row = summarise([refused(one, "runtime_error", "boom")])
        program, *arguments = shlex.split(repeat_command(row, manifest))
        command.main([*arguments, "--dry-run"], prog_name=program, standalone_mode=False)
        (found,) = expand(planned[-1].axes, planned[-1].architectures[0])
        assert found == one
        assert (planned[-1].processes, planned[-1].seed, planned[-1].methods) == (3, 7, ("graph",))


def test_a_row_that_failed_is_printed_with_its_command_and_others_are_not(cli, tmp_path):
    rows = [timed(case(tokens=1), 5.0), refused(case(tokens=2), "oom", "80 GiB"), refused(case(), "skipped", "no")]
    config = {"processes": 5, "seed": 0, "methods": ["activity", "graph"]}
    options = {"vllm-library": {"value": "/opt/vllm ops.so", "source": "flag"}}
    _, out, _ = cli("report", run_of(tmp_path, rows, config=config, options=options).path)
    assert [line for line in out.splitlines() if line.startswith("repeat: ")] == [
        "repeat: dsmla-bench kernels --formats fp8_ds_mla:pow2 --arch sm90 --ops write --providers triton --tokens 2 "
        "--block-sizes 64 --page-orders ordered --requests 1 --l2 cold --methods activity,graph --processes 5 --seed 0"
    ]
    row = summarise([refused(case(provider="vllm"), "oom", "80 GiB")])
    assert repeat_command(row, {"config": config, "options": options}).endswith(" --vllm-library '/opt/vllm ops.so'")


def test_a_manifest_that_holds_something_else_gives_a_shorter_command():
    row = summarise([refused(case(provider="vllm"), "oom", "80 GiB")])
    given = {"config": {"processes": 1, "methods": 5}, "options": {"vllm-library": "x"}}
    assert repeat_command(row, given).endswith(" --l2 cold --processes 1 --seed 0")


def test_a_kernel_that_did_not_compile_is_repeated_by_compile(tmp_path):
    row = summarise([refused(case(), "compile_error", "ptxas said no")])
    assert repeat_command(row, {"config": {"operations": ["write"]}}) == (
        "dsmla-bench compile --formats fp8_ds_mla:pow2 --arch sm90 --ops write --providers triton --tokens 128 "
        "--block-sizes 64"
    )


def test_of_many_rows_that_failed_some_commands_are_printed_and_json_has_all(cli, tmp_path):
    run = run_of(tmp_path, [refused(case(tokens=tokens), "oom", "80 GiB") for tokens in range(1, 31)])
    _, out, _ = cli("report", run.path)
    lines = [line for line in out.splitlines() if line.startswith("repeat: ")]
    assert (len(lines), lines[-1]) == (11, "repeat: 20 more rows failed; --json has the commands of all")
