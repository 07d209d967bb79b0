"""tools/decode_cifar.py writes the batches that `load` reads, or nothing."""

from __future__ import annotations

import hashlib
import importlib.util
import lzma
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.data.digests import CIFAR10_DECODED
from securefl.data.files import cache_folder
from securefl.data.sources import cifar_records, load

TOOL = Path(__file__).parents[3] / "tools" / "decode_cifar.py"
SPEC = importlib.util.spec_from_file_location("decode_cifar", TOOL)
assert SPEC is not None
assert SPEC.loader is not None
decoding = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(decoding)

Bytes = NDArray[np.uint8]
REAL = Path(os.environ.get("SECUREFL_DATA", "")) / "cifar10"


def med_encoded(images: Bytes, labels: Bytes) -> bytes:
    """The definition of the code, one pixel at a time, independent of the decoder's vectors."""
    residuals = bytearray()
    planes = images.astype(int)
    green = planes[:, 1]
    for plane, start in ((green, 0), (planes[:, 0] - green + 128, 128), (planes[:, 2] - green + 128, 128)):
        for image in plane & 255:
            for i in range(32):
                for j in range(32):
                    if i and j:
                        left, up, corner = image[i, j - 1], image[i - 1, j], image[i - 1, j - 1]
                        guess = sorted((left, up, left + up - corner))[1]
                    else:
                        guess = image[i - 1, 0] if i else image[0, j - 1] if j else start
                    step = (int(image[i, j]) - int(guess) + 128) % 256 - 128
                    residuals.append(2 * step if step >= 0 else -2 * step - 1)
    return b"CIFMED1\n" + struct.pack("<II", *labels.shape) + labels.tobytes() + bytes(residuals)


def small_batch() -> tuple[Bytes, Bytes]:
    rng = np.random.default_rng(5)
    noise = rng.integers(0, 256, (2, 3, 32, 32), dtype=np.uint8)
    ramp = np.add.outer(np.arange(32), 3 * np.arange(32)).astype(np.uint8)
    smooth = np.broadcast_to(ramp, (1, 3, 32, 32)) // np.array([1, 2, 3], np.uint8)[:, None, None]
    return np.concatenate([noise, smooth]), np.array([[3], [0], [9]], np.uint8)


def test_a_med_batch_decodes_to_the_canonical_binary_layout() -> None:
    images, labels = small_batch()

    records = cifar_records(decoding.decode(med_encoded(images, labels)))

    assert records[:, 0].tolist() == [3, 0, 9]
    np.testing.assert_array_equal(records[:, 1:].reshape(images.shape), images)


@pytest.mark.parametrize(
    "change",
    [
        lambda code: lzma.compress(code),  # another batch than the pinned
        lambda code: lzma.compress(b"CIFMED2\n" + code[8:]),
        lambda code: lzma.compress(code[:12]),
        lambda code: lzma.compress(code[:-1]),
        lambda code: lzma.compress(code + b"x"),
        lambda code: lzma.compress(code[:8] + struct.pack("<II", 2**32 - 1, 1) + code[16:]),
        lambda code: lzma.compress(code[:8] + struct.pack("<II", 0, 1)),
        lambda code: lzma.compress(code)[:-5],
        lambda code: b"",
        None,  # it is missing
    ],
)
def test_other_streams_are_refused_by_the_name_of_their_file(
    change: Callable[[bytes], bytes] | None, tmp_path: Path
) -> None:
    packed(tmp_path / "packed")
    first = tmp_path / "packed" / f"{Path(CIFAR10_DECODED[0].path).stem}.med.xz"
    if change is None:
        first.unlink()
    else:
        first.write_bytes(change(med_encoded(*small_batch())))
    with pytest.raises(DataError, match=first.name):
        decoding.convert(tmp_path / "packed", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def packed(folder: Path) -> bytes:
    """All batches of a small set. Returns what each decodes to."""
    images, labels = small_batch()
    folder.mkdir()
    for file in CIFAR10_DECODED:
        content = lzma.compress(med_encoded(images, labels))
        (folder / f"{Path(file.path).stem}.med.xz").write_bytes(content)
    return np.concatenate([labels, images.reshape(3, -1)], axis=1).tobytes()


def test_every_batch_is_written_where_it_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = packed(tmp_path / "packed")
    pinned = [replace(file, sha256=hashlib.sha256(plain).hexdigest()) for file in CIFAR10_DECODED]
    monkeypatch.setattr(decoding, "CIFAR10_DECODED", pinned)

    decoding.convert(tmp_path / "packed", tmp_path / "out")

    assert [(tmp_path / "out" / file.path).read_bytes() for file in CIFAR10_DECODED] == [plain] * 6


@pytest.mark.slow  # decoding takes about 15 seconds
@pytest.mark.skipif(
    not (REAL / "test_batch.med.xz").is_file(),
    reason="set SECUREFL_DATA to a folder that holds the real files",
)
def test_decoded_cifar_is_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    decoding.convert(REAL, cache_folder())

    cifar = load("cifar10")

    assert (len(cifar.train), len(cifar.test)) == (50_000, 10_000)
    assert cifar.train.shape == (3, 32, 32)
    assert np.bincount(cifar.train.y).tolist() == [5_000] * 10
    # the channel means that everybody normalises CIFAR-10 with
    means = cifar.train.x.mean(axis=(0, 2, 3), dtype=np.float64)
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=2e-4)
