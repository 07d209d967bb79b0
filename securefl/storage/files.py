"""Atomic writing of files and folders, which never follows symbolic links.

A file is written beside its final path, synced to disk, and moved there in one step. If the path holds
anything but a regular file, `replacing` refuses it: through another user's link we would write to the link's
target, and replacing a link would break it for its owner (and, for a superuser, `/dev/stdout`). If a link
appears between the check and the move, the move replaces the link and never writes its target. A killed
process can leave a file called `.<name>.<8 hex digits>.part`, which no code reads.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from securefl.core.errors import ConfigError, DataError
from securefl.storage.inputs import kind_word, shown

_SHOWN = 40
"""The number of characters of the file's name in its draft's name. Names must stay below 255 bytes."""


@contextmanager
def replacing(path: Path, *, secret: bool = False) -> Iterator[IO[bytes]]:
    """A file to write beside `path`. It is moved there in one step at the end. An error leaves nothing
    behind.

    secret: whether only its owner can read the file, from the moment it exists. Raises DataError if `path`
    holds anything but a regular file.
    """
    folder_at(path.parent)
    require_replaceable(path)
    draft = path.with_name(f".{path.name[:_SHOWN]}.{secrets.token_hex(4)}.part")
    # Never writable by others, whatever the umask: the rule of `storage.owned` reads these files again.
    mode = 0o600 if secret else 0o644
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:  # The error names the caller's file, not the draft.
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(descriptor, "wb") as target:
            yield target
            target.flush()
            # Before the move: otherwise a crash could leave an empty file under the name.
            os.fsync(target.fileno())
        os.replace(draft, path)
    except OSError as error:
        if error.filename is not None and Path(error.filename) != draft:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None  # for example, the disk is full
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write(path: Path, content: str | bytes, *, secret: bool = False) -> None:
    """Write complete content in the same way. Text becomes UTF-8."""
    with replacing(path, secret=secret) as target:
        target.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def filling(folder: Path) -> Iterator[None]:
    """A folder to fill. If there is none, it is made with access for its owner alone.

    If an error occurs in the context, everything that was added is removed. One process at a time fills a
    folder, if its file system can lock folders. Raises ConfigError if another process fills it.
    """
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder_at(folder, mode=0o700)
        # Before anything is listed: what another process adds must not be removed as ours.
        lock = _locked(folder)
    except OSError:
        _remove_empty(new)
        raise
    before: set[Path] | None = None
    try:
        before = set(folder.iterdir())
        yield
    except BaseException:
        # Without `before`, the folder could not be read.
        for path in set() if before is None else set(folder.iterdir()) - before:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        _remove_empty(new)
        raise
    finally:
        os.close(lock)


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder's lock. The lock ends with it, or with the process."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The process before may have removed the folder, and another one may have made it anew.
        same = os.path.samestat(os.fstat(number), os.stat(folder)) if folder.exists() else False
    except BlockingIOError:
        same = False
    except OSError:  # a file system without locks of folders, such as NFS
        same = True
    if not same:
        os.close(number)
        raise ConfigError(
            f"Expected a folder that no other process fills, got {shown(folder)}, in which one makes its "
            "files now. Wait until it has ended, or choose another folder."
        )
    return number


def _remove_empty(folders: Sequence[Path]) -> None:
    for path in folders:
        with suppress(OSError):  # another process created it meanwhile, or uses it
            path.rmdir()


def folder_at(path: Path, *, mode: int = 0o755, exact: bool = False) -> Path:
    """The folder at `path`. If there is none, it is made with the permissions `mode`, and missing parents.

    Whatever the umask, nobody but its owner can write what is made here. No module makes folders by another
    way: `Path.mkdir(parents=True)` leaves the parents to the umask. exact: the umask takes no bit of `mode`.
    """
    try:
        path.mkdir(mode=mode)
    except FileExistsError:
        if not path.is_dir():
            raise
        return path
    except FileNotFoundError:
        # Raised again where no folder can be made, such as below /proc.
        folder_at(path.parent)
        path.mkdir(mode=mode, exist_ok=True)
    if exact:
        path.chmod(mode)
    return path


def subfolder(path: Path, *, mode: int = 0o755) -> Path:
    """The folder at `path`, as `folder_at` makes it.

    Raises DataError for a symbolic link: the files would be elsewhere.
    """
    if path.is_symlink():
        raise DataError(f"Expected a folder at {path}, got a symbolic link; remove it.")
    return folder_at(path, mode=mode)


def require_replaceable(path: Path) -> None:
    """Raises DataError if something else than a regular file stands at `path`."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise DataError(
            f"Expected a regular file or nothing at {shown(path)}, got {kind_word(mode)}; remove it, or "
            "write to another file."
        )


def _sync_folder(folder: Path) -> None:
    """Make the move itself durable, on file systems that support this."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
