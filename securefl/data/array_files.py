"""Reads files of arrays, .npy and .npz: without pickle, of bounded size, no memory for what is not there."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.storage.inputs import DAMAGED, opened, require_size

LARGEST: Final = 2**31
"""The most bytes of one file, and of its unpacked content."""
_PACKED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""As numpy writes a .npz. Other libraries for unpacking see no bytes."""


def npy(path: Path) -> NDArray[Any]:
    """Read the array of a .npy of at most `LARGEST` bytes.

    Raises DataError, with the path, for other content and for anything but a regular file.
    """
    with opened(path) as source:
        size = require_size(source, LARGEST)
        if source.peek(2)[:2] == b"PK":
            raise DataError("Expected an array as .npy, got an archive. Give it the ending .npz.")
        try:
            return _array(source, size)
        except DAMAGED as error:
            got = f"other content: {str(error)[:200]}" if size else "an empty file"
            raise DataError(f"Expected an array as .npy, without pickles, got {got}.") from None


def npz(path: Path, names: Sequence[str], others: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Read arrays of a .npz of at most `LARGEST` bytes, also unpacked; of `others` those that are there.

    Raises DataError, with the path, for other content and for anything but a regular file.
    """
    with opened(path) as source:
        require_size(source, LARGEST)
        try:
            if source.peek(2)[:2] != b"PK":  # zipfile takes a failing disk for this too
                raise ValueError("no archive")
            with zipfile.ZipFile(source) as packed:
                members = {own.filename.removesuffix(".npy"): own for own in packed.infolist()}
                size = sum(own.file_size for own in packed.infolist())
                if size > LARGEST:
                    raise DataError(f"expected at most {LARGEST:,} bytes of arrays, got {size:,}.")
                if gone := [name for name in names if name not in members]:
                    raise DataError(
                        f"expected the arrays {' and '.join(names)}, one entry a record, got no {gone[0]!r} "
                        f"among {', '.join(members) or 'none'}."
                    )
                found = {}
                for name in (*names, *(own for own in others if own in members)):
                    if members[name].compress_type not in _PACKED:
                        raise ValueError(f"{name} is packed by another method than numpy's")
                    with packed.open(members[name]) as member:
                        found[name] = _array(member, members[name].file_size)
                return found
        except DAMAGED as error:
            raise DataError(f"expected arrays as .npz, without pickles, got: {error}.") from None


def _array(source: IO[bytes], size: int) -> NDArray[Any]:
    """The array of a .npy. Its header is checked against the file's size before memory is taken."""
    version = np.lib.format.read_magic(source)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(source)
    if dtype.hasobject:
        raise ValueError("objects, which only a pickle can hold")
    if source.tell() + prod(shape) * dtype.itemsize != size:
        raise DataError(
            f"Expected an array of {prod(shape) * dtype.itemsize:,} bytes behind the header, got "
            f"{size - source.tell():,}: the file is damaged or cut. Get it again."
        )
    source.seek(0)
    # Loading a pickle from a .npy would run its code.
    found: NDArray[Any] = np.lib.format.read_array(source, allow_pickle=False)
    return found
