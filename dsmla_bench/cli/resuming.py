"""Why a sweep cannot go on with a run, in the words of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsmla_bench.results import ResumeError

OPTIONS = {"architectures": "--arch", "variant": "--variants", "l2_states": "--l2"}
"""The options of ``kernels`` that a run's configuration calls otherwise."""


def differing(error: ResumeError) -> str:
    """What the run was measured with, what it is now to go on with, and what to do."""
    was, now = error.was, error.now
    if error.what == "identity":
        was, now, advice = (*_differing_entries(error.name, was, now), "go on as it began, or start a new run")
    else:
        was, now = (_as_options(error.name, value) for value in (was, now))
        advice = "give the options that it began with, or start a new run"
    return f"{error.path}: was measured {was} and cannot go on {now}; {advice}"


def _as_options(name: str, value: Any) -> str:
    """ "with --tokens 1,8", "without --tokens"; of libraries the option of each provider."""
    if name == "libraries":
        given = [f"--{provider.replace('_', '-')}-library {file}" for provider, file in (value or {}).items()]
        return f"with {' '.join(given)}" if given else "without a library"
    option = OPTIONS.get(name, f"--{name.replace('_', '-')}")
    return f"without {option}" if value is None else f"with {option} {_words(value)}"


def _differing_entries(name: str, was: Any, now: Any) -> tuple[str, str]:
    """Both values, of tables the entries that differ alone: "with packages torch 2.12.0", "without git"."""
    if isinstance(was, dict) and isinstance(now, dict):
        keys = [key for key in sorted(was.keys() | now.keys()) if was.get(key) != now.get(key)]
        was, now = ({key: value.get(key) for key in keys} for value in (was, now))
    label = name.replace("_", " ")
    first, second = (f"without {label}" if value is None else f"with {label} {_words(value)}" for value in (was, now))
    return first, second


def _words(value: Any) -> str:
    """Plain data without brackets: lists with commas between, of tables the name before each value."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(member)}" for name, member in value.items())
    if isinstance(value, list):
        return ",".join(map(_words, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return str(value)
