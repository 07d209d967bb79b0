"""Tables and series of a sweep, from its cells."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.every import every
from support.tiny_sweep import ARMS, EPSILONS, NOISED, fill, summary_of, sweep, two_lists

from securefl.core.errors import DataError
from securefl.report.accuracy import MEASURES
from securefl.sweep.best import headline
from securefl.sweep.cells import Sweep, parse_sweep
from securefl.sweep.page import render
from securefl.sweep.report import as_json
from securefl.sweep.run import FACTS, METRICS, facts_of
from securefl.sweep.tradeoff import (
    Series,
    filters,
    other_axes,
    results_table,
    series_of,
    student,
    summary_table,
    with_levels,
)
from securefl.sweep.tradeoff_plots import accuracy, pictures


@pytest.fixture
def swept() -> Sweep:
    return two_lists()


def filled(found: Sweep, out: Path, **more: Any) -> pd.DataFrame:
    """The summary of the sweep's cells, as if they had run."""
    fill(found, out, **more)
    return summary_of(found, out)


def test_a_cell_that_was_copied_over_another_is_refused(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path)
    first, second = (tmp_path / "cells" / cell.folder for cell in swept.cells[:2])
    shutil.rmtree(second)
    shutil.copytree(first, second)
    with pytest.raises(DataError, match="got another cell"):
        results_table(swept, facts_of(swept, tmp_path))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (FACTS, b'{"card": [], "en'),
        (FACTS, b"{}"),
        (FACTS, b"[]"),
        (FACTS, b"\xff"),
        (METRICS, b"arm,seed\n"),
        (METRICS, None),
    ],
)
def test_a_cell_that_was_damaged_is_named(
    name: str, content: bytes | None, swept: Sweep, tmp_path: Path
) -> None:
    fill(swept, tmp_path)
    path = tmp_path / "cells" / swept.cells[1].folder / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"cell\.json") as caught:
        results_table(swept, facts_of(swept, tmp_path))
    assert str(path.parent) in str(caught.value)


@every("name", ["=HYPERLINK(1)", "@a", "-a", "'=a", "+1+1", "-5", "nan"])
def test_an_arm_that_a_spreadsheet_would_run_keeps_its_name(name: str, tmp_path: Path) -> None:
    """Its cell has a quote in front, in a cell's table and in those of the sweep."""
    swept = sweep(EPSILONS, study=NOISED + ARMS.replace('"unit"', json.dumps(name)))
    fill(swept, tmp_path)
    results = results_table(swept, facts_of(swept, tmp_path))
    assert set(results["arm"]) == {name, "bounded"}
    assert set(summary_table(swept, facts_of(swept, tmp_path), results)["arm"]) == {name, "bounded"}


def test_tables_have_every_row_and_key(swept: Sweep, tmp_path: Path) -> None:
    fill(swept, tmp_path, leave=1)
    results = results_table(swept, facts_of(swept, tmp_path))
    assert len(results) == 5 * 2 * 3 * 2
    head = ["cell", "privacy.calibration", "privacy.epsilon", "arm", "protocol", "seed", "round", "accuracy"]
    assert list(results.columns[:8]) == head
    assert {"bytes_up", "bytes_down", "epsilon_server", "epsilon_key-holder"} <= set(results.columns)
    assert set(results["privacy.epsilon"]) == {1.0, 4.0, math.inf}

    summary = summary_table(swept, facts_of(swept, tmp_path), results)
    assert len(summary) == 5 * 2 * 3
    first = summary.iloc[0]
    assert (first["arm"], first["seed"], first["protocol"]) == ("unit", 1, "fedlog")
    assert first["final_accuracy"] == pytest.approx(0.21)
    assert first["rounds"] == 2
    assert first["bytes_up"] == 2000
    assert first["bytes_down"] == 1000
    assert first["epsilon_true"] == pytest.approx(0.9), "the key holder is trusted, the server is not"
    assert first["epsilon_key-holder"] == 99.0
    assert pd.isna(first["first_round_at_target"])
    assert summary["first_round_at_target"].iloc[-1] == 2, "0.2 + 0.03 + 0.08 passes 0.25"
    assert summary_of(swept, tmp_path / "none").empty


def test_json_has_the_summary_and_what_failed(swept: Sweep, tmp_path: Path) -> None:
    summary = filled(swept, tmp_path, leave=1)
    found = json.loads(
        json.dumps(
            as_json(swept, tmp_path, facts_of(swept, tmp_path), summary, {"a cell": "no memory"}),
            allow_nan=False,
        )
    )
    assert found["private"]["failed"] == {"a cell": "no memory"}
    assert found["page"] == str(tmp_path / "sweep.html")
    assert len(found["summary"]) == len(summary)
    first = found["summary"][0]
    assert (first["first_round_at_target"], first["seed"], first["privacy.epsilon"]) == (None, 1, 1.0)
    assert found["summary"][-1]["epsilon_true"] == "inf"
    nothing = as_json(swept, tmp_path, facts_of(swept, tmp_path), summary.iloc[:0], {"a cell": "no memory"})
    assert (nothing["summary"], nothing["page"]) == ([], None)


def test_series_are_arms_under_one_setting(swept: Sweep, tmp_path: Path) -> None:
    series = series_of(swept, filled(swept, tmp_path))
    assert [own.label for own in series] == [
        f"{arm}, {noise}"
        for noise in ("exact calibration", "the paper's calibration")
        for arm in ("unit", "bounded")
    ]
    assert [own.number for own in series] == [0, 1, 2, 3]
    assert [own.endless for own in series] == [False, True, False, True]
    assert filters(swept, series) == {"arm": ["unit", "bounded"], "privacy.calibration": ["exact", "paper"]}
    points = series[0].points()
    assert [p.asked for p in points] == [1.0, 4.0, math.inf]
    assert [p.mean for p in points] == pytest.approx([0.22, 0.24, 0.26])


def test_settings_that_go_together_are_named_once(tmp_path: Path) -> None:
    lists = [
        f'"privacy.noise" = "local"\n"privacy.delta" = {d}\n"study.rounds" = {r}'
        for d, r in ((1e-4, 2), (1e-6, 3))
    ]
    found = sweep(EPSILONS, *lists)
    series = series_of(found, filled(found, tmp_path))
    assert series[0].label == "unit, delta = 0.0001"
    assert set(filters(found, series)) == {"arm", "privacy.delta"}, "one box for both"


def test_what_follows_from_epsilon_is_no_series_of_its_own(tmp_path: Path) -> None:
    """Such as a noise multiplier that was written down for each epsilon."""
    lists = [f'"privacy.epsilon" = {e}\n"privacy.delta" = {d}' for e, d in ((1.0, 1e-4), (2.0, 1e-6))]
    found = sweep("", *lists)
    series = series_of(found, filled(found, tmp_path))
    assert [own.label for own in series] == ["unit", "bounded"]
    assert [point.asked for point in series[0].points()] == [1.0, 2.0]


def test_the_band_is_students() -> None:
    mean, half = student([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6), "t(0.975, 2), deviation 1"
    assert student([5.0])[0] == 5.0
    assert math.isnan(student([5.0])[1])
    assert math.isnan(student([])[0])


def test_a_seed_without_a_value_is_counted(swept: Sweep, tmp_path: Path) -> None:
    own = series_of(swept, filled(swept, tmp_path))[0]
    lost = own.rows[own.rows["asked"] == 1.0].assign(final_accuracy=[0.1, np.nan, 0.3])
    (point,) = replace(own, rows=lost).points()
    assert (point.mean, point.missing, point.values) == (pytest.approx(0.2), 1, [0.1, 0.3])


WORDED = """
[[sweep.list]]
"arm.clip" = { kind = "unit-l2" }
"privacy.noise" = "local"
"local.learning_rate" = 0.1
[[sweep.list]]
"arm.clip" = { kind = "bounded", bound = 2.0 }
"privacy.noise" = "local"
"local.learning_rate" = 0.2
[[sweep.list]]
"arm.clip" = { kind = "bounded", bound = 2.0 }
"privacy.noise" = "local"
"local.learning_rate" = 0.1
[[sweep.list]]
"arm.clip" = { kind = "unit-l2" }
"privacy.noise" = "central"
"privacy.adversaries" = ["others"]
"local.learning_rate" = 0.1
"""


def test_a_legend_says_what_a_person_would(tmp_path: Path) -> None:
    one = NOISED.replace('noise = "local"', 'noise = "local"\nepsilon = 1.0')
    found = parse_sweep(one + '[[arm]]\nname = "FedLog"\nprotocol = "fedlog"\n' + WORDED)
    series = series_of(found, filled(found, tmp_path))
    assert [own.label for own in series] == [
        "unit norm, noise by each client, learning rate = 0.1",
        "features within ±2, noise by each client, learning rate = 0.2",
        "features within ±2, noise by each client, learning rate = 0.1",
        "unit norm, noise by the server, learning rate = 0.1",
    ]


def test_personal_models_are_named_beside_global_ones(tmp_path: Path) -> None:
    found = sweep(EPSILONS)
    summary = filled(found, tmp_path)
    assert set(summary["models"]) == {"global"}
    summary.loc[summary["arm"] == "bounded", "models"] = "personal"
    series = series_of(found, summary)
    assert [own.label for own in series] == ["unit (global models)", "bounded (personal models)"]
    assert [own.personal for own in series] == [False, True]


TRAINED = """
[dpsgd]
clip_norm = 1.0
noise_multiplier = 1.2
sampling_rate = 0.1
expected_batch = 20
steps = 5
optimizer = "sgd"
learning_rate = 0.5

"""


def trained(multipliers: Mapping[float, float], out: Path) -> tuple[Sweep, pd.DataFrame]:
    """A finished sweep over the noise of DP-SGD, by multiplier the epsilon of its ledgers."""
    table = NOISED.replace('noise = "local"\n', 'noise = "none"\n').replace("epsilon = 1.0\n", "")
    found = sweep(f'"dpsgd.noise_multiplier" = {[*multipliers]}', study=table + TRAINED + ARMS)
    summary = filled(found, out)
    told = summary["dpsgd.noise_multiplier"].map(multipliers)
    seeds = 1e-6 * summary["seed"]  # a client that was in fewer rounds spent less
    return found, with_levels(summary.assign(epsilon_true=told - seeds, asked=math.inf))


def test_epsilon_of_training_is_the_axis_though_none_was_asked_for(tmp_path: Path) -> None:
    found, summary = trained({4.8: 0.424, 1.2: 2.0, 0.6: 12.2}, tmp_path)
    series = series_of(found, summary)
    assert [own.label for own in series] == ["unit", "bounded"], "noise is no series of its own"
    places = [point.at for point in series[0].points()]
    assert places == pytest.approx([0.424, 2.0, 12.2], abs=1e-5)
    first = accuracy(series, MEASURES["classification"])
    assert first.title == "Accuracy against the true epsilon"
    assert first.figure.axes[0].get_xlabel().startswith("true epsilon per record")
    ticks = [tick.get_text() for tick in first.figure.axes[0].get_xticklabels()]
    assert ticks == ["0.42", "2", "12"]
    page = render(found, facts_of(found, tmp_path), series, {}, "again", [])
    words = " ".join([headline(series), page])
    assert "without noise" not in words
    assert "no noise" not in words
    assert headline(series).startswith("At a true epsilon of 2 per record at delta 0.0001, ")
    assert ", unit and bounded are level at the highest accuracy: 0.240" in headline(series)
    apart = [replace(own, rows=own.rows.assign(final_accuracy=0.3 + own.number)) for own in series]
    assert ", bounded has the highest accuracy: 1.300" in headline(apart)
    assert "has an accuracy of " in headline(series[:1]), "there is no other arm"
    low = [replace(own, rows=own.rows.assign(floor=0.3 if own.number else 0.25)) for own in series]
    assert headline(low).endswith(
        "nothing was learnt: unit and bounded are level at the highest accuracy, 0.240, and one constant "
        "answer reaches 0.250. An arm is better at epsilon 12.2."
    )
    lost = [replace(own, rows=own.rows.assign(floor=0.9)) for own in series]
    assert headline(lost).endswith("It is so at each epsilon.")


def test_another_axis_has_lines_of_its_own(tmp_path: Path) -> None:
    found, summary = trained({4.8: 0.424, 1.2: 2.0}, tmp_path)
    (over,) = other_axes(found, summary)
    assert {own.axis for own in over} == {"dpsgd.noise_multiplier"}
    assert [point.at for point in over[0].points()] == [1.2, 4.8]
    numbers = {own.number for own in over} | {own.number for own in series_of(found, summary)}
    assert len(numbers) == 4, "a box of the page hides no line over another axis"
    names = [own.name for own in pictures(series_of(found, summary), others=[over])]
    assert names[1:] == ["accuracy_dpsgd_noise_multiplier", "accuracy_bytes"]


def of_two_epsilons(**columns: Any) -> Series:
    """A series of two epsilons, each of one run, with these columns changed."""
    rows = pd.DataFrame({"asked": [1.0, 2.0], "epsilon_true": [1.0, 2.0], "final_accuracy": [0.5, 0.6]})
    rows = rows.assign(models="global", floor=np.nan, bytes_up=1e6, bytes_down=1e6, target=np.nan)
    return Series(number=0, label="a", values={}, rows=rows.assign(**columns), panel=(), line="a", look=0)


@pytest.mark.parametrize("floor", [0.1, np.nan])
def test_a_constant_answer_is_drawn_once_in_each_panel_and_said(floor: float) -> None:
    for drawing in pictures([of_two_epsilons(floor=floor)]):
        heights = [
            line.get_ydata()[0]
            for axes in drawing.figure.axes
            for line in axes.lines
            if line.get_linestyle() == ":"
        ]
        assert heights == ([floor] if floor == 0.1 else [])
        assert ("one constant answer" in drawing.caption) is (floor == 0.1)


def test_a_caption_speaks_of_no_infinite_epsilon_where_there_is_none() -> None:
    finite, without = of_two_epsilons(), of_two_epsilons(asked=[1.0, np.inf], epsilon_true=[1.0, np.inf])
    endless = replace(of_two_epsilons(epsilon_true=np.inf), number=1, label="b", line="b", look=1)
    groups = ([finite], [without], [finite, endless])
    said = [accuracy(own, MEASURES["classification"]).caption for own in groups]
    assert ["On the right: no finite epsilon" in own for own in said] == [False, True, True]
    assert ["Open marks" in own for own in said] == [False, False, True]
