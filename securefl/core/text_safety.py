"""Text safety: checks against invisible or look-alike names, long lists, and formulas in CSV cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final
from unicodedata import normalize

from securefl.core.errors import ConfigError

_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""The characters of Unicode's Default_Ignorable_Code_Point outside the categories "other"."""
_LONGEST: Final = 200
"""The most characters of a text that a message or a table quotes."""
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet may run a cell that begins with one of these characters as a formula.

The last four are full-width forms, which some spreadsheets accept.
"""

_CELL: Final = re.compile(rf"([,;|]\s*)(?=[{re.escape(''.join(_FORMULA))}])")
"""The separator before a cell that would be run, if a spreadsheet takes a comment for a row."""


@lru_cache(maxsize=4096)  # names come back in every round
def is_legible(text: str) -> bool:
    """Whether a text has no control character and no invisible character."""
    # `isprintable` refuses the categories "other" (Cc, Cf with the direction overrides, Co, Cs, Cn) and
    # "separator" (Zl, Zp, Zs) except the plain space. It accepts some letters and marks that are invisible.
    return text.isprintable() and not _INVISIBLE.search(text)


def require_legible(name: str, what: str) -> None:
    """Raise ConfigError if a name has characters that hide from a reader or control a terminal."""
    if not is_legible(name):
        raise ConfigError(
            f"Expected {what} of printable letters and plain spaces, got {name!r}; choose another name."
        )


def folded(name: str) -> str:
    """Return the name without case, in Unicode's compatibility form. Names that look alike become equal."""
    return normalize("NFKC", normalize("NFKC", name).casefold())


def require_distinct(names: Iterable[object], what: str) -> None:
    """Raise ConfigError if `folded` makes two different names equal: one person could then count as two.

    names: texts, or whole numbers and tuples too, of which 1 looks like "1".
    """
    seen: dict[str, object] = {}
    for name in names:
        shown = name if isinstance(name, str) else str(name).replace("'", "")
        if repr(other := seen.setdefault(folded(shown), name)) != repr(name):
            raise ConfigError(
                f"Expected {what} that differ by more than case or form, got {other!r} and {name!r}: one "
                "person of two names would count as two, and have two budgets. Give each a name of its own, "
                "and write one person's always alike."
            )


def escaped(text: str) -> str:
    """Return a text of several lines in a form that is safe to print, even if an attacker wrote it."""
    return "".join(c if is_legible(c) or c == "\n" else repr(c)[1:-1] for c in text)


def excerpt(text: str) -> str:
    """Return a text from a file or a peer as it is if it is legible and short, else its length in words."""
    fits = len(text) <= _LONGEST and is_legible(text)
    return text if fits else f"a text of {len(text):,} characters"


def some(names: Sequence[str], most: int = 8) -> str:
    """Return the first of these names for a message, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def cell(value: object) -> object:
    """Return a table value for CSV. Text that a spreadsheet would run gets a quote in front.

    Numbers stay numbers, negative ones and those in a text too. `uncell` is the inverse.
    """
    # A text with a quote of its own in front gets another one, so that each has its own cell.
    return "'" + value if isinstance(value, str) and _runs(value.lstrip("'")) else value


def uncell(value: object) -> object:
    """Return the value of which `cell` made this one."""
    quoted = isinstance(value, str) and value.startswith("'") and _runs(value.lstrip("'"))
    return value[1:] if isinstance(value, str) and quoted else value


def comment(line: str) -> str:
    """Return a line to stand above a CSV. A spreadsheet runs none of the cells that it makes of it."""
    return _CELL.sub(r"\1'", " ".join(line.split()))


def _runs(text: str) -> bool:
    """Whether a spreadsheet may run a cell of this text. Some drop spaces in front."""
    begins = text.startswith(_FORMULA) or text.lstrip().startswith(_FORMULA)
    return begins and not _is_number(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
