"""A person's own records that a study cannot use are refused, with their place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from support.every import every
from support.own_records import BY_CLIENT, COLUMNS, LAYOUT, SMALL, Items, arrays, filed, of, table
from support.own_study import people

from securefl.core.errors import ConfigError, DataError
from securefl.data import Dataset, array_files, tables
from securefl.data.columns import Column
from securefl.data.layout import Layout
from securefl.data.own import from_files
from securefl.data.tables import read_table

PEOPLE = people().drop(columns="hospital")
BAD_TABLES: dict[str, tuple[pd.DataFrame, Layout, str]] = {
    "no target": (PEOPLE, replace(LAYOUT, target=()), "expected `target` under"),
    "no classes": (PEOPLE, replace(LAYOUT, classes=None), "expected `classes` under"),
    "missing column": (PEOPLE.drop(columns="sex"), LAYOUT, "expected a column 'sex'.* got none"),
    "misspelt target": (PEOPLE, replace(LAYOUT, target=("il",)), "did you mean `ill`"),
    "no client column": (PEOPLE, BY_CLIENT, "expected a column 'hospital'"),
    "text": (
        PEOPLE,
        replace(LAYOUT, ignore=()),
        r"row 1, column 'name': expected a finite number, got 'person 0'",
    ),
    "unknown word": (
        PEOPLE.assign(sex="d"),
        LAYOUT,
        "row 1, column 'sex': expected one of 'f', 'm', got 'd'",
    ),
    "unknown label": (PEOPLE.assign(ill="maybe"), LAYOUT, "column 'ill': expected one of 'no', 'yes'"),
    "missing number": (PEOPLE.assign(dose=np.nan), LAYOUT, "expected a number, got none.*missing = 0"),
    "missing word": (
        PEOPLE.assign(sex=None),
        LAYOUT,
        "column 'sex': expected one of 'f', 'm', got none.*indicator = true",
    ),
    "infinity": (PEOPLE.assign(dose=np.inf), LAYOUT, "column 'dose': expected a finite number"),
    "too large": (PEOPLE.assign(dose=1e39), LAYOUT, "expected a finite number of 32 bits"),
    "dates": (
        PEOPLE.assign(dose=pd.Timestamp("2020-01-01")),
        LAYOUT,
        "expected real numbers, got datetime64",
    ),
    "lists": (PEOPLE.assign(dose=[[1.0, 2.0]] * 60), LAYOUT, "expected a finite number, got '.1.0, 2.0.'"),
    "constant target": (PEOPLE.assign(ill="no"), LAYOUT, "expected targets that differ"),
    "nothing left": (PEOPLE[["ill"]], Layout(target=("ill",), classes=2), "A record would be empty"),
    "twice": (pd.concat([PEOPLE, PEOPLE[["age"]]], axis=1), LAYOUT, "got 'age' twice"),
    "name of a column": (PEOPLE.rename(columns={"dose": "a\x1b[31m"}), LAYOUT, "printable letters"),
}


@every("case", BAD_TABLES)
def test_a_table_that_does_not_fit_is_refused_with_its_place(case: str) -> None:
    frame, layout, message = BAD_TABLES[case]
    with pytest.raises(DataError, match=f"(?s){message}"):
        table(frame, layout)


def test_the_error_of_a_word_shows_the_lines_to_add() -> None:
    with pytest.raises(DataError) as error:
        table(PEOPLE.rename(columns={"sex": "at birth"}), replace(LAYOUT, columns={"age": COLUMNS["age"]}))
    assert '[data.columns."at birth"]\n    categories = [' in str(error.value)
    assert "securefl data describe FILE --public" in str(error.value)


X, Y = arrays()
BAD_ARRAYS: dict[str, tuple[object, str]] = {
    "nan": ((np.where(X[2, 1] == X, np.nan, X), Y), "row 3, column 'x': expected finite numbers"),
    "no numbers": ((X[:, :0], Y), r"got \(20, 0\)"),
    "one axis": ((X[:, 0], Y), "expected records x of shape"),
    "lengths": ((X, Y[:3]), "expected a target for each of 20 records"),
    "no targets": ((X, np.empty((20, 0), np.int64)), r"got y of shape \(20, 0\)"),
    "texts": ((X.astype(str), Y), "expected x of numbers, got type <U"),
    "objects": ((np.array([{}] * 20)[:, None], Y), "got Python objects such as dict"),
    "ragged": (([[1.0], [1.0, 2.0]], [0, 1]), "each entry of one shape"),
    "labels": ((X, Y + 1), "row 2, column 'y': expected one of '0', '1', got"),
    "one array": (X, "expected records and targets as"),
    "masked": ((np.ma.masked_array(X, X > 1), Y), "got a masked array"),
    "no length": (sparse.csr_matrix(X), "expected a data set with a length"),
    "nothing": ([], "at least one client, got none"),
    "no records": ([(X, Y), (X[:0], Y[:0])], "client 1: expected at least one record"),
    "widths": (
        [(X, Y), (X[:, :2], Y)],
        r"client 1: expected records of shape \(3,\).* got records of shape \(2,\)",
    ),
    "a number": (3, "expected arrays"),
    "text": ("people.csv", "expected arrays"),
    "items": (Items(X, Y).x.tolist(), "client 0"),
}


@every("case", BAD_ARRAYS)
def test_arrays_that_do_not_fit_are_refused_with_their_place(case: str) -> None:
    thing, message = BAD_ARRAYS[case]
    with pytest.raises(DataError, match=message):
        of(thing)


@every("ids", [(1, "1"), (1.0, "1.0"), ("ann", "Ann")])
def test_no_client_is_lost_to_another_whose_id_looks_alike(ids: tuple[object, object]) -> None:
    one, other = ids
    with pytest.raises(ConfigError, match=f"the clients of mine that differ .* got {one!r} and {other!r}"):
        of({one: (X[:8], Y[:8]), other: (X[8:], Y[8:])})
    remedied = of({one: (X[:8], Y[:8]), "a name of its own": (X[8:], Y[8:])})
    assert len(remedied.clients) == 2


def test_nothing_beside_x_and_y_is_left_out_in_silence() -> None:
    with pytest.raises(DataError, match=r"mine: expected the arrays .* got 'weights' besides\. Leave"):
        of({"x": X, "y": Y, "weights": np.ones(20)})
    assert len(of({"x": X, "y": Y}).split.train)


def test_clients_called_x_and_y_are_not_taken_for_arrays() -> None:
    clients = {"x": (X[:8], Y[:8]), "y": (X[8:14], Y[8:14]), "z": (X[14:], Y[14:])}
    with pytest.raises(DataError, match=r"got 'z' besides.* of clients, pass a list of their records"):
        of(clients)
    assert len(of([*clients.values()]).clients) == 3
    assert len(of({f"client {name}": own for name, own in clients.items()}).clients) == 3


@every("dose", [(100.0, 200.0), (-200.0, -100.0)])
def test_targets_that_their_range_made_the_same_name_the_range(dose: tuple[float, float]) -> None:
    layout = Layout(target=("dose",), classes=0, columns={"dose": Column(range=(0, 1))})
    frame = pd.DataFrame({"a": range(20), "dose": np.linspace(*dose, 20)})
    with pytest.raises(DataError, match=r"differ.* the `range` of 'dose', \[0, 1\], .*Widen it"):
        table(frame, layout)
    wide = replace(layout, columns={"dose": Column(range=(-200, 200))})
    assert table(frame, wide).split.train.task == "regression"
    with pytest.raises(DataError, match="Check that `target` names the right column"):
        table(frame.assign(dose=7.0), wide)


@every("key", ["columns", "ignore"])
def test_what_is_said_of_columns_is_not_lost_on_arrays(key: str) -> None:
    said = {"columns": COLUMNS, "ignore": ("name",)}[key]
    with pytest.raises(ConfigError, match=f"Expected no `{key}` for mine, arrays"):
        of((X, Y), replace(Layout(classes=2), **{key: said}))


@every(
    ("layout", "said"),
    [
        (Layout(classes=3), "Expected classes = 2 for mine"),
        (Layout(client_column="hospital"), "Expected no `client_column`"),
    ],
)
def test_a_dataset_says_by_itself_what_it_is(layout: Layout, said: str) -> None:
    found = Dataset(name="mine", x=X.astype(np.float32), y=Y.astype(np.int64), classes=2)
    assert of(found, Layout()).split.train.classes == of(found, SMALL).split.train.classes == 2
    with pytest.raises(ConfigError, match=said):
        of(found, layout)


def test_an_array_of_clients_names_each_one() -> None:
    layout = Layout(classes=2, client_column="hospital")
    whose = np.repeat([1.0, 2.0, 10.0, 3.0], 5)
    assert of({"x": X, "y": Y, "hospital": whose}, layout).clients == ("1", "2", "3", "10")
    whose[3] = np.nan
    with pytest.raises(DataError, match="row 4, column 'hospital'"):
        of({"x": X, "y": Y, "hospital": whose}, layout)


def test_a_model_is_not_tested_on_the_file_it_was_trained_on(tmp_path: Path) -> None:
    PEOPLE.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(ConfigError, match="its training records"):
        from_files(tmp_path / "a.csv", tmp_path / "." / "a.csv", LAYOUT)


def test_whole_numbers_as_targets_need_their_number() -> None:
    with pytest.raises(DataError, match="expected `classes` under"):
        of((X, Y), Layout())
    assert of((X, Y / 2), Layout()).split.train.classes == 0
    assert of((X, Y), Layout(classes=0)).split.train.y.dtype == np.float32


def test_clients_with_other_columns_are_named(tmp_path: Path) -> None:
    PEOPLE.to_csv(tmp_path / "a.csv", index=False)
    PEOPLE.drop(columns="dose").to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(DataError, match=r"b\.csv: .*'dose'.* got none"):
        filed(tmp_path)
    PEOPLE.assign(more=1).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(DataError, match=r"b\.csv: .*'more' besides"):
        filed(tmp_path)


BAD_FILES: dict[str, tuple[str, bytes, str]] = {
    "empty": ("a.csv", b"", "got an empty file"),
    "other bytes": ("a.csv", b"\xff\xfe\x00x", "UTF-8"),
    "long line": ("a.csv", b"a,b\n1,2\n1,2,3\n", "line 3: expected 2 cells, got 3"),
    "short line": ("a.csv", b"a,b\n1,2\n1\n", "line 3: expected 2 cells, got 1"),
    "semicolons": ("a.csv", b"a;b\n1;2\n", 'csv = { delimiter = ";" }'),
    "no parquet": ("a.parquet", b"PAR1 and more", "expected a Parquet file"),
    "no npz": ("a.npz", b"PK\x03\x04 and more", "expected arrays as .npz"),
    "pickle": ("a.npz", b"\x80\x04K\x01.", "expected arrays as .npz"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_damaged_file_is_named(case: str, tmp_path: Path) -> None:
    name, content, message = BAD_FILES[case]
    (tmp_path / name).write_bytes(content)
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / name)


def test_a_pickle_inside_arrays_is_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{}], object), y=np.zeros(1))
    with pytest.raises(DataError, match="without pickles"):
        read_table(tmp_path / "a.npz")


@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_what_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    match suffix:
        case ".csv":
            path.write_bytes(b"a,b\n" + b"1,2\n" * 20_000)
        case ".npz":
            np.savez_compressed(path, x=np.zeros((2**14, 8)), y=np.zeros(2**14))
        case _:
            pytest.importorskip("pyarrow")
            pd.DataFrame({"a": np.zeros(2**14), "b": 0}).to_parquet(path)
    monkeypatch.setattr(array_files if suffix == ".npz" else tables, "LARGEST", 2**16)
    with pytest.raises(DataError, match="at most 65,536 bytes"):
        read_table(path)


@every(
    ("files", "message"),
    [
        ((), "expected 1 to"),
        (("a.csv", "b.npz"), "files of one kind"),
        (("a.csv", "b.txt"), "got b.txt"),
        (("a.csv", "more/a.csv"), "got more"),
    ],
)
def test_a_folder_of_other_things_is_refused(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=message):
        from_files(tmp_path, None, LAYOUT)


@every(
    "settings",
    [
        {"range": (1, 1)},
        {"range": (0, float("inf"))},
        {"range": (0, 1), "categories": ("a",)},
        {"categories": ()},
        {"categories": ("a", "a")},
        {"categories": (1, "1")},
        {"categories": ("a", "b"), "missing": "c"},
        {"missing": "none"},
        {"missing": float("nan")},
        {"indicator": True},
    ],
)
def test_a_declaration_that_contradicts_itself(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        Column(**settings)
