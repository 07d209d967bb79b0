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
        table = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(_too_deep()) from None
    except ValueError as error:  # a number of 5,000 digits is no TOMLDecodeError
        hint = " Text stands in quotes, numbers do not." if "Invalid value" in str(error) else ""
        raise ConfigError(f"Expected TOML, got: {error}.{hint} Mend the text.") from None
    _check_tables(table)
    return table


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
