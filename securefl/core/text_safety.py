"""Text for people: names that cannot deceive the eye, and cells that no spreadsheet runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from unicodedata import normalize

from securefl.core.errors import ConfigError

_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""The characters of Unicode's Default_Ignorable_Code_Point outside the categories "other"."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A cell that begins with one of these is a formula.

The last four are wide forms, which some spreadsheets take.
"""


@lru_cache(maxsize=4096)  # names come back in every round
def is_legible(text: str) -> bool:
    """Whether a text has no character that a terminal obeys or a reader cannot see."""
    # `isprintable` refuses the categories "other" (Cc, Cf with the overrides of direction, Co, Cs, Cn) and
    # "separator" (Zl, Zp, Zs) except the plain space. Some letters and marks that it accepts are drawn as
    # nothing.
    return text.isprintable() and not _INVISIBLE.search(text)


def require_legible(name: str, what: str) -> None:
    """Raises ConfigError for a name that could show as another one, or write on a terminal."""
    if not is_legible(name):
        raise ConfigError(
            f"Expected {what} of printable letters and plain spaces, got {name!r}; choose another name."
        )


def folded(name: str) -> str:
    """The name without case, and with each letter written in one way. Names that look alike have one."""
    return normalize("NFKC", normalize("NFKC", name).casefold())


def require_distinct(names: Iterable[str], what: str) -> None:
    """Raises ConfigError for two different names that `folded` makes one: one person would count as two."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(folded(name), name)) != name:
            raise ConfigError(
                f"Expected {what} that differ by more than case or form, got {other!r} and {name!r}: one "
                "person of two names would count as two, and have two budgets. Give each a name of its own."
            )


def escaped(text: str) -> str:
    """A text of several lines in a form that is safe to print, whoever wrote it."""
    return "".join(c if is_legible(c) or c == "\n" else repr(c)[1:-1] for c in text)


def cell(value: object) -> object:
    """A value of a table for CSV. Text that a spreadsheet would run gets a quote in front."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _is_number(value):
        return "'" + value
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
