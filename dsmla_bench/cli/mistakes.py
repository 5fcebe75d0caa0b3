"""What stopped a command, as one sentence: what was found, what was expected, what to do."""

from __future__ import annotations

import errno
from typing import Any

from typer.exceptions import TyperException

from dsmla_bench.cli.settings import Settings, resolved, source_of
from dsmla_bench.error_text import first_line

MOST_CHARACTERS = 2000
ADVICE = {
    errno.ENOSPC: "make room there, or name another place",
    errno.EDQUOT: "make room there, or name another place",
    errno.EFBIG: "name a place that takes larger files",
    errno.EACCES: "name a place that you may use, or change its permissions",
    errno.EPERM: "name a place that you may use, or change its permissions",
    errno.EROFS: "it is read-only; name another place",
    errno.ENOENT: "name one that exists",
}
"""What to do about an error of the operating system, by number."""
GPU_ADVICE = "see with nvidia-smi whether it is there and free, or hide it with CUDA_VISIBLE_DEVICES="


def is_help(error: Exception) -> bool:
    """Whether an error is a group's help: the answer to its name alone."""
    context: Any = getattr(error, "ctx", None)
    return isinstance(error, TyperException) and context is not None and error.message == context.get_help()


def sentence(error: Exception, settings: Settings) -> str:
    """One line on what went wrong, what was expected and what to do."""
    if isinstance(error, TyperException):
        text = _of_usage(error, settings)
    elif isinstance(error, OSError) and error.strerror:
        text = _of_system(error)
    elif isinstance(error, (ValueError, OSError)):
        text = f"{error}{_from_file(settings)}"
    elif isinstance(error, RuntimeError) and str(error).startswith("CUDA "):
        text = f"the GPU cannot be used ({first_line(error)}); {GPU_ADVICE}"
    elif isinstance(error, ImportError):
        text = f"a package is missing or broken ({error}); install it again, or see more with --debug"
    else:
        text = f"stopped by {type(error).__name__}: {str(error) or 'no message'}; see where with --debug"
    return " ".join(text.split())[:MOST_CHARACTERS]


def _of_usage(error: TyperException, settings: Settings) -> str:
    """What the parser found wrong, where the value came from unless from a flag, and whose help to read."""
    context: Any = getattr(error, "ctx", None)
    option = getattr(error, "param", None)
    text = "; ".join(part[:1].lower() + part[1:] for part in error.format_message().rstrip(".?").split(". "))
    if context is None:
        return text
    return f"{text}{_found(error)}{_place(context, option, settings)}; see {context.command_path} --help"


def _found(error: TyperException) -> str:
    """The value that has the wrong type, as the validation that the parser's error comes from has it."""
    cause: Any = error.__cause__
    return f", found {cause.errors()[0]['input']!r}" if hasattr(cause, "errors") else ""


def _place(context: Any, option: Any, settings: Settings) -> str:
    """Where the value of an option came from, in brackets; "" for a flag and for no option."""
    source = None if option is None else source_of(context, option)
    if source == "file":
        return f" (in {settings.file})"
    if source == "environment":
        return f" (in {option.envvar})"
    return ""


def _of_system(error: OSError) -> str:
    """The operating system's word on a file, and what to do about it."""
    place = f"{error.filename}: " if error.filename is not None else "the output cannot be written: "
    advice = ADVICE.get(error.errno or 0)
    return f"{place}{error.strerror}" + (f"; {advice}" if advice else "")


def _from_file(settings: Settings) -> str:
    """Which options the file set, because a value that a command refuses may be one of those."""
    if settings.context is None:
        return ""
    keys = [option.key for option in resolved(settings.context) if option.source == "file"]
    return f" ({settings.file} sets {', '.join(keys)})" if keys else ""
