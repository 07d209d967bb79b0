"""The figures of a sweep: what privacy and bytes cost in accuracy, a line per series.

Every artist of a series has a gid "series-<number>-...", by which a page can show and hide it. Means are over
the seeds, with a 95 % band by Student's t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from math import inf, isfinite, isnan

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from securefl.report.style import ARM_COLOURS
from securefl.sweep.tradeoff import Point, Series

MARKERS = ("o", "s", "^", "D", "v")
_NEVER = "not reached"


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """A figure with its name (of files and ids), heading and caption."""

    name: str
    title: str
    caption: str
    figure: Figure


def colour(series: Series) -> str:
    return ARM_COLOURS[series.number % len(ARM_COLOURS)]


def marker(series: Series) -> str:
    return MARKERS[series.number % len(MARKERS)]


def drawings(series: Sequence[Series], *, epsilon_swept: bool, legend: bool) -> list[Drawing]:
    """The figures that this sweep has data for. legend: of its own, below the axes."""
    made = []
    if epsilon_swept:
        made.append(accuracy_against_epsilon(series))
        if any(own.rows["target"].notna().any() for own in series):
            made.append(rounds_against_epsilon(series))
    made.append(accuracy_against_bytes(series))
    for drawing in made:
        if legend:
            _legend(drawing.figure, [own.label for own in series])
    return made


def accuracy_against_epsilon(series: Sequence[Series]) -> Drawing:
    """Final accuracy against the epsilon asked for."""
    figure, axes = _axes("final accuracy (share, 0 to 1)")
    place = _epsilon_axis(axes, series)
    curves = {own.number: [p for p in own.points("final_accuracy") if not isnan(p.mean)] for own in series}
    for own in series:
        _curve(axes, own, place, curves[own.number])
    if all(0 <= p.mean <= 1 for points in curves.values() for p in points):
        low, high = axes.get_ylim()  # a band of two seeds would stretch the axis beyond what can be
        axes.set_ylim(max(low, 0.0), min(high, 1.0))
    return Drawing(
        name="accuracy_epsilon",
        title="Accuracy against the epsilon asked for",
        caption="Accuracy after the last round, mean over the seeds with a 95 % band (Student's t). The axis "
        "is the epsilon the noise was calibrated for; a dashed line with open marks holds none in truth.",
        figure=figure,
    )


def rounds_against_epsilon(series: Sequence[Series]) -> Drawing:
    """Rounds to the target against the epsilon asked for; where no seed reached it, a cross at the top."""
    figure, axes = _axes("rounds to the target")
    place = _epsilon_axis(axes, series, aside=0.25)
    curves = {own.number: own.points("rounds_to_target") for own in series}
    means = [p.mean for points in curves.values() for p in points if not isnan(p.mean)]
    # Above every mean, so that a cross for "never" is not read as a round.
    top = 1.12 * max(means, default=1.0) + 1
    for own in series:
        _curve(axes, own, place, [p for p in curves[own.number] if not isnan(p.mean)], band=False)
        lost = [place(own, p.asked) for p in curves[own.number] if isnan(p.mean)]
        if lost:
            crosses = axes.plot(lost, [top] * len(lost), "x", color=colour(own), markersize=8)
            _mark(own, "never", crosses)
    axes.set_yticks([value for value in MaxNLocator(integer=True).tick_values(0, top) if value < top - 0.5])
    axes.set_ylim(0, 1.15 * top)
    if any(isnan(p.mean) for points in curves.values() for p in points):
        axes.axhline(top, color="#BBBBBB", linewidth=0.8, zorder=0)
        low, _ = axes.get_xlim()
        axes.annotate(_NEVER, (low, top), (4, 8), textcoords="offset points", fontsize=9, color="#555555")
    return Drawing(
        name="rounds_epsilon",
        title="Rounds to the target against the epsilon asked for",
        caption="The first round that reached the target accuracy: the mean over the seeds that did, with a "
        "95 % bar. An open mark: some seeds never did. A cross at the top: none did.",
        figure=figure,
    )


def accuracy_against_bytes(series: Sequence[Series]) -> Drawing:
    """Final accuracy against all bytes of a run; marks grow with the epsilon asked for."""
    figure, axes = _axes("final accuracy (share, 0 to 1)")
    asked = sorted({float(value) for own in series for value in own.rows["asked"]})
    xs = []
    for own in series:
        rows = own.rows.assign(moved=(own.rows["bytes_up"] + own.rows["bytes_down"]) / 1e6)
        means = rows.groupby("asked")[["moved", "final_accuracy"]].mean()
        sizes = [5 + 6 * (asked.index(float(str(e))) + 1) / len(asked) for e in means.index]
        for number, (x, y, size) in enumerate(
            zip(means["moved"], means["final_accuracy"], sizes, strict=True)
        ):
            dot = axes.plot(
                [x],
                [y],
                marker(own),
                color=colour(own),
                markerfacecolor="white" if own.endless else colour(own),
                alpha=0.8,
                markersize=size,
                label=own.label if number == 0 else "_nolegend_",
            )
            _mark(own, f"mark-{number}", dot)
        xs += [float(x) for x in means["moved"]]
    # More than twentyfold apart, the bytes would crowd at both ends of a linear axis.
    if min(xs) > 0 and max(xs) / min(xs) > 20:
        axes.set_xscale("log")
    elif min(xs) == max(xs):
        axes.set_xlim(0, 2 * max(xs) or 1)
    axes.set_xlabel("sent and received in the whole run, all clients (MB)")
    return Drawing(
        name="accuracy_bytes",
        title="Accuracy against bytes",
        caption="Accuracy after the last round and megabytes on the wire, both directions, means over the "
        "seeds. A mark per epsilon asked for, the larger the larger epsilon; no noise has the largest.",
        figure=figure,
    )


class _Place:
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
        self._count, self._aside = len(series), aside

    def __call__(self, series: Series, asked: float) -> float:
        # Series that are equal are all seen side by side; without noise many are.
        aside = (series.number + 0.5) / self._count - 0.5
        at, width = (asked, self._aside) if isfinite(asked) else (self.right, 0.5)
        return float(at * self.step ** (width * aside))


def _epsilon_axis(axes: Axes, series: Sequence[Series], *, aside: float = 0.0) -> _Place:
    place = _Place(series, aside)
    axes.set_xscale("log")
    # Ticks that touch are not read: of close ones the first stays.
    gap = (place.right / (place.finite[0] if place.finite else 1.0)) ** 0.05
    ticks: list[float] = []
    for value in place.finite:
        if not ticks or value / ticks[-1] >= gap:
            ticks.append(value)
    labels = [f"{value:g}" for value in ticks]
    if place.endless:
        ticks.append(place.right)
        labels.append("no noise")
        if place.finite:
            between = float(np.sqrt(place.finite[-1] * place.right))
            axes.axvline(between, color="#999999", linewidth=0.8, linestyle=(0, (2, 3)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(ticks, labels)
    axes.set_xlabel("epsilon asked for (log scale); the epsilon that is true stands in the table")
    return place


def _curve(axes: Axes, series: Series, place: _Place, points: Sequence[Point], *, band: bool = True) -> None:
    """The finite part as a line with its band (or bars), "no noise" as a point of its own with a bar."""
    ink = colour(series)
    dash = (0, (4, 2)) if series.endless else "-"
    label = series.label
    # In two parts: a line on to "no noise" would cross a gap that has no scale.
    for finite in (True, False):
        own = [p for p in points if isfinite(p.asked) == finite]
        x = [place(series, p.asked) for p in own]
        mean, half = np.array([p.mean for p in own]), np.array([p.half for p in own])
        part = "line" if finite else "no-noise"
        line = axes.plot(x, mean, color=ink, linestyle=dash if finite else "", label=label)
        line[0].set(marker=marker(series), markerfacecolor="white" if series.endless else ink, linewidth=1.8)
        _mark(series, part, line)
        hollow = [i for i, p in enumerate(own) if p.missing]
        if hollow:
            open_ = axes.plot(
                [x[i] for i in hollow], mean[hollow], marker(series), color=ink, markerfacecolor="white"
            )
            _mark(series, f"{part}-open", open_)
        known = ~np.isnan(half)
        if band and finite and known.sum() > 1:
            shade = axes.fill_between(
                x, mean - half, mean + half, where=known, color=ink, alpha=0.1, linewidth=0
            )
            _mark(series, f"{part}-band", [shade])
        elif known.any():
            bars = axes.errorbar(x, mean, yerr=half, fmt="none", ecolor=ink, capsize=3)
            _mark(series, f"{part}-bar", [a for a in bars.get_children() if isinstance(a, Artist)])
        label = "_nolegend_"


def _mark(series: Series, what: str, artists: Sequence[Artist]) -> None:
    for number, artist in zip(count(), artists, strict=False):
        artist.set_gid(f"series-{series.number}-{what.replace(' ', '-')}-{number}")


def _axes(what: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9.0, 4.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E3E3E3", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_ylabel(what)
    return figure, axes


def _legend(figure: Figure, labels: Sequence[str]) -> None:
    # About 120 characters of this size fit the width; handle and gap take 8 of each column.
    columns = max(1, min(4, 120 // (8 + max(map(len, labels)))))
    figure.set_figheight(figure.get_figheight() + 0.21 * -(-len(labels) // columns))
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=10)
