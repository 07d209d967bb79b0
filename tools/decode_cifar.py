"""Decode CIFAR-10 packed as `*.med.xz`, a lossless predictive image code under xz, to CIFAR's binary layout.

    python tools/decode_cifar.py FOLDER [--out FOLDER]

FOLDER holds data_batch_1.med.xz to data_batch_5.med.xz and test_batch.med.xz. The batches are written where
`securefl` looks for them: below cifar10/decoded/ of the user's cache, or of the folder of data sets that
--out names. It takes about 15 seconds, once. What does not decode to the pinned SHA-256 is not written.

Stream inside the xz: b"CIFMED1\\n", uint32le N, uint32le L, N * L label bytes, then 3 * N * 1024 residual
bytes, plane by plane (G, R - G, B - G, the last two offset by 128), each predicted from its left, upper
and upper-left neighbours by the median edge detector of JPEG-LS and stored in zigzag order
(0, -1, 1, -2, ... as 0, 1, 2, 3, ...). All arithmetic is modulo 256.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.data.digests import CIFAR10_DECODED
from securefl.data.files import cache_folder
from securefl.storage.files import replacing

MAGIC = b"CIFMED1\n"
SIDE = 32
MOST_RECORDS = 100_000
_OFFSET = np.array([0, 128, 128], np.int16)[:, None]


def unpack(path: Path) -> bytes:
    """The batch at `path` in the CIFAR binary layout: per record its labels, then R, G and B planes.

    Raises DataError if the stream is damaged or not of this format.
    """
    # A few bytes of xz can unpack to gigabytes: the read ends where the largest batch would.
    try:
        with lzma.open(path, "rb") as stream:
            return decode(stream.read(16 + MOST_RECORDS * (2 + 3 * SIDE**2)), str(path))
    except (lzma.LZMAError, EOFError) as problem:
        raise DataError(
            f"{path}: expected an xz stream, got a damaged one ({problem}). Get it again."
        ) from problem


def decode(buffer: bytes, where: str) -> bytes:
    """Decode the stream inside the xz to the CIFAR binary layout; `where` names it in errors."""
    if len(buffer) < 16 or buffer[:8] != MAGIC:
        raise DataError(f"{where}: expected the magic {MAGIC!r}, got {buffer[:8]!r}.")
    records, labels = struct.unpack("<II", buffer[8:16])
    expected = 16 + records * (labels + 3 * SIDE**2)
    if not 0 < records <= MOST_RECORDS or labels not in (1, 2) or len(buffer) != expected:
        raise DataError(
            f"{where}: expected at most {MOST_RECORDS} records of 1 or 2 labels in the claimed bytes, got a "
            f"header of {records} records with {labels} labels in {expected} bytes, and {len(buffer)} bytes."
        )
    tags = np.frombuffer(buffer, np.uint8, records * labels, 16).reshape(records, labels)
    residuals = np.frombuffer(buffer, np.uint8, offset=16 + records * labels)
    green, red, blue = _planes(residuals.reshape(3, records, SIDE, SIDE))
    pixels = np.stack([red - 128 + green, green, blue - 128 + green]) & 255
    images = pixels.astype(np.uint8).transpose(3, 0, 1, 2).reshape(records, -1)
    return np.concatenate([tags, images], axis=1).tobytes()


def _planes(zigzag: NDArray[np.uint8]) -> NDArray[np.int16]:
    """Residuals (3, N, 32, 32) to the planes they predict, shape (3, 32, 32, N)."""
    signed = np.where(zigzag & 1, 255 - (zigzag >> 1), zigzag >> 1)
    # pixel first: each step of the prediction then works on one contiguous (3, N) block
    out = np.ascontiguousarray(signed.transpose(2, 3, 0, 1)).astype(np.int16)
    for i in range(SIDE):
        for j in range(SIDE):
            out[i, j] = (out[i, j] + _predicted(out, i, j)) & 255
    return out.transpose(2, 0, 1, 3)


def _predicted(done: NDArray[np.int16], i: int, j: int) -> NDArray[np.int16]:
    if i and j:
        left, up = done[i, j - 1], done[i - 1, j]
        low, high = np.minimum(left, up), np.maximum(left, up)
        # the median edge detector: left + up - corner, kept between its two neighbours
        return np.asarray(np.clip(left + up - done[i - 1, j - 1], low, high))
    if i:
        return np.asarray(done[i - 1, 0])
    return np.asarray(done[0, j - 1]) if j else _OFFSET


def convert(folder: Path, out: Path) -> None:
    """Decode every batch of `folder` below the folder of data sets `out`.

    Raises DataError if a batch is missing, damaged, or another one than the pinned.
    """
    for file in CIFAR10_DECODED:
        source = folder / f"{Path(file.path).stem}.med.xz"
        if not source.is_file():
            raise DataError(f"Expected {source}, got no such file. Name the folder that holds all batches.")
        content = unpack(source)
        if (found := hashlib.sha256(content).hexdigest()) != file.sha256:
            raise DataError(
                f"Expected {source} to decode to SHA-256 {file.sha256}, got {found}. Get it again."
            )
        with replacing(out / file.path) as target:
            target.write(content)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=cache_folder())
    options = parser.parse_args()
    try:
        convert(options.folder, options.out)
    except DataError as error:
        parser.exit(1, f"{error}\n")
    print(options.out / CIFAR10_DECODED[0].path, "and five more")


if __name__ == "__main__":
    main()
