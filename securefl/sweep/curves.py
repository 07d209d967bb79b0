"""One series over the asked epsilon: its line and marks, and how far its seeds lie apart.

Every artist of a series has a gid "series-<number>-...", by which a page can show and hide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from math import inf, isfinite, isnan

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from numpy.typing import NDArray

from securefl.report.style import look
from securefl.sweep.tradeoff import Point, Series

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ink:
    """How a series is drawn. Colour and mark tell it from others; line and fill say what is true of it.

    fill: of marks, white if it holds no epsilon. dash: lengths on and off, empty for a whole line: dotted for
    personal models, dashed if it holds no epsilon.
    """

    colour: str
    marker: str
    fill: str
    dash: tuple[int, ...]

    @classmethod
    def of(cls, series: Series) -> Ink:
        worn = look(series.look)
        dash = (1, 2) if series.personal else (4, 2) if series.endless else ()
        return cls(worn.colour, worn.marker, "white" if series.endless else worn.colour, dash)


class Place:
    """Where an asked epsilon is on the axis: infinity, "no noise", stands right of the largest.

    aside: the share of the gap between two epsilons over which the series are spread at one.
    """

    def __init__(self, series: Sequence[Series], aside: float) -> None:
        asked = {float(value) for own in series for value in own.rows["asked"]}
        self.finite = sorted(value for value in asked if isfinite(value))
        self.endless = inf in asked
        steps = [high / low for low, high in pairwise(self.finite)]
        self.step = min(max(steps, default=2.0), 10.0)
        self.right = (self.finite[-1] if self.finite else 1.0) * self.step**1.2
        self._count, self._aside = 1 + max((own.look for own in series), default=0), aside

    def __call__(self, series: Series, asked: float) -> float:
        # Series that are equal are all seen side by side; without noise many are.
        aside = (series.look + 0.5) / self._count - 0.5
        at, width = (asked, self._aside) if isfinite(asked) else (self.right, 0.5)
        return float(at * self.step ** (width * aside))


@dataclass(frozen=True)
class Range:
    """What a quantity can be: bands and bars end there."""

    least: float
    most: float

    def around(self, points: Sequence[Point]) -> tuple[Floats, Floats]:
        """The ends of the points' bands."""
        mean, half = (np.array([getattr(p, name) for p in points]) for name in ("mean", "half"))
        return np.maximum(mean - half, self.least), np.minimum(mean + half, self.most)


def draw(
    axes: Axes,
    series: Series,
    place: Place,
    points: Sequence[Point],
    limits: Range,
    *,
    band: bool = True,
) -> None:
    """The finite part as a line with its band (or bars), "no noise" as a point of its own with a bar."""
    ink, label = Ink.of(series), series.line
    # In two parts: a line on to "no noise" would cross a gap that has no scale.
    for part, finite in (("line", True), ("no-noise", False)):
        own = [p for p in points if isfinite(p.asked) == finite]
        x = np.array([place(series, p.asked) for p in own])
        mean = np.array([p.mean for p in own])
        line = axes.plot(x, mean, ink.marker, color=ink.colour, markerfacecolor=ink.fill, label=label)
        line[0].set(linestyle=(0, ink.dash) if finite and ink.dash else "-" if finite else "", linewidth=1.8)
        mark(series, part, line)
        hollow = [i for i, p in enumerate(own) if p.missing]
        if hollow:
            open_ = axes.plot(x[hollow], mean[hollow], ink.marker, color=ink.colour, markerfacecolor="white")
            mark(series, f"{part}-open", open_)
        each = [(at, value) for at, p in zip(x, own, strict=True) if len(p.values) == 2 for value in p.values]
        if each:
            mark(
                series, f"{part}-seeds", axes.plot(*zip(*each, strict=True), ".", color=ink.colour, alpha=0.6)
            )
        _spread(axes, series, part, x, own, limits, band and finite)
        label = "_nolegend_"


def _spread(
    axes: Axes, series: Series, part: str, x: Floats, own: Sequence[Point], limits: Range, band: bool
) -> None:
    """The band over three seeds or more, or a bar at each point."""
    known = [i for i, p in enumerate(own) if not isnan(p.half)]
    if not known:
        return
    ink, (low, high) = Ink.of(series).colour, limits.around(own)
    if band and len(known) > 1:
        shade = axes.fill_between(x, low, high, where=~np.isnan(low), color=ink, alpha=0.1, linewidth=0)
        mark(series, f"{part}-band", [shade])
        return
    mean = np.array([p.mean for p in own])
    ends = [(mean - low)[known], (high - mean)[known]]
    bars = axes.errorbar(x[known], mean[known], yerr=ends, fmt="none", ecolor=ink, capsize=3)
    mark(series, f"{part}-bar", [a for a in bars.get_children() if isinstance(a, Artist)])


def mark(series: Series, what: str, artists: Sequence[Artist]) -> None:
    for number, artist in zip(count(), artists, strict=False):
        artist.set_gid(f"series-{series.number}-{what.replace(' ', '-')}-{number}")
