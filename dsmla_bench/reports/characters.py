"""Text for a stream: what its encoding lacks gets a stand-in, and what would steer a terminal is shown, not obeyed."""

from __future__ import annotations

import re

_ASCII = str.maketrans({"µ": "u", "–": "-", "×": "x", "†": "+", "·": "-", "…": "..."})
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that turn the direction of text."""


def printable(text: str, encoding: str | None) -> str:
    """``text`` as a stream of this encoding can print it: µs as us, other characters that it lacks as escapes."""
    text, encoding = harmless(text), encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


def harmless(text: str) -> str:
    """``text`` with control characters as escapes: names in a run's files must not steer a terminal."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)
