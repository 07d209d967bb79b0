"""A cell has the words of its own type in each format, whatever stands in the record beside it."""

from __future__ import annotations

import csv
import datetime
import io
import string
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.every import every
from support.own_records import filed, of

from securefl.core.errors import DataError
from securefl.data.columns import Column, word_of
from securefl.data.in_memory import given as brought
from securefl.data.layout import Layout
from securefl.data.own import Prepared, from_files, prepare
from securefl.data.sides import Sides

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

VALUES: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(2**53, 2**64 - 1),
    "string": st.text(string.ascii_letters + string.digits + "\"',;é ", min_size=1, max_size=6).filter(
        str.strip
    ),
    "bool": st.booleans(),
    "date32[day]": st.dates(),
    "decimal128(20, 2)": st.decimals(-(10**12), 10**12, places=2),
}
KINDS: Final = {
    **{kind: getattr(pyarrow, kind)() for kind in ("int64", "uint64", "string")},
    "bool": pyarrow.bool_(),
    "date32[day]": pyarrow.date32(),
    "decimal128(20, 2)": pyarrow.decimal128(20, 2),
}
NULLABLE: Final = {"int64": "Int64", "uint64": "UInt64", "string": "string", "bool": "boolean"}
NAMES: Final = ("feature", "label", "client")
Rows = Sequence[tuple[Any, Any, Any]]
KEPT: Final[Mapping[str, Any]] = {"share": 0.0, "claimed": True}
"""Of records under a finite epsilon, all in the training part."""


@st.composite
def tables(draw: Any) -> tuple[str, list[Any], list[tuple[Any, Any, Any]], tuple[Any, Any, Any], int]:
    """The type of all cells, its values, records of them, an odd record and its place."""
    kind = draw(st.sampled_from(sorted(VALUES)))
    values = draw(st.lists(VALUES[kind], min_size=2, max_size=3, unique_by=word_of))
    cells = st.sampled_from(values)
    rows = draw(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=5))
    odd = draw(st.tuples(*[cells | st.none()] * 3).filter(lambda row: None in row))
    return kind, values, rows, odd, draw(st.integers(0, len(rows)))


def layout_of(values: Sequence[Any]) -> Layout:
    words = tuple(map(word_of, values))
    return Layout(
        target=("label",),
        classes=words,
        client_column="client",
        clients=words,
        columns={"feature": Column(categories=words)},
    )


def arrow(rows: Rows, kind: str) -> Any:
    columns = zip(*rows, strict=True)
    return pyarrow.table(
        {name: pyarrow.array(own, KINDS[kind]) for name, own in zip(NAMES, columns, strict=True)}
    )


def of_file(write: Callable[[Path, Rows, str], object], suffix: str) -> Callable[[Rows, str, Layout], Any]:
    def made(rows: Rows, kind: str, layout: Layout) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"people{suffix}"
            write(path, rows, kind)
            return from_files(path, None, layout, lenient=True)

    return made


def line(cells: Sequence[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL).writerow("" if cell is None else str(cell) for cell in cells)
    return text.getvalue().encode()


def of_object(make: Callable[[Rows, str], object]) -> Callable[[Rows, str, Layout], Any]:
    return lambda rows, kind, layout: brought(make(rows, kind), layout, "people")


class Face:
    """A Hugging Face data set's columns. Its numpy has one type for a column, as theirs has."""

    def __init__(self, table: Any, features: Mapping[str, Any] | None = None) -> None:
        self.table, self.kind = table, None
        self.features = features or {name: type("Value", (), {})() for name in table.column_names}

    @property
    def column_names(self) -> list[str]:
        return list(self.table.column_names)

    def with_format(self, kind: Any) -> Face:
        made = Face(self.table, self.features)
        made.kind = kind
        return made

    def __getitem__(self, _all: slice) -> Mapping[str, Any]:
        if self.kind is None:
            return dict(self.table.to_pydict())
        return {name: self.table[name].to_pandas().to_numpy() for name in self.column_names}


def of_polars(rows: Rows, kind: str) -> object:
    return pytest.importorskip("polars").from_arrow(arrow(rows, kind))


def of_pandas(rows: Rows, kind: str) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(NAMES), dtype=object).astype(NULLABLE.get(kind, object))


def of_categories(rows: Rows, _kind: str) -> pd.DataFrame:
    """Categories of numpy's own integers, as `astype("category")` makes of whole columns."""
    columns = dict(zip(NAMES, zip(*rows, strict=True), strict=True))
    words = {name: [cell for cell in dict.fromkeys(own) if cell is not None] for name, own in columns.items()}
    return pd.DataFrame({name: pd.Categorical(own, pd.Index(words[name])) for name, own in columns.items()})


FORMATS: Final[Mapping[str, Callable[[Rows, str, Layout], Any]]] = {
    "csv": of_file(lambda path, rows, _: path.write_bytes(b"".join(map(line, (NAMES, *rows)))), ".csv"),
    "parquet": of_file(lambda path, rows, kind: parquet.write_table(arrow(rows, kind), path), ".parquet"),
    "parquet of categories": of_file(
        lambda path, rows, kind: parquet.write_table(
            pyarrow.table(
                {name: own.dictionary_encode() for name, own in zip(NAMES, arrow(rows, kind), strict=True)}
            ),
            path,
        ),
        ".parquet",
    ),
    "pandas": of_object(of_pandas),
    "pandas categories": of_object(of_categories),
    "polars": of_object(of_polars),
    "Hugging Face": of_object(lambda rows, kind: Face(arrow(rows, kind))),
}


def read(form: str, rows: Rows, kind: str, layout: Layout) -> Prepared:
    found = FORMATS[form](rows, kind, layout)
    return prepare(found, layout, name="people", sides=Sides(0), share=0.0, claimed=True)


def records_of(made: Prepared) -> list[tuple[bytes, bytes, int]]:
    train = made.split.train
    assert train.groups is not None
    return [
        (x.tobytes(), y.tobytes(), int(who)) for x, y, who in zip(train.x, train.y, train.groups, strict=True)
    ]


@every("form", FORMATS)
@settings(max_examples=25)
@given(case=tables())
def test_a_record_reads_alike_beside_an_odd_one(form: str, case: Any) -> None:
    kind, values, rows, odd, place = case
    layout = layout_of(values)
    expected = [
        (
            np.eye(len(values), dtype=np.float32)[values.index(feature)].tobytes(),
            np.int64(values.index(label)).tobytes(),
            values.index(client),
        )
        for feature, label, client in rows
    ]
    assert records_of(read(form, rows, kind, layout)) == expected
    found = records_of(read(form, [*rows[:place], odd, *rows[place:]], kind, layout))
    # Only a record without a client is nobody's.
    assert len(found) == len(rows) + (odd[2] is not None)
    assert [*found[:place], *found[place + (odd[2] is not None) :]] == expected


GOOD: Final = [("a", 0, "x"), ("b", 1, "y"), ("b", 0, "x")]
LAYOUT: Final = Layout(
    target=("label",),
    classes=2,
    client_column="client",
    clients=("x", "y"),
    columns={"feature": Column(categories=("a", "b"), missing="a", indicator=True)},
)


def lines_read(folder: Path, lines: Sequence[bytes], *, lenient: bool = True) -> Prepared:
    path = folder / "people.csv"
    path.write_bytes(b"".join(lines))
    return filed(path, LAYOUT, share=0.0, claimed=lenient)


BROKEN: Final = {
    "a cell too many": b"a,0,x,1\n",
    "a cell too few": b"a,0\n",
    "no UTF-8": b"\xff,0,x\n",
    "an open quote": b'"a,0,x\n',
    "a quote inside": b'"a"b,0,x\n',
    "a long cell": b"a" * 200_000 + b",0,x\n",
}


@every("bad", BROKEN)
def test_a_damaged_line_is_nobodys_record(bad: str, tmp_path: Path) -> None:
    clean = list(map(line, (NAMES, *GOOD)))
    damaged = [*clean[:2], BROKEN[bad], *clean[2:]]
    assert records_of(lines_read(tmp_path, damaged)) == records_of(lines_read(tmp_path, clean))
    with pytest.raises(DataError):
        lines_read(tmp_path, damaged, lenient=False)


@settings(max_examples=60)
@given(place=st.integers(1, 3), added=st.lists(st.sampled_from([*b'ab01xy,"\xff\xc3\x00 \x85']), max_size=12))
def test_no_line_changes_another(place: int, added: list[int]) -> None:
    clean = list(map(line, (NAMES, *GOOD)))
    with tempfile.TemporaryDirectory() as name:
        expected = records_of(lines_read(Path(name), clean))
        found = records_of(lines_read(Path(name), [*clean[:place], bytes(added) + b"\n", *clean[place:]]))
    more = len(found) - len(expected)
    assert more in (0, 1)
    assert [*found[: place - 1], *found[place - 1 + more :]] == expected


def test_a_damaged_line_of_a_clients_file_is_its_unusable_record(tmp_path: Path) -> None:
    for name, more in (("x", b"b\n"), ("y", b"")):
        (tmp_path / f"{name}.csv").write_bytes(b"feature,label\na,None\nb,mild\n" + more)
    layout = Layout(target=("label",), classes=("None", "mild"), columns=LAYOUT.columns)
    train = filed(tmp_path, layout, **KEPT).split.train
    assert train.groups is not None
    assert train.groups.tolist() == [0, 0, 0, 1, 1]
    # Not the value that `missing` declares, and not the word of Python's None: its cells are not empty.
    assert np.isnan(train.x).all(1).tolist() == [False, False, True, False, False]


def test_a_text_of_other_bytes_is_one_unusable_record(tmp_path: Path) -> None:
    texts = pyarrow.array([b"a", b"\xff", b"b", None]).view(pyarrow.string())
    table = pyarrow.table({"feature": texts, "label": [0, 1, 1, 0], "client": ["x", "y", "y", "x"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    made = filed(tmp_path / "a.parquet", LAYOUT, **KEPT).split.train
    assert np.isnan(made.x).all(1).tolist() == [False, True, False, False]
    with pytest.raises(DataError):
        from_files(tmp_path / "a.parquet", None, LAYOUT)


@every("kind", [*KINDS.values(), pyarrow.null(), pyarrow.dictionary(pyarrow.int32(), pyarrow.int64())])
def test_a_file_of_nulls_alone_has_records_of_no_use(kind: Any, tmp_path: Path) -> None:
    table = pyarrow.table(
        {"feature": pyarrow.nulls(3, kind), "label": pyarrow.nulls(3, kind), "client": ["x"] * 3}
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    train = filed(tmp_path / "a.parquet", LAYOUT, **KEPT).split.train
    assert (len(train), np.isnan(train.x).all()) == (3, True)


def test_labels_of_mixed_types_are_read_one_by_one() -> None:
    labels = [0, "1", 1.0, True, None, datetime.date(2020, 1, 1), Decimal("0.0"), 2**70, [1], b"1"]
    frame = pd.DataFrame({"feature": "a", "label": pd.Series(labels, dtype=object), "client": "x"})
    whole = of(frame, LAYOUT, **KEPT).split.train
    single = [of(frame.iloc[[row]], LAYOUT, **KEPT) for row in range(len(frame))]
    assert whole.y.tolist() == [int(one.split.train.y[0]) for one in single]
    assert whole.y.tolist()[:3] == [0, 1, 1]


EMBEDDED: Final = Layout(target=("label",), classes=2)


@every("of", [pyarrow.float32(), pyarrow.float16(), pyarrow.int64()])
def test_a_missing_embedding_is_one_unusable_record(of: Any, tmp_path: Path) -> None:
    lists = pyarrow.array([None, [1, 2, 3]], pyarrow.list_(pyarrow.int64(), 3)).cast(pyarrow.list_(of, 3))
    parquet.write_table(pyarrow.table({"e": lists, "label": [0, 1]}), tmp_path / "odd.parquet")
    train = filed(tmp_path / "odd.parquet", EMBEDDED, **KEPT).split.train
    assert np.isnan(train.x).all(1).tolist() == [True, False]
    assert train.x[1].tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(DataError):
        filed(tmp_path / "odd.parquet", EMBEDDED, share=0.0)


@every("rows", [[[1.0, 2.0], [2.0, 1.0]], [[1.0], [2.0, 1.0]], [None, [2.0, 1.0]], [None, None], []])
def test_no_record_decides_over_a_width(rows: list[Any], tmp_path: Path) -> None:
    """Lists of any length have no public width, so that a finite epsilon refuses them, odd ones or not."""
    lists = pyarrow.array(rows, pyarrow.list_(pyarrow.float32()))
    parquet.write_table(pyarrow.table({"e": lists, "label": [0] * len(rows)}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="schema"):
        from_files(tmp_path / "a.parquet", None, EMBEDDED, lenient=True)


@every("odd", [None, [], [1.0], [1.0, 2.0, 3.0], [None, 1.0], ["a", "b"]])
@every("place", [0, 2])
def test_the_types_of_a_face_decide_over_a_width(odd: Any, place: int) -> None:
    rows: list[Any] = [[1.0, 2.0], [3.0, 4.0]]
    rows.insert(place, odd)
    features = {"e": SimpleNamespace(length=2, feature=None), "label": type("ClassLabel", (), {})()}
    face = SimpleNamespace(
        column_names=["e", "label"],
        features=features,
        with_format=lambda _kind: _Columns({"e": rows, "label": [0, 1, 1]}),
    )
    train = of(face, EMBEDDED, **KEPT).split.train
    assert np.delete(train.x, place, 0).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert np.isnan(train.x[place]).all()


class _Columns(dict[str, Any]):
    def __getitem__(self, key: Any) -> Any:
        return self if isinstance(key, slice) else super().__getitem__(key)


def test_arrays_of_a_face_without_their_declared_client_are_refused() -> None:
    columns = _Columns({"e": np.ones((2, 3)), "label": [0, 1]})
    face = SimpleNamespace(column_names=["e", "label"], with_format=lambda _kind: columns)
    layout = replace(EMBEDDED, client_column="client")
    with pytest.raises(DataError, match="client"):
        of(face, layout)
