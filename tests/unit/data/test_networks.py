"""Features in files: pairs of .npy, the network that a file names, and what is refused of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.own_records import arrays, filed

from securefl.core.errors import ConfigError, DataError
from securefl.data.layout import Layout
from securefl.data.networks import FORMAT, agreed, network_of, one_network, outside
from securefl.data.own import from_files
from securefl.data.tables import read_records, read_table, targets_in

LAYOUT = Layout(classes=2)


def pair(folder: Path, name: str, seed: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    x, y = arrays(seed=seed)
    np.save(folder / f"{name}x.npy", x)
    np.save(folder / f"{name}y.npy", y)
    return folder / f"{name}x.npy"


def archive(path: Path, network: Any = None, seed: int = 0) -> Path:
    x, y = arrays(seed=seed)
    np.savez(path, x=x, y=y, **({} if network is None else {"network": np.array(network)}))
    return path


def test_a_pair_of_npy_is_read_with_a_test_part(tmp_path: Path) -> None:
    source, test = pair(tmp_path, "train-"), pair(tmp_path, "test-", seed=1)
    made = filed(source, LAYOUT, test)
    assert np.allclose(made.split.train.x, arrays()[0])
    assert np.array_equal(made.split.test.y, arrays(seed=1)[1])
    assert made.split.train.x.dtype == np.float32


def test_a_folder_of_pairs_is_a_client_for_each(tmp_path: Path) -> None:
    for k in range(3):
        pair(tmp_path / "all", f"client{k}-", seed=k)
    made = filed(tmp_path / "all", LAYOUT)
    assert made.clients == ("client0-x.npy", "client1-x.npy", "client2-x.npy")
    assert made.split.train.groups is not None


def test_a_test_pair_in_the_folder_is_no_client(tmp_path: Path) -> None:
    for name in ("a-", "b-", "test-"):
        pair(tmp_path / "all", name)
    assert [*from_files(tmp_path / "all", tmp_path / "all" / "test-x.npy", LAYOUT).parts] == [
        "a-x.npy",
        "b-x.npy",
    ]


def test_capitals_stay_capitals(tmp_path: Path) -> None:
    pair(tmp_path, "")
    (tmp_path / "x.npy").rename(tmp_path / "X.npy")
    (tmp_path / "y.npy").rename(tmp_path / "Y.npy")
    assert len(read_table(tmp_path / "X.npy").x) == 20  # type: ignore[union-attr]


def test_what_is_no_pair_is_refused(tmp_path: Path) -> None:
    path = pair(tmp_path, "a-")
    with pytest.raises(ConfigError, match=r"targets of a-x\.npy"):
        read_table(tmp_path / "a-y.npy")
    np.save(tmp_path / "data.npy", arrays()[0])
    with pytest.raises(ConfigError, match=r"data-x\.npy"):
        read_table(tmp_path / "data.npy")
    (tmp_path / "a-y.npy").unlink()
    with pytest.raises(DataError, match=r"a-y\.npy, got none"):
        read_table(path)
    np.savez(tmp_path / "a-y.npz", y=arrays()[1])
    (tmp_path / "a-y.npz").rename(tmp_path / "a-y.npy")
    with pytest.raises(DataError, match="got an archive"):
        read_table(path)
    np.save(tmp_path / "a-y.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(DataError, match="without pickles"):
        read_table(path)


def test_files_say_their_network(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": [1.0], "y": [0]})
    parquet.write_table(table.replace_schema_metadata({"network": "B"}), tmp_path / "a.parquet")
    parquet.write_table(table, tmp_path / "b.parquet")
    assert network_of(archive(tmp_path / "a.npz", "A, trained on C")) == "A, trained on C"
    assert network_of(archive(tmp_path / "b.npz")) == ""
    assert network_of(tmp_path / "a.parquet") == "B"
    assert network_of(tmp_path / "b.parquet") == ""
    assert network_of(tmp_path / "a.csv") == ""


@every("bad", ["", " ", "a\x1b[31m", "a" * 401, "a" * 5000, 3.0, ["A", "B"], b"A", {"A": 1}])
def test_a_network_s_name_that_is_no_short_text_is_refused(bad: Any, tmp_path: Path) -> None:
    archive(tmp_path / "a.npz", bad)
    with pytest.raises(DataError, match=r"a\.npz: expected "):
        network_of(tmp_path / "a.npz")


@every("came", ["securefl 9 features", "securefl 8 model", "features", "\ud800", ""])
@every("read", [read_table, read_records, targets_in])
def test_features_of_another_version_are_refused(
    came: str, read: Callable[[Path], object], tmp_path: Path
) -> None:
    x, y = arrays()
    path = tmp_path / "f.npz"
    np.savez(path, x=x, y=y, securefl=np.array(FORMAT))
    read(path)
    np.savez(path, x=x, y=y, securefl=np.array(came))
    stated = "features of version 9" if "9" in came else "version"
    with pytest.raises(DataError, match=rf"features of version 8, got .*{stated}.*compute them again"):
        read(path)


def test_features_of_two_networks_are_refused(tmp_path: Path) -> None:
    files = [archive(tmp_path / f"{k}.npz", network) for k, network in enumerate(("A", None, "A", "B"))]
    assert one_network(files[:3]) == "A"
    with pytest.raises(DataError, match=r"3\.npz: .* by 'B'"):
        from_files(files[0], files[3], LAYOUT)
    with pytest.raises(ConfigError, match="'A', as f says, got 'B'"):
        agreed("A", "B", "f")


def test_the_sentence_names_the_network_or_says_that_nothing_does() -> None:
    assert outside("A", "f.npz").startswith(
        "The features in f.npz were computed by A; its training data are outside"
    )
    assert "its training data are outside epsilon; name it" in outside("", "f.npz")
    assert outside("none", "f.npz") == ""


def embeddings(path: Path, rows: list[Any], kind: Any = None) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"e": pyarrow.array(rows, kind), "ill": [k % 2 for k in range(len(rows))]}
    parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("fixed", [True, False])
def test_a_parquet_of_lists_is_a_client_s_features(fixed: bool, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    (tmp_path / "all").mkdir()
    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)
    kind = pyarrow.list_(pyarrow.float32(), 3) if fixed else pyarrow.list_(pyarrow.float32())
    for k in range(2):
        embeddings(tmp_path / "all" / f"{k}.parquet", x[k].tolist(), kind)
    layout = Layout(target=("ill",), classes=2)
    test = embeddings(tmp_path / "test.parquet", x[0].tolist(), kind)
    made = filed(tmp_path / "all", layout, test)
    assert np.array_equal(made.split.train.x, x.reshape(12, 3))
    assert made.split.train.groups is not None


@every("rows", [[[1.0], [1.0, 2.0]], [[1.0], None], [[], []]])
def test_lists_of_several_lengths_are_refused(rows: list[Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"one length|1 to 100,000"):
        read_table(embeddings(tmp_path / "a.parquet", rows))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = [pyarrow.array([0.0, 1.0]), pyarrow.array([0.0, 1.0]), pyarrow.array([0, 1])]
    parquet.write_table(pyarrow.Table.from_arrays(columns, names=["e", "e", "ill"]), tmp_path / "a.parquet")
    layout = Layout(target=("ill",), classes=2)
    with pytest.raises(DataError, match="got 'e' twice"):
        filed(tmp_path / "a.parquet", layout)


def test_a_list_with_a_value_that_is_not_finite_is_named(tmp_path: Path) -> None:
    path = embeddings(tmp_path / "a.parquet", [[1.0, 2.0], [float("inf"), 1.0], [1.0, 1.0]])
    layout = Layout(target=("ill",), classes=2)
    with pytest.raises(DataError, match=r"row 2, column 'e\[0\]'"):
        filed(path, layout)


def test_lists_of_words_or_lists_are_refused(tmp_path: Path) -> None:
    layout = Layout(target=("ill",), classes=2)
    for rows in ([["a", "b"], ["c", "d"]], [[[1.0]], [[2.0]]], [[1.0, None], [1.0, 2.0]]):
        path = embeddings(tmp_path / "a.parquet", rows)
        with pytest.raises(DataError, match=r"expected a (finite )?number"):
            filed(path, layout)


class Harmful:
    """A pickle of it makes a folder when it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.mkdir, (self._path,)


def test_a_pickle_in_a_network_s_name_is_not_run(tmp_path: Path) -> None:
    archive(tmp_path / "a.npz", [Harmful(tmp_path / "made")])
    with pytest.raises(DataError):
        network_of(tmp_path / "a.npz")
    assert not (tmp_path / "made").exists()
