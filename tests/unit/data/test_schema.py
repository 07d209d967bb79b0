"""The schema of a model's records: columns by name, refusals by row and column, strict cards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.every import every
from support.own_records import LAYOUT, table

from securefl.core.errors import ConfigError, DataError
from securefl.data.columns import Column
from securefl.data.layout import Layout
from securefl.data.schema import Features, Schema, frame_of, of_layout

NAMES = ("age", "sex", "dose")
SCHEMA = of_layout(LAYOUT, NAMES)
FRAME = pd.DataFrame({"age": [-5, None, 240], "sex": ["m", "f ", "m"], "dose": ["1.5", True, -2]})
ENCODED = [[0, 0, 0, 1, 1.5], [1 / 3, 1, 1, 0, 1], [1, 0, 0, 1, -2]]


def test_a_table_is_encoded_as_in_training() -> None:
    frame = pd.DataFrame(
        {
            "name": "x",
            "age": ["30", "", "61", "5"] * 5,
            "sex": ["m", "f"] * 10,
            "dose": np.arange(20),
            "ill": ["no", "yes"] * 10,
        }
    )
    made = table(frame)
    assert made.schema == of_layout(LAYOUT, NAMES)
    rows = made.schema.encode(frame, "again")
    both = np.concatenate([made.split.train.x, made.split.test.x])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, both))


@every(
    "frame",
    [
        FRAME,
        FRAME[["dose", "sex", "age"]],
        FRAME.assign(ill="no", name="x", more=[[1], [2], [3]]),
        FRAME.astype({"age": "Int64", "sex": "category"}),
        FRAME.set_index(pd.Index([5, 5, 5])),
    ],
)
def test_columns_are_found_by_name(frame: pd.DataFrame) -> None:
    assert SCHEMA.encode(frame, "t") == pytest.approx(np.array(ENCODED, np.float32))


def test_a_list_of_mappings_and_polars_read_alike() -> None:
    rows = [
        {"age": -5, "sex": "m", "dose": 1.5},
        {"sex": "f", "dose": True},
        {"age": 240, "sex": "m", "dose": -2},
    ]
    found = frame_of(rows, "rows")
    assert found is not None
    assert SCHEMA.encode(found, "rows") == pytest.approx(np.array(ENCODED, np.float32))
    polars = pytest.importorskip("polars")
    columns = {"dose": [1.5, 1.0, -2.0], "age": [-5, None, 240], "sex": ["m", "f", "m"]}
    for made in (
        polars.DataFrame(columns),
        polars.DataFrame(columns, schema_overrides={"sex": polars.Categorical}),
    ):
        other = frame_of(made, "polars")
        assert other is not None
        assert SCHEMA.encode(other, "polars") == pytest.approx(np.array(ENCODED, np.float32))
    with pytest.raises(DataError, match=r"collect\(\) first"):
        frame_of(polars.LazyFrame(columns), "polars")


@every(
    ("change", "match"),
    [
        (
            lambda f: f.drop(columns="age"),
            "t: expected a column 'age', which the model reads, got none. The model",
        ),
        (lambda f: f.rename(columns={"dose": "Dose"}), "did you mean `Dose`"),
        (lambda f: pd.concat([f, f["sex"]], axis=1), "got 'sex' twice"),
        (
            lambda f: f.assign(sex=["m", "f", "x"]),
            "t, row 3, column 'sex': expected one of 'f', 'm', got 'x'. The model",
        ),
        (
            lambda f: f.assign(sex=["m", None, "f"]),
            "row 2, column 'sex': expected one of 'f', 'm', got none. The model",
        ),
        (
            lambda f: f.assign(dose=["1", "two", "3"]),
            "row 2, column 'dose': expected a finite number, got 'two'. The model",
        ),
        (lambda f: f.assign(dose=["1", "0,5", "3"]), "finite number, got '0,5'"),
        (lambda f: f.assign(dose=1j), "expected real numbers"),
        (lambda f: f.iloc[:0], "expected at least one record"),
        (lambda f: f.rename(columns={"dose": 3}), "columns with names of printable letters, got 3"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(change: Callable[[pd.DataFrame], Any], match: str) -> None:
    with pytest.raises(DataError, match=match) as refused:
        SCHEMA.encode(change(FRAME), "t")
    assert "under [data]" not in str(refused.value)


@every(
    ("rows", "match"),
    [
        ([{"age": 3}, [3]], "row 2: expected a mapping of columns to values, got list"),
        ({"age": [3]}, r"got one mapping. Write \[record\]"),
        ([{3: 4}], "names of printable letters, got 3"),
    ],
)
def test_rows_that_are_no_mappings_are_refused(rows: Any, match: str) -> None:
    with pytest.raises(DataError, match=match):
        frame_of(rows, "rows")


def test_a_table_without_names_serves_a_model_of_arrays_by_place() -> None:
    schema = Schema(columns=None, shape=(2,))
    assert schema.encode(pd.DataFrame({"a": [1, 2], 7: ["3", "4"]}), "t").tolist() == [[1, 3], [2, 4]]
    with pytest.raises(DataError, match="a table of 1 columns: 'a'"):
        schema.encode(pd.DataFrame({"a": [1, 2]}), "t")


def test_labels_are_the_tables_own() -> None:
    assert SCHEMA.classes(2).tolist() == ["no", "yes"]
    assert SCHEMA.classes(2).dtype.kind == "U"
    assert of_layout(Layout(classes=(3, 7)), None, (2,)).classes(2).tolist() == [3, 7]
    assert of_layout(Layout(classes=(False, True)), None, (2,)).classes(2).dtype == bool
    assert of_layout(Layout(classes=("a", 1)), None, (2,)).classes(2).tolist() == ["a", 1]
    assert of_layout(Layout(classes=4), None, (2,)).classes(4).tolist() == [0, 1, 2, 3]


def test_values_of_a_regression_are_in_the_tables_units() -> None:
    layout = Layout(target=("price",), classes=0, columns={"price": Column(range=(100, 300))})
    schema = of_layout(layout, ("size",), (1,))
    assert schema.in_units(np.array([[0.0], [0.25], [1.5]], np.float32)).tolist() == [100, 150, 400]
    several = of_layout(Layout(target=("a", "b"), classes=0), ("size",), (1,))
    assert several.in_units(np.zeros((3, 2), np.float32)).shape == (3, 2)


@every(
    "schema",
    [
        SCHEMA,
        Schema(columns=None, shape=(3, 8, 8), features=Features(word="net", name="net 12", about="ours")),
        of_layout(Layout(target=("a",), classes=(1, 2.5, True, "x")), ("b",), (1,)),
        of_layout(Layout(columns={"b": Column(categories=(1, "x", 2.5))}), ("b",), (3,)),
        of_layout(Layout(columns={"b": Column(range=(0, 9), missing=0, indicator=True)}), ("b",), (2,)),
        of_layout(Layout(columns={"b": Column(missing=0.0)}), ("b",), (1,)),
        of_layout(Layout(columns={"b": Column(categories=(False, True), missing=False)}), ("b",), (2,)),
    ],
)
def test_a_card_has_all_of_it(schema: Schema) -> None:
    assert Schema.parse(copy.deepcopy(schema.words())) == schema


def edited(key: str, **change: Any) -> dict[str, Any]:
    words = copy.deepcopy(SCHEMA.words())
    for one in words["columns"]:
        if one["name"] == key:
            one.update(change)
    return words


@every(
    ("words", "match"),
    [
        (edited("age", range=[120, 0]), r"records.columns.age\].*low < high, got \(120.0, 0.0\)"),
        (edited("age", range=[0, float("inf")]), r"records.columns.age\].*finite range"),
        (edited("age", range=[0, 1e300]), r"records.columns.age\].*finite range"),
        (edited("age", range=["0", 1]), r"records.columns.age\] `range`"),
        (edited("sex", categories=["f", "m", "f"]), r"records.columns.sex\].*each once, got 3 with 2"),
        (edited("sex", missing="x"), r"records.columns.sex\].*among the categories, got 'x'"),
        (edited("sex", categories=["f"]), r"the shape \(4,\) of the declared columns, got \(5,\)"),
        (edited("sex", strange=1), r"records.columns.sex\] Unknown key `strange`"),
        (edited("sex", name="age"), "Expected each column once, got 'age' twice"),
        (edited("sex", name="\x1b[2J"), "column's name of printable letters"),
        (edited("sex", name=3), r"records.columns.2\] `name`"),
        ({**SCHEMA.words(), "labels": ["no", "no"]}, "Expected each label once"),
        ({**SCHEMA.words(), "labels": [["no"]]}, "`labels`"),
        ({**SCHEMA.words(), "shape": [0]}, "records of 1 to 100,000,000 values"),
        ({**SCHEMA.words(), "shape": [10**9, 10**9]}, "records of 1 to 100,000,000 values"),
        ({**SCHEMA.words(), "network": "a\u202eb"}, "Expected `network`"),
        ({**SCHEMA.words(), "features": {"word": "", "name": "a"}}, "the network of the features"),
        ({**SCHEMA.words(), "columns": {"age": {}}}, "`columns`: Expected a list"),
        ({**SCHEMA.words(), "columns": [{"range": [0, 1]}]}, r"records.columns.1\] Missing key `name`"),
        ({**SCHEMA.words(), "more": 1}, "Expected the keys"),
        ({}, "Expected the keys"),
        (None, "Expected the keys"),
        ([], "Expected the keys"),
    ],
)
def test_an_edited_card_is_refused_by_name(words: Any, match: str) -> None:
    """The attack: a card with a right digest that a stranger wrote."""
    with pytest.raises(ConfigError, match=match):
        Schema.parse(words)
