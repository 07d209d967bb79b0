"""Tables as Parquet beside CSV: the same rows and columns, and never an older file than the CSV."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from securefl.report import tables

TABLE = pd.DataFrame({"arm": ["=1+1", "b"], "round": [1, 2], "accuracy": [0.5, float("nan")]})


def test_the_same_rows_and_columns_stand_in_both(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    tables.write_table(tmp_path / "metrics.csv", TABLE)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "metrics.parquet"), TABLE)
    assert pd.read_csv(tmp_path / "metrics.csv")["arm"].tolist() == ["'=1+1", "b"]


def test_an_empty_table_has_its_columns(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    tables.write_table(tmp_path / "figures.csv", TABLE.head(0))
    assert list(pd.read_parquet(tmp_path / "figures.parquet").columns) == list(TABLE.columns)


def test_without_pyarrow_no_older_parquet_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    (tmp_path / "metrics.parquet").write_bytes(b"of an earlier report")
    tables.write_table(tmp_path / "metrics.csv", TABLE)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]
