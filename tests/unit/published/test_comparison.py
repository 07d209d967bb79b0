"""Published figures beside measured ones, in print, as CSV and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan
from pathlib import Path

import pandas as pd
from support.tiny_table import ROWS, TABLE, metrics, part, table

from securefl.published import comparison
from securefl.published.table import Measure

RUNS = {"one": metrics(FedAvg=[[0.1, 0.1], [0.1, 0.3]], FedProf=[[0.2, 0.4], [0.1, 0.5]])}
FIGURES = comparison.compare(TABLE, RUNS)


def test_the_table_in_lines() -> None:
    said = comparison.lines(TABLE, FIGURES)
    assert said[:10] == [
        "Digits (Nobody, Table 1)",
        "",
        "one",
        "                 best accuracy  rounds to 0.2",
        "Avg   published  0.500 ± 0.01   –",
        "      measured   0.200 ± 0.141  ≥ 2.0 ± 0.0",
        "      p          0.5            1",
        "Ours  published  0.600          N/A",
        "      measured   0.450 ± 0.071  1.5 ± 0.7",
        "",
    ]
    assert said[10].endswith("seed by seed; it cannot be below 0.5.")
    assert "- study.rounds = 2; published is 500." in said
    assert "- Digits in place of everything." in said


def test_a_file_says_what_it_is_and_every_difference(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    comparison.write(path, "securefl reproduce digits", TABLE, FIGURES)
    lines = path.read_text().splitlines()
    assert lines[:3] == [
        "# securefl reproduce digits",
        f"# version {TABLE.version}",
        "# Digits (Nobody, Table 1)",
    ]
    assert "# difference: Ours: scheme = not set; published is II." in lines
    found = comparison.read(path, TABLE)
    pd.testing.assert_frame_equal(found, pd.DataFrame(comparison.rows(FIGURES)), check_dtype=False)
    assert found["reached"].tolist() == [2, 2, 1, 2]


LOCAL = table(
    replace(part(), rows=(*ROWS, replace(ROWS[0], label="None", arm="FedAvg"))),
    measures=(Measure.LAST, Measure.LOCAL),
)


def test_a_system_without_a_figure_is_named_and_compared_with_nobody() -> None:
    """It was in no sentence ("Ours: ."), and its p counted among those that are adjusted."""
    runs = metrics(FedAvg=[[0.1], [0.2]], FedProf=[[0.5], [0.6]])
    runs["local accuracy"] = [nan, nan, 0.5, 0.6]
    figures = comparison.compare(LOCAL, {"one": runs})
    assert figures.loc[figures["measure"] == Measure.LOCAL, "adjusted_p"].isna().all()
    assert comparison.claims(LOCAL, figures)[1] == "one, local accuracy: Ours: no figure of Avg and None."
    lines = comparison.lines(LOCAL, figures)
    assert "      measured   0.150 ± 0.071  –" in lines
    assert "      p          0.5            –" in lines
    assert [row["measured"] for row in comparison.rows(figures)][3:] == [None, 0.55, None]


def test_a_run_that_diverged_has_no_last_accuracy_and_ends_no_table() -> None:
    """Its accuracies are all unknown. The table of a whole night stopped with an IndexError."""
    runs = metrics(FedAvg=[[nan, nan], [0.2, 0.3]], FedProf=[[0.5, 0.5], [0.6, 0.6]])
    figures = comparison.compare(
        replace(TABLE, measures=(Measure.LAST, Measure.BEST, Measure.ROUNDS)), {"one": runs}
    )
    assert figures["measured"].isna().tolist() == [True, False, True, False, False, False]
    assert "NaN" not in json.dumps(comparison.rows(figures))
    assert "one, last accuracy: Ours: no figure of Avg." in comparison.claims(
        replace(TABLE, measures=(Measure.LAST,)), figures
    )


def test_if_the_own_system_has_no_figure_nobody_is_compared() -> None:
    runs = metrics(FedAvg=[[0.2], [0.3]], FedProf=[[nan], [0.6]])
    figures = comparison.compare(TABLE, {"one": runs})
    assert comparison.claims(TABLE, figures)[0] == "one, best accuracy: Ours: no figure of its own."


def test_json_has_no_nan() -> None:
    one = comparison.compare(TABLE, {"one": metrics(FedAvg=[[0.1]], FedProf=[[0.2]])})
    assert "NaN" not in json.dumps(comparison.rows(one))
