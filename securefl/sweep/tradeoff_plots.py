"""The figures of a sweep: what privacy and bytes cost in accuracy, a line per series.

Means are over the seeds, with a 95 % band by Student's t (see `curves`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from securefl.sweep.curves import Ink, Place, Range, draw, mark
from securefl.sweep.panels import Panel, along, panelled
from securefl.sweep.tradeoff import Series
from securefl.training.evaluation import MEASURES, Measure

_NEVER = "not reached"


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """A figure with its name (of files and ids), heading and caption. legend: a series for each look."""

    name: str
    title: str
    caption: str
    figure: Figure
    legend: Sequence[Series]


def drawings(
    series: Sequence[Series],
    *,
    epsilon_swept: bool,
    legend: bool,
    measure: Measure = MEASURES["classification"],
) -> list[Drawing]:
    """The figures that this sweep has data for. legend: of its own, below the axes. measure: of accuracy."""
    made = []
    if epsilon_swept:
        made.append(accuracy_against_epsilon(series, measure))
        if any(own.rows["target"].notna().any() for own in series):
            made.append(rounds_against_epsilon(series))
    made.append(accuracy_against_bytes(series, measure))
    for drawing in made:
        if legend:
            _legend(drawing.figure, drawing.legend)
    return made


def _looks(series: Sequence[Series]) -> list[Series]:
    """The first series of each look."""
    return list({own.look: own for own in reversed(series)}.values())[::-1]


def accuracy_against_epsilon(series: Sequence[Series], measure: Measure) -> Drawing:
    """Final accuracy against the epsilon asked for."""
    figure, axes = panelled(series, f"final {measure.axis}")
    place = _epsilon_axis(axes, series)
    for own in series:
        points = [p for p in own.points("final_accuracy") if not isnan(p.mean)]
        draw(axes[own.panel], own, place, points, Range(measure.least, 1.0))
    return Drawing(
        name="accuracy_epsilon",
        title="Accuracy against the epsilon asked for",
        caption=f"Accuracy after the last round: {measure.words}. Mean over the seeds with a 95 % band "
        f"(Student's t); of two seeds each is a point. The axis is the epsilon the noise was calibrated for "
        f"(the true one stands in the table); open marks, and a dashed line, hold none in truth."
        f"{_personal(series)}",
        figure=figure,
        legend=_looks(series),
    )


def _personal(series: Sequence[Series]) -> str:
    """What a caption says where personal models were tested."""
    count = sum(own.personal for own in series)
    if not count:
        return " The one global model is tested on the server's records."
    what = "personal models, each tested on records like its own client's"
    if count == len(series):
        return f" All are of {what} (dotted)."
    return f" Dotted: {what}, which do not compare with global models on the server's records."


def rounds_against_epsilon(series: Sequence[Series]) -> Drawing:
    """Rounds to the target against the epsilon asked for; where no seed reached it, a cross at the top."""
    figure, made = panelled(series, "rounds to the target")
    place = _epsilon_axis(made, series, aside=0.25)
    curves = {own.number: own.points("rounds_to_target") for own in series}
    means = [p.mean for points in curves.values() for p in points if not isnan(p.mean)]
    # Above every mean, so that a cross for "never" is not read as a round.
    top = 1.12 * max(means, default=1.0) + 1
    for own in series:
        axes = made[own.panel]
        points = [p for p in curves[own.number] if not isnan(p.mean)]
        draw(axes, own, place, points, Range(0.0, inf), band=False)
        lost = [place(own, p.asked) for p in curves[own.number] if isnan(p.mean)]
        if lost:
            crosses = axes.plot(lost, [top] * len(lost), "x", color=Ink.of(own).colour, markersize=8)
            mark(own, "never", crosses)
    lost_somewhere = any(isnan(p.mean) for points in curves.values() for p in points)
    for axes in made.values():
        _rounds_axis(axes, top, never=lost_somewhere)
    return Drawing(
        name="rounds_epsilon",
        title="Rounds to the target against the epsilon asked for",
        caption="The first round that reached the target accuracy: the mean over the seeds that did, with a "
        "95 % bar; of two seeds each is a point. An open mark: some seeds never did. A cross at the top: "
        "none did.",
        figure=figure,
        legend=_looks(series),
    )


def _rounds_axis(axes: Axes, top: float, *, never: bool) -> None:
    axes.set_yticks([value for value in MaxNLocator(integer=True).tick_values(0, top) if value < top - 0.5])
    axes.set_ylim(0, 1.15 * top)
    if never:
        axes.axhline(top, color="#BBBBBB", linewidth=0.8, zorder=0)
        low, _ = axes.get_xlim()
        axes.annotate(_NEVER, (low, top), (4, 8), textcoords="offset points", fontsize=9, color="#555555")


def accuracy_against_bytes(series: Sequence[Series], measure: Measure) -> Drawing:
    """Final accuracy against all bytes of a run; marks grow with the epsilon asked for."""
    figure, made = panelled(series, f"final {measure.axis}")
    asked = sorted({float(value) for own in series for value in own.rows["asked"]})
    xs = []
    for own in series:
        ink = Ink.of(own)
        rows = own.rows.assign(moved=(own.rows["bytes_up"] + own.rows["bytes_down"]) / 1e6)
        means = rows.groupby("asked")[["moved", "final_accuracy"]].mean()
        sizes = [5 + 6 * (asked.index(float(str(e))) + 1) / len(asked) for e in means.index]
        for number, (x, y, size) in enumerate(
            zip(means["moved"], means["final_accuracy"], sizes, strict=True)
        ):
            dot = made[own.panel].plot(
                [x],
                [y],
                ink.marker,
                color=ink.colour,
                markerfacecolor=ink.fill,
                alpha=0.8,
                markersize=size,
                label=own.line if number == 0 else "_nolegend_",
            )
            mark(own, f"mark-{number}", dot)
        xs += [float(x) for x in means["moved"]]
    # More than twentyfold apart, the bytes would crowd at both ends of a linear axis.
    for axes in made.values():
        if min(xs) > 0 and max(xs) / min(xs) > 20:
            axes.set_xscale("log")
        elif min(xs) == max(xs):
            axes.set_xlim(0, 2 * max(xs) or 1)
    along(made, "sent and received in the whole run, all clients (MB)")
    return Drawing(
        name="accuracy_bytes",
        title="Accuracy against bytes",
        caption="Accuracy after the last round and megabytes on the wire, both directions, means over the "
        "seeds. A mark per epsilon asked for, the larger the larger epsilon; no noise has the largest."
        f"{_personal(series)}",
        figure=figure,
        legend=_looks(series),
    )


def _epsilon_axis(made: Mapping[Panel, Axes], series: Sequence[Series], *, aside: float = 0.0) -> Place:
    place = Place(series, aside)
    # Ticks that touch are not read: of close ones the first stays.
    gap = (place.right / (place.finite[0] if place.finite else 1.0)) ** (0.05 if len(made) == 1 else 0.12)
    ticks: list[float] = []
    for value in place.finite:
        if not ticks or value / ticks[-1] >= gap:
            ticks.append(value)
    labels = [f"{value:g}" for value in ticks]
    if place.endless:
        ticks.append(place.right)
        labels.append("no noise")
    for axes in made.values():
        axes.set_xscale("log")
        if place.endless and place.finite:
            between = float(np.sqrt(place.finite[-1] * place.right))
            axes.axvline(between, color="#999999", linewidth=0.8, linestyle=(0, (2, 3)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xticks(ticks, labels)
    along(made, "epsilon asked for (log scale)")
    return place


def _legend(figure: Figure, series: Sequence[Series]) -> None:
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
    labels = [own.line for own in series if own.line in handles]
    # About 120 characters of this size fit the width; handle and gap take 8 of each column.
    columns = max(1, min(4, 120 // (8 + max(map(len, labels)))))
    figure.set_figheight(figure.get_figheight() + 0.21 * -(-len(labels) // columns))
    figure.legend(
        [handles[label] for label in labels],
        labels,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=10,
    )
