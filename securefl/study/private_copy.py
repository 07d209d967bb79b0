"""A private copy of a run's databases: whoever only looks into a run folder writes nothing there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from securefl.core.errors import ConfigError
from securefl.storage.folder_lock import require_idle


@contextmanager
def private_copy(folder: Path, part: Path) -> Iterator[Path]:
    """A temporary folder with copies of all databases in `part` of a run folder, and of their logs.

    Raises ConfigError if a process runs in the folder, or begins to while it is read.
    """
    require_idle(folder)
    with tempfile.TemporaryDirectory() as private:
        _copy(folder, part, Path(private))
        yield Path(private)


def _copy(folder: Path, part: Path, private: Path) -> None:
    # the indices of logs (`-shm`) are made anew
    files = [path for path in (folder / part).rglob("*") if path.is_file() and path.name[-4:] != "-shm"]
    before = [_stamp(path) for path in files]
    for path in files:
        target = private / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    # `require_idle` held no lock: a process may have begun meanwhile, and the copies would not fit together
    if [_stamp(path) for path in files] != before:
        raise ConfigError(
            f"Expected {folder} to hold still while it is read, got a change. Ask again when its run "
            "has ended."
        )


def _stamp(path: Path) -> tuple[int, int] | None:
    return (path.stat().st_size, path.stat().st_mtime_ns) if path.exists() else None
