"""Reading of TOML and JSON texts from people and peers, with limits on size and depth.

Sizes are checked before a text is parsed, because a value of two bytes takes seventy bytes as an object.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from securefl.core.errors import ConfigError, DataError
from securefl.core.text_safety import is_legible
from securefl.storage.inputs import content, shown

LARGEST_TOML: Final = 2**16
"""Largest study, sweep or model file, in bytes: five times the longest one in this package."""
MOST_ELEMENTS: Final = 2**20
"""Largest number of values in a JSON text: profiles and anchors of 500,000 elements."""
_DEEPEST: Final = 16
_AT: Final = re.compile(r"\(at line (\d+), column (\d+)\)$")
_SHOWN: Final = 60
"""The most characters of a line that are shown before and behind a mistake."""
_HINTS: Final = {
    "(at end of document)": "Close the last bracket or quote.",
    "Invalid value": "Text stands in straight quotes. Numbers do not: write 0.5, and not .5 or 1/2. Truth is "
    "true or false. What is not set is left out.",
    "Illegal character": "A text in quotes ends on its line. Close the quotes.",
    "Unterminated string": "Close the quotes.",
    "Unclosed": "Close the brackets.",
    "Expected '=' after a key": "Write key = value. A key has letters, digits, - and _ alone.",
    "Expected newline or end": "Write one key on a line, decimals with a point, and lists in [ ].",
    "Expected ']'": "Close the brackets.",
    "Cannot overwrite": "A key stands once. Keep one of them.",
    "Cannot declare": "A section stands once. Join its two parts.",
    "Cannot mutate": "A section stands once. Join its two parts.",
    "Invalid statement": "A line is a section in brackets, a key = value, or a comment behind #.",
}
"""What to do, by a part of a message of Python's parser."""
_LONG_KEY: Final = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){32}""")
"""A key of more than 32 parts."""


def read_text(path: Path, most: int = LARGEST_TOML) -> str:
    """Read a text file in UTF-8 of at most `most` bytes. A byte order mark in front is dropped.

    Raises ConfigError with the file's name for anything else.
    """
    try:
        raw = content(path, most)
    except DataError as error:
        raise ConfigError(str(error)) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # In UTF-16, every other byte of plain letters is 0.
        raise ConfigError(
            f"Expected {shown(path)} as text in UTF-8, got {len(raw)} bytes that are not. Save it as such."
        )
    return text


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """A context that reads a text which securefl wrote into a folder of its own.

    The text was right when the folder was made, so a ConfigError says that another release made it, too.
    """
    try:
        yield
    except ConfigError as error:
        raise ConfigError(
            f"{path}: {error} securefl kept this text when it made the folder: another release did, or the "
            "text was changed since, or what it names. Use that release, or begin anew in another folder."
        ) from None


def toml(text: str) -> dict[str, Any]:
    """The table of a TOML text. Raises ConfigError if it is not TOML, too long, or too deep."""
    if len(text) > LARGEST_TOML:
        raise ConfigError(
            f"Expected at most {LARGEST_TOML:,} characters of TOML, got {len(text):,}. Shorten the text."
        )
    # Checked before parsing: the parser would take minutes and gigabytes for such a key.
    if _LONG_KEY.search(text):
        raise ConfigError(_too_deep())
    try:
        table = tomllib.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise ConfigError(_too_deep()) from None
    except ValueError as error:  # a number of 5,000 digits is no TOMLDecodeError
        hint = next((own for part, own in _HINTS.items() if part in str(error)), "Mend the text.")
        raise ConfigError(f"Expected TOML, got: {error}. {hint}{_line(text, str(error))}") from None
    _check_tables(table)
    return table


def _line(text: str, error: str) -> str:
    """The line of an error, and below it a mark at the column. Empty if the error has no place."""
    if (place := _AT.search(error)) is None:
        return ""
    number, column = int(place[1]), int(place[2]) - 1
    line = text.split("\n")[number - 1].rstrip("\r")
    first = max(0, column - _SHOWN)
    before, behind = line[first:column].expandtabs(4), line[column : column + _SHOWN]
    return f"\n{number:5} | {before}{behind}\n      | {' ' * len(before)}^"


def _check_tables(table: dict[str, Any]) -> None:
    """Check depth and keys, level by level."""
    # Without recursion: a dotted key of 60 kB would exceed Python's limit.
    level: list[Any] = [table]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for found in level:
            for key in found if isinstance(found, dict) else ():
                if not is_legible(key):
                    raise ConfigError(f"Expected keys of printable letters, got {key!r}. Rename the key.")
            inner += found.values() if isinstance(found, dict) else found
        if any(isinstance(value, int) and value.bit_length() > 63 for value in inner):
            raise ConfigError(
                "Expected whole numbers of at most 64 bits, as in TOML, got a larger one. Mend the number."
            )
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return
    raise ConfigError(_too_deep())


def _too_deep() -> str:
    return f"Expected tables and lists in at most {_DEEPEST} levels, got more. Nest them less deeply."


def elements(text: bytes) -> int:
    """An upper bound on the number of values in a JSON text, before any of them is made."""
    # every value beyond the first has a comma or a bracket in front; those inside strings only add to the
    # bound
    return 1 + sum(map(text.count, (b",", b"[", b"{")))


def show(value: Any) -> str:
    """A value of a configuration in one short line."""
    match value:
        case None:
            return "not set"
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:g}"
        case list() | tuple():
            return "[" + ", ".join(show(item) for item in value) + "]"
        case dict():
            return ", ".join(f"{key} {show(item)}" for key, item in value.items())
    return str(value)
