"""Strict readers of the three packaged file formats: IDX, CIFAR binary, and the gas-turbine CSV.

A reader accepts one exact format and raises a DataError that names the file for any other content. It checks
a header's size against a limit before it allocates memory.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError

IDX_UBYTE = 0x08
IDX_INT = 0x0C
IDX_LARGEST = 1 << 27
"""The most bytes of an IDX array, 128 MiB. The largest known file (60,000 images of 28 x 28) has a third."""

CIFAR_SIDE = 32
CIFAR_RECORD = 1 + 3 * CIFAR_SIDE**2

GAS_COLUMNS = ("AT", "AP", "AH", "AFDP", "GTEP", "TIT", "TAT", "TEY", "CDP", "CO", "NOX")


def read_idx(path: Path, *, kind: int, dimensions: int) -> NDArray[Any]:
    """The array in a gzipped IDX file: uint8 for kind IDX_UBYTE, int32 for IDX_INT.

    Format: yann.lecun.com/exdb/mnist. Raises DataError for another magic, a size over IDX_LARGEST, a
    truncated body, trailing bytes or a damaged gzip stream.
    """
    dtype = np.dtype({IDX_UBYTE: ">u1", IDX_INT: ">i4"}[kind])
    header = 4 + 4 * dimensions
    try:
        with gzip.open(path, "rb") as stream:
            head = stream.read(header)
            if len(head) != header or head[:4] != bytes([0, 0, kind, dimensions]):
                raise DataError(
                    f"{path}: expected an IDX file of type 0x{kind:02x} with {dimensions} dimensions, "
                    f"got the header {head[:4].hex()}."
                )
            shape = struct.unpack(f">{dimensions}I", head[4:])
            size = prod(shape) * dtype.itemsize
            if size > IDX_LARGEST:
                raise DataError(
                    f"{path}: expected at most {IDX_LARGEST} bytes, got a header that claims {shape}, {size} "
                    "bytes."
                )
            body = stream.read(size + 1)  # one more byte, to detect trailing bytes
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(
            f"{path}: expected a gzip stream, got a damaged one ({problem}). Fetch the file again."
        ) from problem
    if len(body) != size:
        found = "more" if len(body) > size else f"only {len(body)}"
        raise DataError(f"{path}: expected {size} bytes after the header for shape {shape}, got {found}.")
    # IDX is big-endian. Torch accepts only the machine's own byte order.
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def parse_cifar(content: bytes, where: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images of shape (n, 3, 32, 32) and labels (n,) of one CIFAR-10 binary batch of 3,073-byte records.

    Raises DataError if the length is not a multiple of a record's, or a label is over 9.
    """
    if not content or len(content) % CIFAR_RECORD:
        raise DataError(f"{where}: expected records of {CIFAR_RECORD} bytes, got {len(content)} bytes.")
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        raise DataError(f"{where}: expected labels 0 to 9, got {labels.max()}.")
    return records[:, 1:].reshape(-1, 3, CIFAR_SIDE, CIFAR_SIDE), labels


def parse_gas(text: str, where: str) -> NDArray[np.float64]:
    """Rows of one gas-turbine CSV, shape (n, 11), columns in the order of GAS_COLUMNS.

    Raises DataError for another header, a missing or extra column, or a value that is not a finite number.
    The error names the line.
    """
    head, *lines = text.splitlines() or [""]
    if tuple(head.split(",")) != GAS_COLUMNS:
        raise DataError(f"{where}: expected the header {','.join(GAS_COLUMNS)}, got {head[:80]!r}.")
    rows = [_gas_row(line, f"{where}, line {number}") for number, line in enumerate(lines, start=2)]
    return np.array(rows, dtype=np.float64).reshape(-1, len(GAS_COLUMNS))


def _gas_row(line: str, where: str) -> list[float]:
    cells = line.split(",")
    if len(cells) != len(GAS_COLUMNS):
        raise DataError(f"{where}: expected {len(GAS_COLUMNS)} columns, got {len(cells)}.")
    try:
        row = [float(cell) for cell in cells]
    except ValueError as problem:
        raise DataError(f"{where}: expected numbers; {problem}.") from problem
    for column, value in zip(GAS_COLUMNS, row, strict=True):
        if not isfinite(value):
            raise DataError(f"{where}: expected a finite number in column {column}, got {value}.")
    return row
