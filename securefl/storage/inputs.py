"""Input files: regular files only, opened without waiting, read up to a limit, and refused by name.

A person or a peer names the file, and may name a folder, a pipe, a device or a stranger's file. Opening a
pipe waits for its writer, and a device such as /dev/zero has no end.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from tokenize import TokenError
from typing import Final
from zipfile import BadZipFile

from securefl.core.errors import DataError
from securefl.core.text_safety import is_legible

_KINDS: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
DAMAGED: Final = (
    *(TypeError, ValueError, OverflowError, EOFError, MemoryError, RuntimeError),
    *(SyntaxError, TokenError, BadZipFile, zlib.error, struct.error),
)
"""What zipfile, numpy, pyarrow and Pillow raise for damage. Encryption is a RuntimeError."""
# O_NONBLOCK: a pipe that takes the file's place meanwhile must not wait for its writer
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LOST: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM)


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A regular file, open for reading from its beginning.

    Raises DataError, with the file's name in front, if the file cannot be opened, is no regular file, or
    fails while the caller reads it. A DataError of the caller gets the name too, unless it begins with it.
    """
    try:
        # Before the file is opened, since opening a device may already change something.
        _require_regular(os.stat(path).st_mode)
        with os.fdopen(_opened(path), "rb") as source:
            yield source
    except DataError as error:
        told = str(error)
        raise DataError(told if told.startswith(str(path)) else f"{shown(path)}: {told}") from None
    except OSError as error:
        raise DataError(f"{shown(path)}: {_why(path, error)}") from None


def content(path: Path, most: int) -> bytes:
    """The whole content of a regular file of at most `most` bytes. Raises DataError with the file's name."""
    with opened(path) as source:
        require_size(source, most)
        raw = source.read(most + 1)
        if len(raw) > most:  # it grew, or its size is not told, as in /proc
            raise DataError(_too_long(most, f"more than {most:,}"))
    return raw


def require_size(source: BufferedReader, most: int) -> int:
    """The size of an open file in bytes. Raises DataError above `most`."""
    if (size := os.fstat(source.fileno()).st_size) > most:
        raise DataError(_too_long(most, f"{size:,}"))
    return size


def shown(path: Path) -> str:
    """A printable form of a file's name. A received file's name may contain terminal escapes."""
    return str(path) if is_legible(str(path)) else repr(str(path))


def kind_word(mode: int) -> str:
    """What a file of this mode is, such as "a folder"."""
    return next((word for is_kind, word in _KINDS if is_kind(mode)), "something else")


def _opened(path: Path) -> int:
    number = os.open(path, _FLAGS)
    try:
        _require_regular(os.fstat(number).st_mode)
    except BaseException:
        os.close(number)
        raise
    return number


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise DataError(
            f"Expected a regular file, got {kind_word(mode)}. Copy its content to a file, and name that one."
        )


def _why(path: Path, error: OSError) -> str:
    what = error.strerror or type(error).__name__
    if error.errno in _LOST:
        came = "a link that leads to no file" if path.is_symlink() else "none"
        return f"Expected a file, got {came} ({what}). Check the path."
    if error.errno in _FORBIDDEN:
        return f"Expected a file that you may read, got a refusal ({what}). Permit reading it to your user."
    return f"Expected a readable file, got an error ({what}). Get it again, or copy it from a sound disk."


def _too_long(most: int, came: str) -> str:
    return f"Expected a file of at most {most:,} bytes, got {came}. Check that it is the right file."
