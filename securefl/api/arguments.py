"""Checks of callers' arguments: numbers, whole numbers and paths, before anything runs or is charged."""

from __future__ import annotations

import operator
import os
from numbers import Real
from pathlib import Path

from securefl.core.errors import ConfigError


def number(what: str, value: object) -> float:
    """A real number, numpy's included. Raises ConfigError for texts, truth values, lists and None."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"Expected `{what}` as a number, got {value!r}.")
    return float(value)


def whole(what: str, value: object) -> int:
    """A whole number, numpy's included. Raises ConfigError for any other value, truth values among them."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)  # type: ignore[arg-type]  # raises TypeError itself
    except TypeError:
        raise ConfigError(f"Expected `{what}` as a whole number, got {value!r}.") from None


def path_of(what: str, value: object, of: str) -> Path:
    """A path. Raises ConfigError for any other value. of: names the file or folder in the error."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"Expected `{what}` as the path of {of}, got {value!r}.")
    return Path(text)
