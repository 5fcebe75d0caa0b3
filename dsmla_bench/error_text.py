"""What an exception says, in one line: for the sentence of another error, the reason of a row, an answer over a pipe.

A message may have many lines (a compiler's output, a traceback), end with a full stop, or be empty. What is quoted in
the middle of a sentence is its first line without the full stop, and the name of the exception's type where it says
nothing.
"""

from __future__ import annotations

LONGEST = 300
"""Characters of a message that are quoted."""


def first_line(error: BaseException) -> str:
    """The first line of the message; the name of the type, such as ``OSError``, where there is no message."""
    return _quoted(error) or type(error).__name__


def typed_line(error: BaseException) -> str:
    """The name of the type and the first line: ``OSError: no space left``; the name alone where there is no message."""
    name, line = type(error).__name__, _quoted(error)
    return f"{name}: {line}" if line else name


def _quoted(error: BaseException) -> str:
    line = next(iter(str(error).strip().splitlines()), "")
    return line[:LONGEST].rstrip(" .")
