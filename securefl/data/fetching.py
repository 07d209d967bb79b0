"""Download of a data set's files from their published URLs.

A downloaded file moves to its path only after its SHA-256 equals the pinned one.
"""

from __future__ import annotations

import hashlib
import itertools
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO

from securefl.core.errors import DataError
from securefl.data.digests import DataFile
from securefl.data.files import data_folder, digest, files_of, verified
from securefl.storage.files import folder_at, replacing

CHUNK = 1 << 20
LARGEST = 1 << 28
"""The most bytes of a download, 256 MiB. No pinned file or archive is larger: a longer one is refused."""


_UNREADABLE = (
    OSError,
    HTTPException,
    EOFError,
    KeyError,  # the archive lacks the member
    zlib.error,
    tarfile.TarError,
    zipfile.BadZipFile,
)


def fetch(name: str, *, folder: Path | None = None) -> tuple[Path, ...]:
    """Fetch the missing and damaged files of data set `name`. Returns the paths of all its files.

    >>> from securefl.data import fetch
    >>> fetch("digits")  # scikit-learn has its records: there is no file to fetch
    ()

    Each file is written to a temporary file, checked, and renamed in one step. An interrupted download leaves
    no file. Of an archive, only the pinned members are read. Their own digests are checked, so a re-packed
    archive with the same members is accepted.

    Args:
        name: A name of `NAMES`.
        folder: The folder of data sets. The default is `data_folder()`.

    Raises:
        ConfigError: The name is unknown.
        DataError: A URL cannot be read, or sends other bytes than the published ones.
    """
    root = folder or data_folder()
    files = files_of(name)
    # Files of one archive are neighbours in the lists, so `groupby` fetches the archive once.
    missing = [file for file in files if not _holds(root, file)]
    for url, group in itertools.groupby(missing, key=lambda file: file.url or ""):
        try:
            _fetch_from(url, list(group), root)
        except _UNREADABLE as problem:
            raise DataError(
                f"Expected to fetch data set {name!r} from {url} into {root}, got {problem!r}. "
                "Try again, or put the file there by hand."
            ) from problem
    return tuple(verified(name, file, root) for file in files)


def _holds(root: Path, file: DataFile) -> bool:
    path = root / file.path
    return path.is_file() and digest(path) == file.sha256


def _fetch_from(url: str, files: Sequence[DataFile], root: Path) -> None:
    if files[0].member is None:
        with urllib.request.urlopen(url, timeout=60) as source:
            _place(source, files[0], root)
        return
    folder_at(root)
    with tempfile.TemporaryDirectory(dir=root, prefix=".fetch-") as waiting:
        archive = Path(waiting) / "archive"
        with urllib.request.urlopen(url, timeout=60) as source, archive.open("wb") as target:
            _copy(source, target, url)
        with _members(archive) as open_member:
            for file in files:
                with open_member(file.member or "") as source:
                    _place(source, file, root)


def _place(source: IO[bytes], file: DataFile, root: Path) -> None:
    with replacing(root / file.path) as target:
        found = _copy(source, target, file.path)
        if found != file.sha256:
            raise DataError(
                f"Expected the published bytes of {file.path}, SHA-256 {file.sha256}, got SHA-256 {found} "
                f"from {file.url}. Nothing was kept. Try again, or put the file there by hand."
            )


def _copy(source: IO[bytes], target: IO[bytes], what: str) -> str:
    """Copy at most LARGEST bytes and return their SHA-256 in hex. Raises DataError if there are more."""
    state, total = hashlib.sha256(), 0
    while chunk := source.read(CHUNK):
        total += len(chunk)
        if total > LARGEST:
            raise DataError(
                f"Expected at most {LARGEST} bytes of {what}, got more than were published. Try again."
            )
        state.update(chunk)
        target.write(chunk)
    return state.hexdigest()


@contextmanager
def _members(archive: Path) -> Iterator[Callable[[str], IO[bytes]]]:
    """Yield a function that opens one regular file of a zip or tar archive."""
    # No member is extracted to a path that the archive names: that path could leave the folder.
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            yield packed.open
        return
    with tarfile.open(archive, "r:*") as tape:

        def open_member(member: str) -> IO[bytes]:
            stream = tape.extractfile(member)
            if stream is None:
                raise tarfile.TarError(f"{member} is not a regular file")
            return stream

        yield open_member
