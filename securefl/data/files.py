"""Paths and SHA-256 checks of data-set files. `verified` checks the digest before a file is parsed."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

from securefl.core.errors import ConfigError, DataError
from securefl.core.reading import near
from securefl.data.digests import PINNED, DataFile


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/securefl`, by default `~/.cache/securefl`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "securefl"


def data_folder() -> Path:
    """The folder of data sets: `$SECUREFL_DATA`, or the user's cache folder if that is not set.

    >>> from securefl.data import data_folder
    >>> from unittest.mock import patch
    >>> with patch.dict("os.environ", SECUREFL_DATA="/srv/records"):
    ...     print(data_folder().as_posix())
    /srv/records

    Raises nothing.
    """
    named = os.environ.get("SECUREFL_DATA", "")
    return Path(os.path.expanduser(named)) if named else cache_folder()


def files_of(name: str) -> tuple[DataFile, ...]:
    """The pinned files of data set `name`. Raises ConfigError for an unknown name, with the nearest one."""
    if name not in PINNED:
        raise ConfigError(
            f"Expected one of the data sets {', '.join(PINNED)}, got {name!r}{near(name, PINNED)}."
        )
    return PINNED[name]


@lru_cache(maxsize=256)
def _digest(path: Path, size: int, modified_ns: int) -> str:
    # The cache's key has size and modification time, so a replaced file is read again.
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(path: Path) -> str:
    """SHA-256 of a file in hex. A process reads a file again only if its size or time of change differs."""
    state = path.stat()
    return _digest(path.resolve(), state.st_size, state.st_mtime_ns)


def verified(name: str, file: DataFile, root: Path) -> Path:
    """Check the digest of `file` below `root` and return its path.

    Raises DataError if the file is missing, or its digest is not the pinned one. `name` is the data set's
    name, for the advice in the message.
    """
    path = root / file.path
    if not path.is_file():
        raise DataError(
            f"Expected the file {file.path} of data set {name!r} in {root}, got none. "
            f"Fetch it with `securefl data fetch {name}`, or set SECUREFL_DATA to a folder that holds it."
        )
    found = digest(path)
    if found != file.sha256:
        raise DataError(
            f"Expected the published file at {path}, SHA-256 {file.sha256}, got SHA-256 {found}. "
            f"Remove it and run `securefl data fetch {name}`."
        )
    return path
