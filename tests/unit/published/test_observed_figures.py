"""Columns of a table that come from the observer's figures of clients."""

from __future__ import annotations

from math import isnan, nan
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
from support.tiny_table import TABLE, metrics

from securefl.published import comparison
from securefl.published.comparison import by_seed, with_figures
from securefl.published.table import Measure
from securefl.study.results import Results

RUNS = metrics(a=[[0.1, nan, 0.4]], b=[[0.42, nan, 0.5]])


def results(*rows: tuple[str, int, int, str, float], personal: str = "") -> Results:
    """Results with these figures: arm, round, client, figure, value; the seed is that of the metrics."""
    seed = RUNS["seed"].iloc[0]
    figures = pd.DataFrame(
        [(arm, seed, *row) for arm, *row in rows],
        columns=["arm", "seed", "round", "client", "figure", "value"],
    )
    models = ["personal" if arm == personal else "global" for arm in RUNS["arm"]]
    return cast(Results, SimpleNamespace(metrics=RUNS.assign(models=models), figures=figures))


def value(measure: Measure, found: pd.DataFrame, arm: str = "a") -> float:
    return float(by_seed(measure, found, arm, None)["value"].iloc[0])


def test_a_client_keeps_its_figure_until_it_has_another_one() -> None:
    found = with_figures(
        results(
            ("a", 1, 0, "local accuracy", 0.2),
            ("a", 1, 1, "local accuracy", 0.6),
            ("a", 3, 1, "local accuracy", 1.0),
        )
    )
    assert value(Measure.LOCAL, found) == pytest.approx((0.2 + 1.0) / 2)
    assert found.loc[found["arm"] == "a", "local accuracy"].tolist()[0] == pytest.approx(0.4)


def test_an_arm_without_figures_has_the_whole_model() -> None:
    found = with_figures(results(("a", 1, 0, "parameters", 0.25), ("a", 3, 1, "macs", 0.5)))
    assert (value(Measure.PARAMETERS, found), value(Measure.MACS, found)) == (0.25, 0.5)
    assert (value(Measure.PARAMETERS, found, "b"), value(Measure.MACS, found, "b")) == (1.0, 1.0)
    assert isnan(value(Measure.LOCAL, found, "b"))


def test_the_global_accuracy_of_personal_models_is_a_figure() -> None:
    found = with_figures(results(("a", 3, 0, "global accuracy", 0.3), personal="a"))
    assert (value(Measure.GLOBAL, found), value(Measure.LAST, found)) == (0.3, 0.4)
    assert value(Measure.GLOBAL, found, "b") == 0.5
    drawn = with_figures(results(("a", 3, 0, "global accuracy", 0.3), personal="a"), [Measure.GLOBAL])
    assert value(Measure.LAST, drawn) == 0.3
    assert isnan(value(Measure.GLOBAL, with_figures(results(personal="a")), "a"))


def test_rounds_to_a_stated_accuracy_are_those_of_the_global_model() -> None:
    found = with_figures(results(("a", 1, 0, "global accuracy", 0.45), personal="a"))
    stated = (Measure.ROUNDS_45, Measure.ROUNDS_50)
    reached = [by_seed(measure, found, "a", 0.9).iloc[0].tolist() for measure in stated]
    assert reached == [[1.0, True], [3.0, False]]
    assert [by_seed(measure, found, "b", 0.9)["value"].iloc[0] for measure in stated] == [3.0, 3.0]


def test_shares_are_better_if_they_are_smaller_and_have_no_target() -> None:
    columns: dict[str, Any] = {"parameters (share)": [1.0] * 2 + [0.5] * 2}
    both = metrics(FedAvg=[[0.1], [0.2]], FedProf=[[0.1], [0.2]]).assign(**columns)
    table = type(TABLE)(**{**vars(TABLE), "measures": (Measure.PARAMETERS,)})
    figures = comparison.compare(table, comparison.values(table, {"one": both}))
    assert figures["lead"].tolist()[0] == 0.5
    said = comparison.lines(table, figures)
    assert said[4].split() == ["parameters", "(share)"]
    end = "beside Avg (0.500 [0.500 to 0.500], r 1.00)."
    assert any(line.startswith("- one, parameters (share): Ours:") and line.endswith(end) for line in said)
