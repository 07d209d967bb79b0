"""Pictures of a table's runs: curves as a loop over the runs gives them, and published figures beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from support.every import every
from support.tiny_table import TABLE, metrics, part, table

from securefl.published import comparison, traces
from securefl.published.comparison import values
from securefl.published.table import Figure, Measure, Row

ACCURACIES = {"FedAvg": [[0.1, 0.2, 0.1], [0.1, 0.15, 0.12]], "FedProf": [[0.2, 0.4, 0.3], [0.1, 0.5, 0.5]]}
PRINTED = {
    "Avg": {Measure.BEST: Figure(mean=0.3, deviation=0.02), Measure.MINUTES: Figure(mean=2.5, deviation=0.5)},
    "Ours": {Measure.BEST: Figure(mean=0.6), Measure.MINUTES: Figure(mean=None)},
}


def printed(printed: Any = PRINTED, setting: Any = None) -> Any:
    own = part()
    rows = tuple(Row(label=row.label, arm=row.arm, figures=printed[row.label]) for row in own.rows)
    return table(
        type(own)(name="one", text=own.text, rows=rows, ours="FedProf", setting=setting or {}),
        measures=(Measure.BEST, Measure.ROUNDS, Measure.MINUTES),
    )


def runs(**accuracies: Any) -> dict[str, pd.DataFrame]:
    found = metrics(**(accuracies or ACCURACIES))
    # Rounds of seed 1 take twice as long.
    found.loc[found["seed"] == 1, "seconds"] = 120.0
    return {"one": found}


def pictures(of: Any, found: dict[str, pd.DataFrame]) -> Any:
    return traces.pictures(of, found, values(of, found))


def panels(measure: Measure, of: Any = None, **accuracies: Any) -> tuple[Axes, Axes]:
    figure = pictures(of or printed(), runs(**accuracies))[measure]
    above, below = figure.axes
    return above, below


def curves(axes: Axes) -> list[np.ndarray]:
    """The drawn curves, without the points of single seeds, the target's line and the legend's."""
    drawn = [line for line in axes.lines if line.get_linestyle() != "None"]
    return [line.get_xydata() for line in drawn if len(line.get_xdata()) > 2]


def hollow(axes: Axes) -> list[tuple[float, float]]:
    return [
        tuple(line.get_xydata()[0])
        for line in axes.lines
        if len(line.get_xdata()) == 1 and line.get_markerfacecolor() == "white"
    ]


def test_a_picture_for_each_measure_that_counts_or_over_rounds() -> None:
    assert list(pictures(printed(), runs())) == [Measure.ROUNDS, Measure.MINUTES]
    assert list(pictures(TABLE, runs())) == [Measure.ROUNDS]
    columns = {"local accuracy": 0.5, "global accuracy": 0.5}
    shares = table(printed().parts[0], measures=(Measure.BEST, Measure.LOCAL, Measure.ROUNDS_45))
    (measure, picture), *others = pictures(shares, {"one": runs()["one"].assign(**columns)}).items()
    assert (measure, others) == (Measure.ROUNDS, [])
    (panel,) = picture.axes  # none below: no system has a target to reach
    assert panel.get_xlabel() == "rounds"


@every(("measure", "spent"), [(Measure.ROUNDS, [1.0, 2.0, 3.0]), (Measure.MINUTES, [1.5, 3.0, 4.5])])
def test_a_curve_is_the_mean_over_the_seeds_of_cost_and_of_accuracy(
    measure: Measure, spent: list[float]
) -> None:
    above, _ = panels(measure)
    for found, own in zip(curves(above), ACCURACIES.values(), strict=True):
        assert found == pytest.approx(np.column_stack([spent, np.mean(own, axis=0)]))


def test_rounds_without_a_test_cost_and_have_no_point() -> None:
    nan = np.nan
    above, _ = panels(Measure.MINUTES, FedAvg=[[0.1, nan, 0.2, 0.3]] * 2, FedProf=[[0.1, nan, 0.2, 0.3]] * 2)
    assert curves(above)[0] == pytest.approx(np.array([[1.5, 0.1], [4.5, 0.2], [6.0, 0.3]]))


def test_published_figures_are_hollow_and_stand_where_the_paper_has_them() -> None:
    above, below = panels(Measure.MINUTES)
    # In shares of the panel's width: to the right of it.
    assert [height for _, height in hollow(above)] == [0.3, 0.6]
    assert all(place > 1 for place, _ in hollow(above))
    ((needed, row),) = hollow(below)
    assert (needed, round(row)) == (2.5, 0)
    assert [text.get_text() for text in below.texts] == ["published: N/A"]
    assert [label.get_text() for label in below.get_yticklabels()] == ["Avg", "Ours"]


def test_what_was_measured_is_filled_and_a_lower_bound_is_an_arrow() -> None:
    _, below = panels(Measure.MINUTES)
    filled = [
        line for line in below.lines if line.get_marker() in "o>" and line.get_markerfacecolor() != "white"
    ]
    assert [(line.get_marker(), float(line.get_xdata()[0])) for line in filled] == [
        (">", pytest.approx(np.mean([2.0, 6.0]))),
        ("o", pytest.approx(np.mean([1.0, 4.0]))),
    ]


@every(("measure", "words"), [(Measure.BEST, "published\nbest"), (Measure.LAST, "published\nlast")])
def test_a_published_accuracy_has_the_name_of_its_column(measure: Measure, words: str) -> None:
    above, _ = panels(Measure.ROUNDS, printed({"Avg": {measure: Figure(mean=0.3)}, "Ours": {}}))
    assert [text.get_text() for text in above.texts] == [words]


def legend(axes: Axes) -> list[str]:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return [text.get_text() for text in figure.legends[0].get_texts()]


@every("setting", [{"study.target": 0.9}, {"data.source": "mnist"}, {"model.kind": "lenet5"}])
def test_published_figures_of_another_task_are_not_beside_the_measured_ones(setting: Any) -> None:
    """An axis went to 250 rounds for published ones to 0.9, beside curves to 0.7 that ended at 40."""
    above, below = panels(Measure.MINUTES, printed(setting=setting))
    assert (hollow(above), hollow(below)) == ([], [])
    assert [*above.texts, *below.texts] == []
    assert "published" not in legend(above)
    assert below.get_xlabel() == "minutes to 0.2"
    assert below.get_xlim()[1] < 10


def test_the_legend_has_the_marks_that_occur() -> None:
    above, _ = panels(Measure.MINUTES)
    assert legend(above) == ["Avg", "Ours", "published", "measured", "measured, at least"]
    above, _ = panels(
        Measure.MINUTES, printed({"Avg": {}, "Ours": {}}), FedAvg=[[0.3]] * 2, FedProf=[[0.3]] * 2
    )
    assert legend(above) == ["Avg", "Ours", "measured"]


@every(("published", "scale"), [(12.0, "linear"), (100.0, "log")])
def test_figures_far_beyond_the_curves_stand_on_a_logarithmic_axis(published: float, scale: str) -> None:
    far = {"Avg": {}, "Ours": {Measure.MINUTES: Figure(mean=published)}}
    above, below = panels(Measure.MINUTES, printed(far))
    assert (above.get_xscale(), below.get_xscale()) == (scale, scale)
    assert above.get_xlim() == below.get_xlim()
    assert below.get_xlim()[1] > published
    assert hollow(above) == []


@every(("times", "scale"), [(19, "linear"), (21, "log")])
def test_systems_that_spend_amounts_of_different_orders_share_a_logarithmic_axis(
    times: int, scale: str
) -> None:
    spent = runs()
    spent["one"].loc[spent["one"]["arm"] == "FedAvg", "seconds"] *= times
    figure = pictures(printed({"Avg": {}, "Ours": {}}), spent)[Measure.MINUTES]
    above, below = figure.axes
    assert (above.get_xscale(), below.get_xscale()) == (scale, scale)


def test_all_curves_and_marks_are_inside_their_panels() -> None:
    above, below = panels(Measure.MINUTES)
    low, high = above.get_ylim()
    for found in curves(above):
        assert low < found[-1][1] < high
    assert low < 0.3 < 0.6 < high
    left, right = below.get_xlim()
    assert left <= 2.0 < 3.0 < right


def test_the_axis_begins_at_the_second_half_of_the_runs() -> None:
    """What is below the lowest mean of the second half is cut off."""
    own = [[-0.5, 0.1, 0.3, 0.31]] * 2
    above, _ = panels(Measure.ROUNDS, printed({"Avg": {}, "Ours": {}}), FedAvg=own, FedProf=own)
    low, high = above.get_ylim()
    # The study's target is 0.2.
    assert (low, high) == pytest.approx((0.2 - 0.05 * 0.11, 0.31 + 0.05 * 0.11))


def test_a_curve_whose_first_half_fits_beside_the_second_is_whole() -> None:
    """The first of eight points of a system was below the axis."""
    own = [[0.15, 0.25, 0.3, 0.31]] * 2
    above, _ = panels(Measure.ROUNDS, printed({"Avg": {}, "Ours": {}}), FedAvg=own, FedProf=own)
    assert above.get_ylim() == pytest.approx((0.15 - 0.05 * 0.16, 0.31 + 0.05 * 0.16))


def test_a_system_that_diverged_in_every_round_has_no_curve_and_ends_no_picture() -> None:
    """Its accuracies are all unknown. The table of a whole night stopped with an IndexError."""
    unknown = [[np.nan] * 3] * 2
    above, _ = panels(Measure.ROUNDS, FedAvg=unknown, FedProf=ACCURACIES["FedProf"])
    assert len(curves(above)) == 1
    above, _ = panels(Measure.ROUNDS, printed({"Avg": {}, "Ours": {}}), FedAvg=unknown, FedProf=unknown)
    assert curves(above) == []


def test_files_are_named_by_what_they_show(tmp_path: Path) -> None:
    found = traces.write(tmp_path, printed(), runs(), values(printed(), runs()))
    assert [path.name for path in found] == ["traces-rounds.png", "traces-minutes.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in found)


def test_a_picture_of_files_is_that_of_the_runs() -> None:
    whole = table(printed().parts[0], measures=(Measure.ROUNDS,))
    found, kept = values(whole, runs()), comparison.traces(whole, runs())
    drawn = traces.from_file(whole, kept.rename(columns=str), found)
    beside = pictures(whole, runs())[Measure.ROUNDS]
    for own, other in zip(drawn.axes, beside.axes, strict=True):
        for line, there in zip(own.lines, other.lines, strict=True):
            assert line.get_xydata() == pytest.approx(there.get_xydata())
