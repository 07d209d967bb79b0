"""Damage that zipfile, numpy and pyarrow report by errors of their own: every reader refuses it."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.every import every

from securefl.core.errors import DataError
from securefl.data.array_files import npy, npz
from securefl.data.images import notes_on
from securefl.data.networks import network_of
from securefl.data.tables import read_table

READERS: dict[str, Callable[[Path], object]] = {"a table": read_table, "a name": network_of}


def damaged(raw: bytes) -> dict[str, bytes]:
    """An archive of compressed arrays, each damage in its first member."""
    directory = raw.index(b"PK\1\2")

    def at(*changes: tuple[int, int]) -> bytes:
        made = bytearray(raw)
        for place, value in changes:
            made[place] = value
        return bytes(made)

    data = 30 + raw[26] + raw[28]
    return {
        "no deflated stream": at((data, 0xFF)),
        "an unknown method": at((8, 99), (directory + 10, 99)),
        "a later version": at((directory + 6, 200)),
        "encrypted": at((6, 1), (directory + 8, 1)),
    }


KINDS = damaged(b"PK" + bytes(40) + b"PK\1\2" + bytes(40))


@every("kind, reader", product(KINDS, READERS))
def test_a_damaged_archive_is_refused(kind: str, reader: str, tmp_path: Path) -> None:
    path, first = tmp_path / "records.npz", "network" if reader == "a name" else "x"
    arrays = {"network": np.array("a network" * 9), "x": np.ones((30, 2)), "y": np.zeros(30)}
    np.savez_compressed(path, **{first: arrays[first]} | arrays)
    READERS[reader](path)
    path.write_bytes(damaged(path.read_bytes())[kind])
    with pytest.raises(DataError, match="xpected"):
        READERS[reader](path)


HEADERS = [
    *(b"{'descr': '<f8', (", b'{\'descr\': """', b"\t\0", b"[" * 3000, b"{[1]: 3}"),
    b"{'descr': '<i8',b'fortran_order': False, 'shape': (3,)}",
    b"{'descr': '<i8','fortran_order': False, 'shape': (%d,)}" % 2**70,
    b"{'descr': '<i8','fortran_order': False, 'shape': (2000000000,)}",
    b"{'descr': '<i8','fortran_order': False, 'shape': (True,)}",
]


@every("header", HEADERS)
@every("packed", [False, True])
def test_a_damaged_header_of_an_array_is_refused(header: bytes, packed: bool, tmp_path: Path) -> None:
    raw = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(80)
    path = tmp_path / "x"
    if packed:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", raw)
    else:
        path.write_bytes(raw)
    with pytest.raises(DataError, match=r"xpected (an array|arrays)"):
        _ = npz(path, ["x"]) if packed else npy(path)


@every("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_what_numpy_does_not_pack_so_is_not_unpacked(method: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    with zipfile.ZipFile(tmp_path / "a.npz") as known, zipfile.ZipFile(tmp_path / "b", "w", method) as other:
        other.writestr("x.npy", known.read("x.npy"))
    with pytest.raises(DataError, match="another method"):
        npz(tmp_path / "b", ["x"])


def test_a_column_of_no_known_repetition_is_refused(tmp_path: Path) -> None:
    """pyarrow finds it by the sizes of its histograms. Its metadata end the process."""
    path = tmp_path / "records.parquet"
    pd.DataFrame({"a": [1.5, 2.0]}).to_parquet(path)
    double, optional, named = b"\x15\x0a", b"\x25\x02", b"\x18\x01a"
    raw = path.read_bytes()
    assert raw.count(double + optional + named) == 1
    path.write_bytes(raw.replace(double + optional + named, double + b"\x25\x0a" + named))
    with pytest.raises(DataError, match="expected a Parquet file"):
        read_table(path)


def test_rows_without_values_take_no_memory(tmp_path: Path) -> None:
    """pyarrow took 14 GB for 46 billion rows that a file of 2 kB claims, and gave the two that are there."""
    parquet, path = pytest.importorskip("pyarrow.parquet"), tmp_path / "records.parquet"
    pd.DataFrame({"a": [1.5, 2.0]}).to_parquet(path)
    size = parquet.read_metadata(path).row_group(0).total_byte_size
    raw, known = path.read_bytes(), b"\x16" + varint(2 * size) + b"\x16" + varint(2 * 2)
    assert raw.count(known) == 1
    footer = raw[-8 - int.from_bytes(raw[-8:-4], "little") : -8]
    other = footer.replace(known, known[:-1] + varint(2 * 2**35))
    path.write_bytes(raw[: -8 - len(footer)] + other + len(other).to_bytes(4, "little") + b"PAR1")
    assert parquet.read_metadata(path).row_group(0).num_rows == 2**35
    with pytest.raises(DataError, match="more rows than values"):
        read_table(path)


def varint(number: int) -> bytes:
    """As Thrift's compact protocol writes it. Of an integer with a sign, number is twice it."""
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    return bytes([*made, number])


CUT = {
    "in a frame's data": "474946383761030002008100000900070008000040000008002c00000000030002"
    "0000000008002c000000003b",
    "before a frame's bits": "474946383761030000004700"
    "00002c00000000030002"
    "0000f80000002c0000ff03fff9b6b9c7c79f0203000108",
}


@every("cut", CUT)
def test_an_image_that_ends_within_a_frame_is_refused(cut: str, tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    path.write_bytes(bytes.fromhex(CUT[cut]))
    with pytest.raises(DataError, match=r"a\.gif"):
        notes_on([path])
