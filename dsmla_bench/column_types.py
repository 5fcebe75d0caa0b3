"""What a column of a table holds: the types of a dataclass's fields, and whether a value that was read fits one.

Columns hold int, float, bool or str, and None for what is undefined. Files are data from anywhere: a value is of a
column's type only if it can be written to a table as such.
"""

from __future__ import annotations

import functools
from typing import get_args, get_type_hints


@functools.cache
def field_types(row_type: type) -> dict[str, type]:
    """Field → its Python type (int, float, bool or str), None left out, of a dataclass."""
    return {name: (get_args(hint) or (hint,))[0] for name, hint in get_type_hints(row_type).items()}


def is_of(value: object, kind: type) -> bool:
    """Whether a value from JSON fits a column: whole numbers are floats too, and none may overflow 64 bits.

    ``object`` is the type of columns of which nothing is known.
    """
    if kind is object:
        return True
    if isinstance(value, str):
        return kind is str and _is_unicode(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return type(value) is kind
    return abs(value) < 2**63 if isinstance(value, int) and kind in (int, float) else kind is float


def _is_unicode(text: str) -> bool:
    """Whether a text can be written to a file: JSON may hold lone surrogates, which are no characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
