"""Arrays from files that a command names: regular files of bounded size, and numbers alone."""

from __future__ import annotations

import io
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support.bad_files import BAD, put
from support.every import every

from securefl.core.errors import DataError
from securefl.data.array_files import LARGEST
from securefl.storage.own_code import CALLER
from securefl.training.from_files import array_of, model_of, records_of

NUMBERS = np.arange(12.0).reshape(4, 3)


def npy(array: np.ndarray) -> bytes:
    target = io.BytesIO()
    np.save(target, array)
    return target.getvalue()


@every("version", [(1, 0), (2, 0)])
@every("dtype", ["<f8", ">f4", "<i2", "u1"])
@every("order", ["C", "F"])
def test_arrays_of_numbers_are_read(version: tuple[int, int], dtype: str, order: str, tmp_path: Path) -> None:
    array = np.asarray(NUMBERS.astype(dtype), order=order)  # type: ignore[call-overload]
    with (tmp_path / "d.npy").open("wb") as target:
        np.lib.format.write_array(target, array, version=version)
    np.testing.assert_array_equal(array_of(tmp_path / "d.npy"), array)


@every("name", ["d.npy", "d.csv"])
@every("what", BAD)
def test_what_is_no_file_is_refused_by_name(name: str, what: str, tmp_path: Path) -> None:
    said = put(tmp_path / name, what)
    with pytest.raises(DataError) as refused:
        records_of(str(tmp_path / name), CALLER)
    assert str(refused.value).startswith(f"{tmp_path / name}: Expected ")
    assert said in str(refused.value)


@every("name", ["d.npy", "d.csv"])
def test_a_file_beyond_the_limit_is_refused_unread(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as target:
        target.write(npy(NUMBERS) if name == "d.npy" else b"1,2\n")
        target.truncate(LARGEST + 1)  # of zeros, which take no space
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="got 2,147,483,649"):
            records_of(str(tmp_path / name), CALLER)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def claiming(shape: str) -> bytes:
    """A .npy whose header claims another shape than its 96 bytes of numbers have."""
    raw = npy(NUMBERS)
    return raw.replace(b"(4, 3), }" + b" " * (len(shape) - 6), shape.encode() + b", }", 1)


@every("shape", ["(1099511627776, 3)", "(4, 4)", "(4, 2)", "(0, 3)"])
def test_a_header_that_claims_more_or_less_is_refused_before_memory_is_taken(
    shape: str, tmp_path: Path
) -> None:
    (tmp_path / "d.npy").write_bytes(claiming(shape))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="behind the header, got 96"):
            array_of(tmp_path / "d.npy")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


class Opened:
    """A pickle that would run code."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("a pickle was run",))


def objects() -> bytes:
    target = io.BytesIO()
    np.lib.format.write_array_header_1_0(target, {"descr": "|O", "fortran_order": False, "shape": (1,)})
    return target.getvalue() + pickle.dumps([Opened()])


CONTENT = {
    "empty": ("d.npy", b"", "got an empty file"),
    "objects": ("d.npy", objects(), "got other content: objects, which only a pickle can hold"),
    "a pickle": ("d.npy", pickle.dumps(Opened()), "got other content"),
    "an archive": ("d.npy", b"PK\x03\x04" + bytes(200), "got an archive. Give it the ending .npz"),
    "words": ("d.npy", npy(np.array(["a", "b"])), "Expected an array of numbers, got one of type <U1"),
    "cut": ("d.npy", npy(NUMBERS)[:-1], "the file is damaged or cut"),
    "cut in its header": ("d.npy", npy(NUMBERS)[:30], "got other content"),
}


@every("what", CONTENT)
def test_other_content_is_refused_by_name_and_none_of_it_runs(what: str, tmp_path: Path) -> None:
    name, content, said = CONTENT[what]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as refused:
        array_of(tmp_path / name)
    assert str(refused.value).startswith(f"{tmp_path / name}: Expected ")
    assert said in str(refused.value)


def test_a_record_beyond_a_models_columns_names_the_file_that_declares_them(tmp_path: Path) -> None:
    """The model of a TOML may be untrained: its rule is the file's."""
    path, model = tmp_path / "d.csv", tmp_path / "model.toml"
    path.write_text("job\nnurse\n")
    declared = (
        '[model]\nkind = "mlp"\n[weights]\noutputs = 2\n[data.columns]\njob = { categories = ["smith"] }\n'
    )
    model.write_text(declared)
    with pytest.raises(DataError, match="nurse") as refused:
        model_of(model, CALLER).encode(records_of(str(path), CALLER), "d.csv")
    assert f"Declare it under [data.columns] of {model}" in str(refused.value)
    assert "trained" not in str(refused.value)
    model.write_text(declared.replace('"smith"', '"smith", "nurse"'))
    assert model_of(model, CALLER).encode(records_of(str(path), CALLER), "d.csv").tolist() == [[0.0, 1.0]]


@every("name", ["long", "1"])
def test_long_headers_are_shortened(name: str, tmp_path: Path) -> None:
    path, model = tmp_path / "d.csv", tmp_path / "model.toml"
    path.write_text(f"{name * (100_000 // len(name))}\n1\n")
    model.write_text('[model]\nkind = "mlp"\n[weights]\noutputs = 2\n')
    with pytest.raises(DataError, match="…") as refused:
        model_of(model, CALLER).encode(records_of(str(path), CALLER), "d.csv")
    assert len(str(refused.value)) < 5000
