"""Sentences that say which arm is best where, and the panels that figures are divided into."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from support.tiny_sweep import ARMS, EPSILONS, NOISED, fill, summary_of, sweep

from securefl.commands.telling import echo_arms
from securefl.report.accuracy import MEASURES
from securefl.report.sentences import rows
from securefl.report.style import legend
from securefl.sweep.best import arms_of, table
from securefl.sweep.cells import parse_sweep
from securefl.sweep.tradeoff import Series, other_axes, series_of
from securefl.sweep.tradeoff_plots import accuracy, pictures

PANELS = f"""[sweep]
panels = ["data.clients", "privacy.calibration"]
[sweep.grid]
"data.clients" = [5, 6]
"privacy.calibration" = ["exact", "paper"]
{EPSILONS}
"""


def line(name: str, accuracy: Mapping[float, float], *panel: str, spent: float = 1.0) -> Series:
    """A series of one seed. spent: the true epsilon as a share of the asked one."""
    rows = pd.DataFrame(
        {
            "asked": [*accuracy],
            "epsilon_true": [spent * asked for asked in accuracy],
            "final_accuracy": [*accuracy.values()],
            "models": "global",
        }
    )
    return Series(number=0, label=name, values={"arm": name}, rows=rows, panel=panel, line=name, look=0)


def test_each_line_has_a_row_and_each_epsilon_a_column() -> None:
    found = table(
        [
            line("a", {1.0: 0.5, 2.0: math.nan}, "few", "here"),
            line("b", {1.0: 0.6}, spent=1.1),
            line("d", {math.inf: 0.6}),
            line("c", {1.0: 0.9}, spent=math.inf),
        ]
    )
    assert found == [
        ["Final accuracy at epsilon", "1", "2", "∞"],
        ["few: here: a", "0.500", "–", "–"],
        ["b", "0.600 (ε = 1.1)", "–", "–"],
        ["d", "–", "–", "0.600"],
        ["c", "0.900 (ε = infinite)", "–", "–"],
    ]


def test_each_arm_of_each_cell_has_a_line_of_the_table_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = sweep(
        f'"data.clients" = [5, 6]\n{EPSILONS}',
        study=NOISED + ARMS.replace('"unit"', f'"unit {"and long " * 9}norm"'),
    )
    fill(swept, tmp_path, leave=1)
    head, *rest = rows(arms_of(swept, summary_of(swept, tmp_path)))
    assert head == ["arm", "accuracy", "MB", "ε server", "ε key-holder", "ε others"]
    assert len(rest) == 2 * (len(swept.cells) - 1)
    names = [name for name, *_ in rest]
    assert names[1] == f"{swept.cells[0].name}: bounded"
    assert [row[5] for row in rest[::2]] == ["0.45", "1.8", "∞", "0.45", "1.8"]
    echo_arms(head, *rest)
    _, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert len({line[:50] for line in lines}) == len(rest), "what differs stays"


def test_a_legend_whose_labels_are_long_leaves_the_axes_their_place(tmp_path: Path) -> None:
    swept = sweep(EPSILONS)
    fill(swept, tmp_path)
    first = series_of(swept, summary_of(swept, tmp_path))[0]
    long = [replace(first, number=n, look=n, line=f"{'a label with many words, ' * 6}{n}") for n in range(40)]
    figure = accuracy(long, MEASURES["classification"]).figure
    legend(figure)
    figure.draw_without_rendering()  # matplotlib warns if axes have no place, and a warning is an error
    assert figure.axes[0].get_window_extent().height > 200


def test_a_key_with_one_value_for_each_line_is_no_axis(tmp_path: Path) -> None:
    swept = parse_sweep(NOISED + ARMS + PANELS)
    fill(swept, tmp_path)
    summary = summary_of(swept, tmp_path)
    assert [own[0].axis for own in other_axes(swept, summary)] == ["data.clients"]
    paired = (summary["data.clients"] == 5) == (summary["arm"] == "unit")
    assert not other_axes(swept, summary[paired])


def test_each_panel_has_its_axes_and_an_arm_one_look(tmp_path: Path) -> None:
    swept = parse_sweep(NOISED + ARMS + PANELS)
    fill(swept, tmp_path)
    series = series_of(swept, summary_of(swept, tmp_path))
    assert {own.panel for own in series} == {
        (clients, words)
        for clients in ("5 clients", "6 clients")
        for words in ("exact calibration", "the paper's calibration")
    }
    assert {(own.line, own.look) for own in series} == {("unit", 0), ("bounded", 1)}
    first, *_, last = pictures(series)
    titles = [axes.get_title() for axes in first.figure.axes]
    assert titles == [
        f"{clients}\n{words}"
        for words in ("exact calibration", "the paper's calibration")
        for clients in ("5 clients", "6 clients")
    ]
    named = [text.get_text() for text in first.figure.legends[0].get_texts()]
    assert named == ["unit", "bounded", "one constant answer"]
    assert len(last.figure.axes) == 4


def test_a_panel_that_nothing_ran_in_is_left_out(tmp_path: Path) -> None:
    swept = parse_sweep(NOISED + ARMS + PANELS)
    fill(swept, tmp_path, leave=3)
    series = series_of(swept, summary_of(swept, tmp_path))
    figure = accuracy(series, MEASURES["classification"]).figure
    assert [axes.get_visible() for axes in figure.axes] == [True, True, True, False]
