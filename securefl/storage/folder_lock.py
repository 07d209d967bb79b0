"""A lock that lets one process at a time use a folder, with a note about the holding process.

The lock is flock(2). It always ends with its process, so it does not depend on process numbers or clocks. It
excludes other hosts if the file system's locks do, as those of NFS version 4. The lock file stays after the
release: if it were removed, one process could lock the old file and another one a new file. The library
`filelock` has no shared lock, which shows whether a read-only folder is in use.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shlex
import stat
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from securefl.core.errors import ConfigError, DataError
from securefl.core.logs import to_stderr
from securefl.storage.files import folder_at

LOCK = ".lock"
_LONGEST = 4096
"""The number of bytes of a note that are read."""
_SHOWN = 300
"""The number of characters of a command line that a note has, and of a note's text that a message shows."""
_PATIENCE = 0.3
"""Seconds to wait for the lock. A process that only asks whether a folder is in use holds it for a moment."""
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK
"""The flags with which the lock file is opened: links are not followed, and a pipe does not block."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds a folder, or held it last."""

    pid: int
    host: str
    command: str
    since: str

    @classmethod
    def this(cls) -> Holder:
        name, *arguments = sys.argv or ["python"]
        return cls(
            pid=os.getpid(),
            host=platform.node(),
            command=shlex.join([Path(name).name, *arguments])[:_SHOWN],
            since=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    @property
    def lives(self) -> bool:
        """Whether a process of this number runs here. The note of a copied folder may be of one that does."""
        if self.host != platform.node():
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass
        return True

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} ({self.command}, since {self.since})"


@contextmanager
def locked(folder: Path, say: Callable[[str], None] = to_stderr) -> Iterator[None]:
    """Hold the folder, which is created if it is missing. Forked children do not hold it.

    say: receives a sentence if the last holder ended without a release. It is none if it runs: the folder is
        then a copy of the one that it holds.
    Raises ConfigError if another process holds the folder, and DataError if it cannot be locked.
    """
    try:
        folder_at(folder)
        file = _locked(folder)
    except OSError as error:
        raise _refusal(folder, error) from None
    try:
        if (left := _noted(file.number)) is not None and not left.lives:
            say(f"Taking over {folder} from {left}, which ended without leaving it.")
        file.note(Holder.this())
        yield
    finally:
        file.release()


def require_idle(folder: Path) -> None:
    """Raise ConfigError if a process holds the folder. Nothing is written."""
    try:
        number = os.open(folder / LOCK, os.O_RDONLY | _OPEN)
    except OSError:  # no lock file yet, or only its owner may open it
        return
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(folder, number) from None
    except OSError:  # a file system without locks, where no process can run
        return
    finally:
        os.close(number)


class _File:
    """An open lock file. In a forked child it is closed at once, which leaves the lock with the parent."""

    def __init__(self, number: int) -> None:
        self.number = number
        own = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _close(own()))

    def note(self, holder: Holder) -> None:
        # A full disk is told by what needs the room; the lock holds without a note.
        with suppress(OSError):
            text = json.dumps(vars(holder)).encode()
            os.pwrite(self.number, text, 0)
            os.ftruncate(self.number, len(text))

    def release(self) -> None:
        if self.number < 0:
            return
        with suppress(OSError):
            taken = os.fstat(self.number).st_mtime_ns
            os.ftruncate(self.number, 0)
            os.utime(self.number, ns=(taken, taken))  # a release would tell how long the folder was held
        fcntl.flock(self.number, fcntl.LOCK_UN)
        self.close()

    def close(self) -> None:
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)


def _close(file: _File | None) -> None:
    if file is not None:
        file.close()


def _locked(folder: Path) -> _File:
    """The folder's lock. Raises ConfigError if another process keeps it."""
    end = time.monotonic() + _PATIENCE
    while True:
        file = _File(os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | _OPEN, 0o600))
        try:
            found = os.fstat(file.number)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:  # another name's content is not ours
                raise OSError(errno.EEXIST, "Not a regular file")
            try:
                fcntl.flock(file.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise _in_use(folder, file.number) from None
            else:
                # If the file was replaced between open and lock, we hold the lock of a file that nobody else
                # sees.
                if _same(file.number, folder / LOCK):
                    return file
        except BaseException:
            file.close()
            raise
        file.close()
        time.sleep(0.02)


def _same(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _refusal(folder: Path, error: OSError) -> DataError:
    why = error.strerror or str(error)
    match error.errno:
        case errno.ELOOP | errno.EEXIST | errno.ENXIO | errno.EISDIR:
            said = f"Expected {folder / LOCK} to be a file, which locks the folder ({why}). Remove it."
        case errno.ENOLCK | errno.ENOSYS | errno.EOPNOTSUPP:
            said = (
                f"{folder} is on a file system that cannot lock files ({why}), so a second process could run "
                "there unseen. Choose a folder elsewhere."
            )
        case errno.ENOSPC | errno.EDQUOT:
            said = f"{folder}: the disk is full ({why}). Make room, and run the same command again."
        case _:
            said = f"{folder} cannot be written ({why}). Permit it, or choose another folder."
    return DataError(said)


def _in_use(folder: Path, number: int) -> ConfigError:
    """The error that names the process that holds the folder, by the note in its lock file."""
    holder = _noted(number) or "another process"
    return ConfigError(
        f"Expected a folder that no process uses: {folder} is in use by {holder}. Wait for that process, "
        "stop it, or choose another folder."
    )


def _noted(number: int) -> Holder | None:
    """The note in a lock file, or None if there is no valid one."""
    try:
        found = json.loads(os.pread(number, _LONGEST, 0))
    except (ValueError, RecursionError):
        return None
    match found:
        case {"pid": int(pid), "host": str(host), "command": str(command), "since": str(since)}:
            return Holder(pid=pid, host=_shown(host), command=_shown(command), since=_shown(since))
    return None


def _shown(text: str) -> str:
    """A note's text without control characters. A note is not trusted: others may write in the folder."""
    return "".join(char if char.isprintable() else "?" for char in text)[:_SHOWN]
