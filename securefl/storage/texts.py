"""Reading what people and peers write: every text has a largest size, and a largest depth.

Sizes are checked before anything is parsed: a value of two bytes is seventy as an object.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Final

from securefl.core.errors import ConfigError
from securefl.core.legible import is_legible

LARGEST_TOML: Final = 2**16
"""Bytes of the largest study, sweep or model file: five times the longest that this package brings."""
MOST_ELEMENTS: Final = 2**20
"""Values of the largest JSON text: profiles and anchors of 500,000 elements."""
_DEEPEST: Final = 16
_LONG_KEY: Final = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){32}""")
"""A key of more than 32 parts."""


def read_text(path: Path, most: int = LARGEST_TOML) -> str:
    """A text file in UTF-8 of at most `most` bytes; a byte order mark in front is dropped.

    Raises ConfigError, naming the file, for anything else.
    """
    try:
        with path.open("rb") as source:
            raw, size = source.read(most + 1), os.fstat(source.fileno()).st_size
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from None
    if len(raw) > most:
        raise ConfigError(
            f"Expected {path} of at most {most:,} bytes, got {max(size, len(raw)):,}; is it the right file?"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:  # UTF-16 has one in every other byte
        raise ConfigError(f"{path} is not text in UTF-8; save it as such.")
    return text


def toml(text: str) -> dict[str, Any]:
    """The table of a TOML text. ConfigError for none, too long a one, and too deep a one."""
    if len(text) > LARGEST_TOML:
        raise ConfigError(f"Expected at most {LARGEST_TOML:,} characters of TOML, got {len(text):,}.")
    if _LONG_KEY.search(text):  # its parser takes minutes and gigabytes for what is refused afterwards
        raise ConfigError(_too_deep())
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ConfigError(_too_deep()) from None
    except ValueError as error:  # a number of 5,000 digits is no TOMLDecodeError
        raise ConfigError(f"This is not TOML: {error}.") from None
    _check_tables(table)
    return table


def _check_tables(table: dict[str, Any]) -> None:
    """Depth and keys; level by level, since a dotted key of 60 kB would break whatever calls itself."""
    level: list[Any] = [table]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for found in level:
            if isinstance(found, dict):
                _check_keys(found)
            inner += found.values() if isinstance(found, dict) else found
        if any(isinstance(value, int) and value.bit_length() > 63 for value in inner):
            raise ConfigError("Expected whole numbers of at most 64 bits, as TOML has them; one is larger.")
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return
    raise ConfigError(_too_deep())


def _check_keys(table: dict[str, Any]) -> None:
    for key in table:
        if not is_legible(key):
            raise ConfigError(f"Expected keys of printable letters, got {key!r}.")


def _too_deep() -> str:
    return f"Expected tables and lists in at most {_DEEPEST} levels, got more; no study nests as deeply."


def elements(text: bytes) -> int:
    """At least as many values as a JSON text holds, before any is made."""
    return 1 + sum(map(text.count, (b",", b"[", b"{")))
