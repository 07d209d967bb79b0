"""Checks of the paths that a caller names, before anything runs or is charged."""

from __future__ import annotations

import os
from pathlib import Path

from securefl.core.errors import ConfigError


def path_of(what: str, value: object, of: str) -> Path:
    """A path. Raises ConfigError for any other value. of: names the file or folder in the error."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"Expected `{what}` as the path of {of}, got {value!r}.")
    return Path(text)
