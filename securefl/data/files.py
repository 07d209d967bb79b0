"""Finding and checking the files of a data set: no file is parsed before its SHA-256 is the pinned one."""

from __future__ import annotations

import difflib
import hashlib
import os
from functools import lru_cache
from pathlib import Path

from securefl.core.errors import ConfigError, DataError
from securefl.data.digests import PINNED, DataFile


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/securefl`, by default `~/.cache/securefl`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "securefl"


def data_folder() -> Path:
    """Where data sets are looked for: `$SECUREFL_DATA`, else the user's cache folder."""
    named = os.environ.get("SECUREFL_DATA", "")
    return Path(named).expanduser() if named else cache_folder()


def files_of(name: str) -> tuple[DataFile, ...]:
    """The pinned files of data set `name`. Raises ConfigError, naming the nearest, where there is none."""
    if name not in PINNED:
        nearest = difflib.get_close_matches(name, PINNED, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"Unknown data set {name!r}; did you mean {nearest!r}? There are: {', '.join(PINNED)}."
        )
    return PINNED[name]


@lru_cache(maxsize=256)
def _digest(path: Path, size: int, modified_ns: int) -> str:
    # size and time of change are part of the key, so that a replaced file is read again
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(path: Path) -> str:
    """SHA-256 of a file in hex; read once per process unless its size or time of change differs."""
    state = path.stat()
    return _digest(path.resolve(), state.st_size, state.st_mtime_ns)


def verified(name: str, file: DataFile, root: Path) -> Path:
    """Path of `file` below `root`, its digest checked.

    Raises DataError where it is missing or its digest is not the pinned one; `name` is the data set's,
    for the advice in the message.
    """
    path = root / file.path
    if not path.is_file():
        raise DataError(
            f"Data set {name!r} needs the file {file.path}, which is not in {root}. "
            f"Fetch it with `securefl data fetch {name}`, or set SECUREFL_DATA to a folder that holds it."
        )
    found = digest(path)
    if found != file.sha256:
        raise DataError(
            f"{path} is not the published file: expected SHA-256 {file.sha256}, found {found}. "
            f"Remove it and run `securefl data fetch {name}`."
        )
    return path
