"""The readers accept exactly their format and name the file in every refusal."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.every import every

from securefl.core.errors import DataError
from securefl.data.parse import GAS_COLUMNS, IDX_INT, IDX_UBYTE, parse_cifar, parse_gas, read_idx

Bytes = NDArray[np.uint8]


def idx(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content))
    return path


def header(kind: int, *shape: int) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


def test_idx_bytes_keep_their_order(tmp_path: Path) -> None:
    path = idx(tmp_path / "f.gz", header(IDX_UBYTE, 2, 2, 3) + bytes(range(12)))

    array = read_idx(path, kind=IDX_UBYTE, dimensions=3)

    assert array.dtype == np.uint8
    assert array.tolist() == [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]]


def test_idx_integers_are_big_endian_and_signed(tmp_path: Path) -> None:
    path = idx(tmp_path / "f.gz", header(IDX_INT, 1, 2) + struct.pack(">ii", 258, -3))

    array = read_idx(path, kind=IDX_INT, dimensions=2)

    assert array.tolist() == [[258, -3]]
    assert array.dtype == np.dtype(np.int32)


@every(
    ("content", "expected"),
    [
        (header(0x09, 2) + b"ab", "type 0x08"),
        (b"\x01" + header(IDX_UBYTE, 2)[1:] + b"ab", "header"),
        (header(IDX_UBYTE, 2, 1) + b"ab", "1 dimensions"),
        (header(IDX_UBYTE, 2)[:6], "header"),
        (b"", "header"),
        (header(IDX_UBYTE, 3) + b"ab", "only 2"),
        (header(IDX_UBYTE, 2) + b"abc", "more"),
    ],
)
def test_other_idx_files_are_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = idx(tmp_path / "f.gz", content)

    with pytest.raises(DataError, match=expected) as caught:
        read_idx(path, kind=IDX_UBYTE, dimensions=1)

    assert str(path) in str(caught.value)


def test_a_huge_claimed_size_is_refused_before_any_memory_is_taken(tmp_path: Path) -> None:
    path = idx(tmp_path / "f.gz", header(IDX_UBYTE, 2**31, 2**31, 2**31) + bytes(1 << 22))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="claims"):
            read_idx(path, kind=IDX_UBYTE, dimensions=3)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@every("spoil", [lambda whole: b"no gzip", lambda whole: whole[:-9]])
def test_a_damaged_gzip_stream_is_a_data_error(tmp_path: Path, spoil: object) -> None:
    path = tmp_path / "f.gz"
    path.write_bytes(spoil(gzip.compress(header(IDX_UBYTE, 4) + b"abcd")))  # type: ignore[operator]

    with pytest.raises(DataError, match="damaged"):
        read_idx(path, kind=IDX_UBYTE, dimensions=1)


def cifar_record(label: int, red: int, green: int, blue: int) -> bytes:
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def test_cifar_records_are_a_label_and_three_planes() -> None:
    images, labels = parse_cifar(cifar_record(3, 1, 2, 3) + cifar_record(9, 4, 5, 6), "batch")

    assert labels.tolist() == [3, 9]
    assert images.shape == (2, 3, 32, 32)
    assert images[:, :, 31, 0].tolist() == [[1, 2, 3], [4, 5, 6]]


@every(
    ("content", "expected"),
    [
        (b"", "3073"),
        (cifar_record(1, 1, 1, 1)[:-1], "3073"),
        (cifar_record(1, 1, 1, 1) + b"x", "3073"),
        (cifar_record(10, 1, 1, 1), "labels 0 to 9"),
    ],
)
def test_other_cifar_files_are_refused(content: bytes, expected: str) -> None:
    with pytest.raises(DataError, match=f"batch: .*{expected}"):
        parse_cifar(content, "batch")


HEADER = ",".join(GAS_COLUMNS)
ROW = "4.5,1018.7,83.6,3.5,23.9,1086.2,549.8,134.6,11.8,0.3,81.9"


def test_gas_rows_are_numbers_in_column_order() -> None:
    rows = parse_gas(f"{HEADER}\n{ROW}\n", "gt.csv")

    assert rows.shape == (1, 11)
    assert (rows[0, 0], rows[0, -2], rows[0, -1]) == (4.5, 0.3, 81.9)


@every(
    ("text", "expected"),
    [
        ("", "header"),
        (f"{HEADER.replace('AT,AP', 'AP,AT')}\n{ROW}", "header"),
        (f"{HEADER}\n{ROW}\n{ROW},1", "line 3: expected 11 columns, got 12"),
        (f"{HEADER}\n\n", "line 2: expected 11 columns, got 1"),
        (f"{HEADER}\n{ROW.replace('81.9', 'n/a')}", "line 2: expected numbers"),
        (f"{HEADER}\n{ROW.replace('0.3', 'nan')}", "line 2: .* CO, got nan"),
        (f"{HEADER}\n{ROW.replace('81.9', '1e999')}", "NOX, got inf"),
    ],
)
def test_other_gas_files_are_refused(text: str, expected: str) -> None:
    with pytest.raises(DataError, match=f"gt.csv.*{expected}"):
        parse_gas(text, "gt.csv")
