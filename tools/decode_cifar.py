"""Decode CIFAR-10 packed as `*.med.xz`, a lossless predictive image code under xz, to CIFAR's binary layout.

    python tools/decode_cifar.py FOLDER

FOLDER holds data_batch_1.med.xz to data_batch_5.med.xz and test_batch.med.xz. The batches are written where
`securefl` looks for them: below cifar10/decoded/ of the user's cache. It takes about 15 seconds, once. What
does not decode to the pinned SHA-256 is not written.

Stream inside the xz: b"CIFMED1\\n", uint32le N, uint32le L, N * L label bytes, then 3 * N * 1024 residual
bytes, plane by plane (G, R - G, B - G, the last two offset by 128), each predicted from its left, upper
and upper-left neighbours by the median edge detector of JPEG-LS and stored in zigzag order
(0, -1, 1, -2, ... as 0, 1, 2, 3, ...). All arithmetic is modulo 256.
"""

from __future__ import annotations

import hashlib
import lzma
import struct
import sys
from pathlib import Path

import numpy as np

from securefl.core.errors import DataError
from securefl.data.digests import CIFAR10_DECODED
from securefl.data.files import cache_folder
from securefl.storage.files import replacing

SIDE = 32
MOST = 100_000 * (2 + 3 * SIDE**2)
"""Bytes of the largest batch: a few bytes of xz can unpack to gigabytes."""


def decode(buffer: bytes) -> bytes:
    """Decode the stream inside the xz to the CIFAR binary layout: per record labels, then R, G and B planes.

    ValueError or struct.error if the stream is of another size than its header says.
    """
    records, labels = struct.unpack_from("<8xII", buffer)
    told = np.frombuffer(buffer, np.uint8, offset=16)
    tags, zigzag = told[: records * labels].reshape(records, -1), told[records * labels :]
    signed = np.where(zigzag & 1, ~(zigzag >> 1), zigzag >> 1).reshape(3, records, SIDE, SIDE)
    # pixel first: each step of the prediction then works on one contiguous (3, N) block
    steps = np.ascontiguousarray(signed.transpose(2, 3, 0, 1)).astype(np.int16)
    # Behind a border of one value, an edge pixel is predicted from the neighbour that it has.
    planes = np.empty((SIDE + 1, SIDE + 1, 3, records), np.int16)
    planes[:] = [[0], [128], [128]]
    for i, j in np.ndindex(SIDE, SIDE):
        left, up = planes[i + 1, j], planes[i, j + 1]
        # the median edge detector: left + up - corner, kept between its two neighbours
        guess = np.clip(left + up - planes[i, j], np.minimum(left, up), np.maximum(left, up))
        planes[i + 1, j + 1] = (steps[i, j] + guess) & 255
    green, red, blue = planes[1:, 1:].transpose(2, 0, 1, 3)
    pixels = np.stack([red - 128 + green, green, blue - 128 + green]) & 255
    images = pixels.astype(np.uint8).transpose(3, 0, 1, 2).reshape(records, -1)
    return np.concatenate([tags, images], axis=1).tobytes()


def convert(folder: Path, out: Path) -> None:
    """Decode every batch of `folder` below the folder of data sets `out`.

    Raises DataError if a batch is missing, damaged, or another one than the pinned.
    """
    for file in CIFAR10_DECODED:
        source = folder / f"{Path(file.path).stem}.med.xz"
        try:
            with lzma.open(source, "rb") as stream:
                content = decode(stream.read(16 + MOST))
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise ValueError(f"the SHA-256 is not {file.sha256}")
        except (OSError, lzma.LZMAError, EOFError, struct.error, ValueError) as bad:
            raise DataError(f"Expected a batch of CIFAR-10 in {source}: {bad}. Get it again.") from bad
        with replacing(out / file.path) as target:
            target.write(content)


if __name__ == "__main__":
    try:
        convert(Path(sys.argv[1]), cache_folder())
    except DataError as error:
        sys.exit(str(error))
