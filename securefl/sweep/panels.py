"""The axes of a figure: one for all series, or one for each panel of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from securefl.sweep.tradeoff import Series

_WIDTH, _HEIGHT = 9.0, 4.6
_OF_PANEL = (3.0, 2.5)
"""Inches of a figure with one panel, and of one panel among several."""
_LETTERS = 11
"""Letters of a title to an inch."""
Panel = tuple[str, ...]


def panelled(series: Sequence[Series], what: str) -> tuple[Figure, dict[Panel, Axes]]:
    """A figure with axes for every panel of these series. what: the quantity upwards, the same in all.

    Panels stand side by side by their first words, and below each other by the others.
    """
    columns = list(dict.fromkeys(own.panel[:1] for own in series))
    rows = list(dict.fromkeys(own.panel[1:] for own in series))
    several = len(columns) * len(rows) > 1
    width, height = _OF_PANEL[0] * len(columns), _OF_PANEL[1] * len(rows)
    size = (max(_WIDTH, width), max(_HEIGHT, height)) if several else (_WIDTH, _HEIGHT)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    places = figure.subplots(len(rows), len(columns), sharex=several, sharey=several, squeeze=False)
    there = {own.panel for own in series}
    made: dict[Panel, Axes] = {}
    for down, row in enumerate(rows):
        for right, column in enumerate(columns):
            axes = places[down, right]
            if column + row in there:
                made[column + row] = axes
                axes.set_title(_title(column, row, size[0] / len(columns)), fontsize=9)
                _dress(axes, what if right == 0 else "")
            else:
                axes.set_visible(False)
    return figure, made


def _title(column: Panel, row: Panel, inches: float) -> str:
    """The panel's words in lines that fit its width: longer ones would run into the next panel's."""
    parts = filter(None, (", ".join(column), ", ".join(row)))
    return "\n".join(fill(part, int(inches * _LETTERS)) for part in parts)


def _dress(axes: Axes, what: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E3E3E3", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_ylabel(what)


def along(made: Mapping[Panel, Axes], what: str) -> None:
    """Say what the horizontal axes have, below the lowest panel of each column."""
    lowest = {panel[:1]: axes for panel, axes in made.items()}
    for axes in lowest.values():
        axes.set_xlabel(what, fontsize=10 if len(made) == 1 else 8)
        axes.tick_params(labelbottom=True)
