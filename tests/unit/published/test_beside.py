"""Published figures beside measured ones, in print, as CSV and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
from support.tiny_table import TABLE, metrics

from securefl.published import beside

RUNS = {"one": metrics(FedAvg=[[0.1, 0.1], [0.1, 0.3]], FedProf=[[0.2, 0.4], [0.1, 0.5]])}
PAIRS = beside.beside(TABLE, RUNS)


def test_the_table_in_lines() -> None:
    said = beside.sentences(TABLE, PAIRS)
    assert said[:10] == [
        "Digits (Nobody, Table 1)",
        "",
        "one",
        "                        best accuracy       rounds to 0.2",
        "Avg          published  0.500 ± 0.01        –",
        "             measured   0.200 ± 0.141       ≥ 2.0 ± 0.0",
        "             p          0.5                 1",
        "Ours         published  0.600               N/A",
        "             measured   0.450 ± 0.071       1.5 ± 0.7",
        "",
    ]
    assert said[10].endswith("seed by seed; it cannot be below 0.5.")
    assert "- study.rounds = 2; published is 500." in said
    assert "- Digits in place of everything." in said
    assert max(map(len, said[:9])) <= 100


def test_a_file_says_what_it_is_and_every_difference(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    beside.write(path, "securefl reproduce digits", TABLE, PAIRS)
    lines = path.read_text().splitlines()
    assert lines[:3] == [
        "# securefl reproduce digits",
        f"# version {TABLE.version}",
        "# Digits (Nobody, Table 1)",
    ]
    assert "# difference: Ours: scheme = not set; published is II." in lines
    found = beside.read(path, TABLE)
    pd.testing.assert_frame_equal(found, pd.DataFrame(beside.as_rows(PAIRS)), check_dtype=False)
    assert found["reached"].tolist() == [2, 2, 1, 2]


def test_json_has_no_nan() -> None:
    one = beside.beside(TABLE, {"one": metrics(FedAvg=[[0.1]], FedProf=[[0.2]])})
    assert "NaN" not in json.dumps(beside.as_rows(one))
