"""Figures of a classifier beside its accuracy: confusion matrices and reliability diagrams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from securefl.report import style
from securefl.report.style import WIDTH, Look, blank, checked, curve, legend, letters, light_frame
from securefl.report.terminal import shortened

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_NUMBERED = 12
"""The most classes of a matrix with numbers."""


def confusion(table: pd.DataFrame) -> Figure:
    """A matrix for each model: the percentage of a class's records (row) by predicted class (column).

    Percentages are shades, and numbers too if the classes are few; those below a half have no number.
    table: columns name, true, predicted, records; records are summed over seeds.
    Raises DataError for missing columns or an empty frame.
    """
    from matplotlib.colors import LinearSegmentedColormap

    data = checked(table, ("name", "true", "predicted", "records"))
    # From transparent: nothing is as light or as dark as the page. No shade hides the numbers on it.
    ink = style.ARM_COLOURS[0]
    shades = LinearSegmentedColormap.from_list("share", [f"{ink}00", f"{ink}BF"])
    names = list(dict.fromkeys(data["name"]))
    figure = blank(height=0.4 + 3.1 * len(names))
    figure.subplots(len(names), 1)
    # Two lines above a matrix have room.
    titles = shortened([str(name) for name in names], 2 * max(16, letters(WIDTH) - 16))
    for axes, name, title in zip(figure.axes, names, titles, strict=False):
        own = data[data["name"] == name]
        counts = own.pivot_table(index="true", columns="predicted", values="records", aggfunc="sum")
        matrix = counts.to_numpy(dtype=float)
        # A class without test records has a row of zeros.
        share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
        # Without interpolation a page has a dot for each number, which the browser enlarges.
        image = axes.imshow(100 * share, cmap=shades, vmin=0, vmax=100, interpolation="none")
        for (row, column), each in np.ndenumerate(100 * share if len(share) <= _NUMBERED else ()):
            if each >= 0.5:
                axes.text(column, row, f"{each:.0f}", fontsize=9, ha="center", va="center")
        style.whole_numbers(axes.xaxis)
        style.whole_numbers(axes.yaxis)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("class")
        style.panel_title(axes, title)
    figure.colorbar(image, ax=figure.axes, aspect=20 * len(names), label="records of the class (%)")
    return figure


def calibration(table: pd.DataFrame, *, looks: Mapping[str, Look] | None = None) -> Figure:
    """Reliability diagram: the share of right classes against the probability that the model gave them.

    table: columns name, probability, right, records: a row for each model, seed and bin. Bins of several
    seeds are drawn as points. On the diagonal a probability is as good as it says.
    Raises DataError for missing columns or an empty frame.
    """
    data = checked(table, ("name", "probability", "right", "records"))
    names = list(dict.fromkeys(data["name"]))
    shown = style.looks([*(looks or {}), *names]) | {**(looks or {})}
    figure = blank(height=3.9)
    axes = figure.subplots()
    light_frame(axes)
    axes.plot([0, 1], [0, 1], color="#8a8a8a", linestyle=":", linewidth=1.4, label="as good as it says")
    several = "seed" in data.columns and data["seed"].nunique() > 1
    for name in names:
        own = data[data["name"] == name].sort_values("probability")
        curve(axes, own["probability"], own["right"], shown[name], label=name, joined=not several)
    words = {"xlabel": "probability of the predicted class", "ylabel": "share of right classes"}
    axes.set(xlim=(0, 1), ylim=(0, 1), **words)
    legend(figure)
    return figure
