"""Under a finite epsilon no value of a record decides over an error: it would tell of the record."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import own_study
from support.every import every
from support.own_records import BY_CLIENT, arrays, filed, of, table

from securefl.core.errors import DataError
from securefl.data.dataset import Dataset
from securefl.data.own import Prepared

BAD: dict[str, dict[str, Any]] = {
    "no number": {"dose": "a bit"},
    "nothing": {"dose": ""},
    "nan": {"dose": "nan"},
    "infinity": {"dose": "inf"},
    "too large": {"dose": "1e300"},
    "unknown word": {"sex": "x"},
    "no word": {"sex": ""},
    "unknown label": {"ill": "perhaps"},
    "no label": {"ill": ""},
}


def people() -> pd.DataFrame:
    return own_study.people(40).drop(columns="hospital").astype(str).astype(object)


def whole(made: Prepared) -> int:
    return len(made.split.train) + len(made.split.test)


def unusable(part: Dataset) -> int:
    return int((~np.isfinite(part.x).all(1)).sum())


@every("bad", BAD)
def test_a_record_that_cannot_be_used_is_kept_and_said(bad: str) -> None:
    frame = people()
    (column, value), row = next(iter(BAD[bad].items())), 7
    frame.loc[row, column] = value
    with pytest.raises(DataError, match="row 8"):
        table(frame, share=0.0)
    made = table(frame, share=0.0, claimed=True)
    assert len(made.split.train) == 40
    assert unusable(made.split.train) == 1
    assert made.split.train.y[row] == -1
    assert "Unusable records, 1 of them, count as zero." in made.notes
    # The other records are what they were.
    clean = table(people(), share=0.0, claimed=True).split.train
    np.testing.assert_array_equal(np.delete(made.split.train.x, row, 0), np.delete(clean.x, row, 0))


@every("bad", BAD)
def test_all_records_may_be_unusable(bad: str) -> None:
    (column, value), frame = next(iter(BAD[bad].items())), people()
    frame[column] = value
    made = table(frame, claimed=True)
    assert unusable(made.split.train) == len(made.split.train)
    assert not len(made.split.test), "the server tests on none of them"


@every("where", ["x", "y"])
def test_arrays_are_read_so_too(where: str) -> None:
    x, y = arrays(30)
    given = {"x": x.copy(), "y": y.astype(float)}
    given[where][3] = np.nan
    with pytest.raises(DataError, match="row 4"):
        of((given["x"], given["y"]), share=0.0)
    made = of((given["x"], given["y"]), share=0.0, claimed=True)
    assert (len(made.split.train), unusable(made.split.train)) == (30, 1)


def test_a_record_of_no_declared_client_is_nobodys() -> None:
    frame = people().assign(hospital=["north", "south"] * 20)
    frame.loc[4, "hospital"] = "elsewhere"
    frame.loc[5, "hospital"] = ""
    layout = replace(BY_CLIENT, clients=("north", "south", "west"))
    made = table(frame, layout, share=0.0, claimed=True)
    assert len(made.split.train) == 38
    assert made.clients == ("north", "south", "west")
    assert made.split.train.holders == 3
    with pytest.raises(DataError, match="hospital"):
        table(frame, layout, share=0.0)


def test_a_signalling_nan_is_no_client_and_no_error() -> None:
    frame = people().assign(hospital=["north", "south"] * 20)
    frame["hospital"] = frame["hospital"].astype(object)
    frame.loc[4, "hospital"] = Decimal("sNaN")
    layout = replace(BY_CLIENT, clients=("north", "south"))
    assert len(table(frame, layout, share=0.0, claimed=True).split.train) == 39


@every("content", ["", "\n", "\ufeff \r\n"])
def test_an_empty_file_is_a_client_without_records(content: str, tmp_path: Path) -> None:
    for name in ("a", "c"):
        people().to_csv(tmp_path / f"{name}.csv", index=False)
    (tmp_path / "b.csv").write_text(content, encoding="utf-8")
    made = filed(tmp_path, share=0.0, claimed=True)
    assert made.clients == ("a.csv", "b.csv", "c.csv")
    assert made.split.train.groups is not None
    assert np.bincount(made.split.train.groups, minlength=3).tolist() == [40, 0, 40]
    with pytest.raises(DataError, match="at least one record"):
        filed(tmp_path, share=0.0)


def test_a_data_set_says_that_it_is_lenient() -> None:
    x, y = np.full((2, 3), np.nan, np.float32), np.array([0, -1])
    with pytest.raises(DataError, match="labels in"):
        Dataset(name="mine", x=x, y=y, classes=2)
    assert len(Dataset(name="mine", x=x, y=y, classes=2, lenient=True)) == 2
