"""Draws the figures of a sweep: accuracy and rounds against the true epsilon, another key, or bytes.

Each series is a line of means over the seeds, with a 95 % band by Student's t, or points if seeds are few. A
figure has one pair of axes for all series, or one for each panel. Every artist of a series has a gid
"series-<number>-...", by which the page shows and hides it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from math import ceil, floor, inf, isfinite, isnan, log10
from textwrap import fill
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from securefl.report.accuracy import MEASURES, Measure
from securefl.report.plots import draw_floor
from securefl.report.style import (
    FEW_SEEDS,
    NARROW,
    WIDE,
    far_apart,
    legend,
    legend_height,
    light_frame,
    look,
    no_settings_of_the_folder,
)
from securefl.sweep.tradeoff import Point, Series

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT, _NARROW_HEIGHT = 4.6, 3.7


_SHORT: Final = 0.004
"""How far an epsilon may be from the number that labels it: noise for 2 may cost 1.995."""
_NEVER = "not reached"
_OF_PANEL = (3.0, 2.5)
"""Inches of a figure with one panel, and of one panel among several."""
_LETTERS = 11
"""Letters of a title in an inch."""
Panel = tuple[str, ...]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """A figure with its name (for files and ids), heading and caption. legend: one series for each look."""

    name: str
    title: str
    caption: str
    figure: Figure
    legend: Sequence[Series]


def drawings(
    series: Sequence[Series],
    *,
    legend: bool,
    measure: Measure = MEASURES["classification"],
    others: Sequence[Sequence[Series]] = (),
    narrow: bool = False,
) -> list[Drawing]:
    """The figures for which this sweep has data. The first one is the one that a reader should see first.

    Series without an accuracy are in none.

    legend: whether each figure gets a legend below its axes. measure: of accuracy. others: series over other
    axes than epsilon. narrow: whether the figures are for a narrow screen.
    """
    series, *others = [[own for own in group if own.known] for group in (series, *others)]
    made = []
    if any(isfinite(point.at) for own in series for point in own.points("final_accuracy")):
        made.append(accuracy_against_epsilon(series, measure, narrow))
        if any(own.rows["target"].notna().any() for own in series):
            made.append(rounds_against_epsilon(series, narrow))
    made += [accuracy_against_key(own, measure, narrow) for own in others if own]
    if series:
        made.append(accuracy_against_bytes(series, measure, narrow))
    for drawing in made:
        if legend:
            add_legend(drawing)
    return made


def _looks(series: Sequence[Series]) -> list[Series]:
    """The first series of each look."""
    return list({own.look: own for own in reversed(series)}.values())[::-1]


def accuracy_against_epsilon(series: Sequence[Series], measure: Measure, narrow: bool = False) -> Drawing:
    """The figure of final accuracy against the true epsilon."""
    figure, axes = panelled(series, f"final {measure.axis}", narrow=narrow)
    place = _epsilon_axis(axes, series)
    for own in series:
        points = [p for p in own.points("final_accuracy") if not isnan(p.mean)]
        draw(axes[own.panel], own, place, points, Range(measure.least, 1.0))
    floor_words = _floors(axes, series)
    return Drawing(
        name="accuracy_epsilon",
        title="Accuracy against the true epsilon",
        caption=f"Accuracy after the last round: {measure.words}. Mean over the seeds with a 95 % band "
        f"(Student's t); fewer than {FEW_SEEDS} seeds are drawn as points. The axis is the largest epsilon "
        "that a client's ledger states against the adversaries after the run, whatever made it finite: noise "
        f"on statistics or updates, or private training.{_without_epsilon(series, place)}"
        f"{_personal(series)}{floor_words}",
        figure=figure,
        legend=_looks(series),
    )


def accuracy_against_key(series: Sequence[Series], measure: Measure, narrow: bool = False) -> Drawing:
    """The figure of final accuracy against a swept key with numbers."""
    key = series[0].axis
    figure, made = panelled(series, f"final {measure.axis}", narrow=narrow)
    values = sorted({point.at for own in series for point in own.points("final_accuracy")})
    for own in series:
        points = [p for p in own.points("final_accuracy") if not isnan(p.mean)]
        draw(made[own.panel], own, lambda _, at: at, points, Range(measure.least, 1.0))
    for axes in made.values():
        far_apart(axes, values)
    along(made, key)
    floor_words = _floors(made, series)
    return Drawing(
        name=f"accuracy_{key.replace('.', '_')}",
        title=f"Accuracy against {key}",
        caption=f"Accuracy after the last round: {measure.words}. Each line is an arm at fixed values of all "
        f"other swept keys.{_personal(series)}{floor_words}",
        figure=figure,
        legend=_looks(series),
    )


def _floors(made: Mapping[Panel, Axes], series: Sequence[Series]) -> str:
    """Draw the accuracy of a constant answer in each panel. Returns the sentence of a caption on it."""
    known = [own for own in series if own.rows["floor"].notna().any()]
    for own in known:
        # Series over the same records have the same floor: their lines are one.
        draw_floor(made[own.panel], own.rows, labelled=False)
    return " Grey dots: the accuracy of one constant answer." if known else ""


def _without_epsilon(series: Sequence[Series], place: Place) -> str:
    """The sentences of a caption on points without a finite epsilon, if there are any."""
    said = " On the right: no finite epsilon." if place.endless else ""
    if any(own.endless for own in series):
        said += " Open marks and dashed lines: noise was added, and epsilon is infinite all the same."
    return said


def _personal(series: Sequence[Series]) -> str:
    """The sentence of a caption on the models that were tested."""
    count = sum(own.personal for own in series)
    if not count:
        return " The one global model is tested on the server's records."
    what = "personal models, each tested on records like its own client's"
    if count == len(series):
        return f" All are of {what} (dotted)."
    return f" Dotted: {what}, which do not compare with global models on the server's records."


def rounds_against_epsilon(series: Sequence[Series], narrow: bool = False) -> Drawing:
    """The figure of rounds to the target against the true epsilon. A cross at the top: no seed reached the
    target."""
    figure, made = panelled(series, "rounds to the target", narrow=narrow)
    place = _epsilon_axis(made, series, aside=0.25)
    curves = {own.number: own.points("rounds_to_target") for own in series}
    means = [p.mean for points in curves.values() for p in points if not isnan(p.mean)]
    # Above every mean, so that readers do not take the cross for a round.
    top = 1.12 * max(means, default=1.0) + 1
    for own in series:
        axes = made[own.panel]
        points = [p for p in curves[own.number] if not isnan(p.mean)]
        draw(axes, own, place, points, Range(0.0, inf), band=False)
        lost = [place(own, p.at) for p in curves[own.number] if isnan(p.mean)]
        if lost:
            crosses = axes.plot(lost, [top] * len(lost), "x", color=Ink.of(own).colour, markersize=8)
            mark(own, "never", crosses)
    lost_somewhere = any(isnan(p.mean) for points in curves.values() for p in points)
    for axes in made.values():
        _rounds_axis(axes, top, never=lost_somewhere)
    return Drawing(
        name="rounds_epsilon",
        title="Rounds to the target against the true epsilon",
        caption="The first round that reached the target accuracy: the mean over the seeds that reached it, "
        f"with a 95 % bar; fewer than {FEW_SEEDS} seeds are drawn as points. An open mark: some seeds never "
        "reached it. A cross at the top: no seed reached it.",
        figure=figure,
        legend=_looks(series),
    )


def _rounds_axis(axes: Axes, top: float, *, never: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_yticks([value for value in MaxNLocator(integer=True).tick_values(0, top) if value < top - 0.5])
    axes.set_ylim(0, 1.15 * top)
    if never:
        axes.axhline(top, color="#BBBBBB", linewidth=0.8, zorder=0)
        low, _ = axes.get_xlim()
        axes.annotate(_NEVER, (low, top), (4, 8), textcoords="offset points", fontsize=9, color="#555555")


def accuracy_against_bytes(series: Sequence[Series], measure: Measure, narrow: bool = False) -> Drawing:
    """The figure of final accuracy against all bytes of a run. Marks grow with epsilon."""
    figure, made = panelled(series, f"final {measure.axis}", narrow=narrow)
    asked = sorted({float(value) for own in series for value in own.rows["asked"]})
    xs = []
    for own in series:
        ink = Ink.of(own)
        rows = own.rows.assign(moved=(own.rows["bytes_up"] + own.rows["bytes_down"]) / 1e6)
        means = rows.groupby("asked")[["moved", "final_accuracy"]].mean()
        dots = made[own.panel].scatter(
            means["moved"],
            means["final_accuracy"],
            s=[(5 + 6 * (asked.index(float(str(e))) + 1) / len(asked)) ** 2 for e in means.index],
            marker=ink.marker,
            edgecolors=ink.colour,
            facecolors=ink.fill,
            alpha=0.8,
            label=own.line,
        )
        mark(own, "mark", [dots])
        xs += [float(x) for x in means["moved"]]
    for axes in made.values():
        if not far_apart(axes, xs) and min(xs) == max(xs):
            axes.set_xlim(0, 2 * max(xs) or 1)
    along(made, "sent and received in the whole run, all clients (MB)")
    floor_words = _floors(made, series)
    return Drawing(
        name="accuracy_bytes",
        title="Accuracy against bytes",
        caption="Accuracy after the last round and megabytes on the wire, both directions, means over the "
        "seeds. Each cell has a mark, which grows with its epsilon; an infinite one has the largest."
        f"{_personal(series)}{floor_words}",
        figure=figure,
        legend=_looks(series),
    )


def _epsilon_axis(made: Mapping[Panel, Axes], series: Sequence[Series], *, aside: float = 0.0) -> Place:
    from matplotlib.ticker import NullFormatter, NullLocator

    place = Place(series, aside)
    # Ticks that touch are illegible: of close ones only the first is drawn.
    gap = (place.right / (place.finite[0] if place.finite else 1.0)) ** (0.05 if len(made) == 1 else 0.12)
    ticks: list[float] = []
    for value in _ticks(place.finite):
        if not ticks or value / ticks[-1] >= gap:
            ticks.append(value)
    labels = [f"{value:g}" for value in ticks]
    if place.endless:
        ticks.append(place.right)
        labels.append("infinite")
    for axes in made.values():
        axes.set_xscale("log")
        if place.endless and place.finite:
            between = float(np.sqrt(place.finite[-1] * place.right))
            axes.axvline(between, color="#999999", linewidth=0.8, linestyle=(0, (2, 3)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xticks(ticks, labels)
    along(made, f"true epsilon{_holds(series)} (log scale)")
    return place


def _ticks(values: Sequence[float]) -> list[float]:
    """The values themselves if they are short numbers, such as 0.5 and 8, and else 1, 2, 5, 10 and so on."""
    short = sorted({float(f"{value:.2g}") for value in values})
    if all(abs(value / float(f"{value:.2g}") - 1) < _SHORT for value in values):
        return short
    low, high = values[0], values[-1]
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    found = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    inside = [value for value in found if low * 0.99 <= value <= high * 1.01]
    return inside if len(inside) > 1 else short


def _holds(series: Sequence[Series]) -> str:
    """What the epsilon of all series holds for, in words; empty if they differ."""
    units, deltas = (
        {value for own in series for value in own.rows.get(name, [])} for name in ("unit", "delta")
    )
    if len(units) != 1 or len(deltas) != 1:
        return ""
    return f" per {units.pop()} at delta {deltas.pop():g}"


def add_legend(drawing: Drawing) -> None:
    """Draw the legend below the axes."""
    figure, labels = drawing.figure, [own.line for own in drawing.legend]
    figure.set_figheight(figure.get_figheight() + legend_height(figure.get_figwidth(), labels))
    legend(figure, labels)


def panelled(
    series: Sequence[Series], what: str, *, narrow: bool = False
) -> tuple[Figure, dict[Panel, Axes]]:
    """A figure with axes for every panel of these series. what: the quantity of all vertical axes.

    Panels with different first words are side by side, and panels with different other words are below each
    other. On a narrow screen they are in rows of two, in the order of the series.
    """
    with no_settings_of_the_folder():
        from matplotlib.figure import Figure

    there = list(dict.fromkeys(own.panel for own in series))
    columns = list(dict.fromkeys(panel[:1] for panel in there))
    rows = list(dict.fromkeys(panel[1:] for panel in there))
    grid: dict[Panel, tuple[int, int]] = {
        column + row: (down, right) for down, row in enumerate(rows) for right, column in enumerate(columns)
    }
    across, high = len(columns), len(rows)
    several, small = len(there) > 1, narrow and len(there) > 1
    if small:
        across, high = 2, -(-len(there) // 2)
        grid = {panel: divmod(number, 2) for number, panel in enumerate(there)}
    least = (NARROW, _NARROW_HEIGHT) if narrow else (WIDE, _HEIGHT)
    size = (max(least[0], 0 if narrow else _OF_PANEL[0] * across), max(least[1], _OF_PANEL[1] * high))
    figure = Figure(figsize=size if several else least, dpi=110, layout="constrained")
    places = figure.subplots(high, across, sharex=several, sharey=several, squeeze=False)
    for axes in places.flat:
        axes.set_visible(False)
    made: dict[Panel, Axes] = {}
    for panel in sorted(there, key=grid.__getitem__):
        axes = places[grid[panel]]
        axes.set_visible(True)
        axes.set_title(_title(panel[:1], panel[1:], size[0] / across), fontsize=9)
        _dress(axes, what if grid[panel][1] == 0 else "")
        made[panel] = axes
    return figure, made


def _title(column: Panel, row: Panel, inches: float) -> str:
    """The panel's words in lines that fit its width: longer lines would overlap the next panel's title."""
    parts = filter(None, (", ".join(column), ", ".join(row)))
    return "\n".join(fill(part, int(inches * _LETTERS)) for part in parts)


def _dress(axes: Axes, what: str) -> None:
    light_frame(axes)
    axes.set_ylabel(what)


def along(made: Mapping[Panel, Axes], what: str) -> None:
    """Label the horizontal axes, below the lowest panel of each column."""
    lowest: dict[float, Axes] = {}
    for axes in made.values():
        spot = axes.get_subplotspec()
        lowest[0 if spot is None else spot.colspan.start] = axes
    for axes in lowest.values():
        axes.set_xlabel(what, fontsize=10 if len(made) == 1 else 8)
        axes.tick_params(labelbottom=True)


@dataclass(frozen=True)
class Ink:
    """The style of a series. Colour and mark identify it; line and fill show its true epsilon and its models.

    fill: of marks, white if the true epsilon is infinite. dash: lengths on and off, empty for a solid line:
    dotted for personal models, dashed if the true epsilon is infinite.
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
    """The place of a true epsilon on the axis. Infinity is to the right of the largest finite one.

    aside: the share of the gap between two epsilons over which the series at one epsilon are spread.
    """

    def __init__(self, series: Sequence[Series], aside: float) -> None:
        found = {point.at for own in series for point in own.points("final_accuracy")}
        # 1.9998 and 2 are one place: the gap between them is no step of the axis.
        self.finite = sorted({float(f"{value:.3g}") for value in found if isfinite(value) and value > 0})
        self.endless = inf in found
        steps = [high / low for low, high in pairwise(self.finite)]
        self.step = min(max(steps, default=2.0), 10.0)
        self.right = (self.finite[-1] if self.finite else 1.0) * self.step**1.2
        self._count, self._aside = 1 + max((own.look for own in series), default=0), aside

    def __call__(self, series: Series, epsilon: float) -> float:
        # Spread, so that equal series stay visible side by side; without a finite epsilon many are equal.
        aside = (series.look + 0.5) / self._count - 0.5
        if not isfinite(epsilon):
            return float(self.right * self.step ** (0.5 * aside))
        # An epsilon of 0 has no place on a logarithmic axis.
        return float(
            max(epsilon, self.finite[0] if self.finite else 1.0) * self.step ** (self._aside * aside)
        )


@dataclass(frozen=True)
class Range:
    """The range of a quantity, at which bands and bars are cut."""

    least: float
    most: float

    def around(self, points: Sequence[Point]) -> tuple[Floats, Floats]:
        """The ends of the points' bands."""
        mean, half = (np.array([getattr(p, name) for p in points]) for name in ("mean", "half"))
        return np.maximum(mean - half, self.least), np.minimum(mean + half, self.most)


def draw(
    axes: Axes,
    series: Series,
    place: Callable[[Series, float], float],
    points: Sequence[Point],
    limits: Range,
    *,
    band: bool = True,
) -> None:
    """Draw a series: finite epsilons as a line with its band (or bars), infinite ones as points with bars."""
    ink, label = Ink.of(series), series.line
    # In two parts: a line to infinity would cross a gap that has no scale.
    for part, finite in (("line", True), ("infinite", False)):
        own = [p for p in points if isfinite(p.at) == finite]
        x = np.array([place(series, p.at) for p in own])
        mean = np.array([p.mean for p in own])
        line = axes.plot(x, mean, ink.marker, color=ink.colour, markerfacecolor=ink.fill, label=label)
        line[0].set(linestyle=(0, ink.dash) if finite and ink.dash else "-" if finite else "", linewidth=1.8)
        mark(series, part, line)
        hollow = [i for i, p in enumerate(own) if p.missing]
        if hollow:
            open_ = axes.plot(x[hollow], mean[hollow], ink.marker, color=ink.colour, markerfacecolor="white")
            mark(series, f"{part}-open", open_)
        each = [
            (at, value)
            for at, p in zip(x, own, strict=True)
            if 1 < len(p.values) < FEW_SEEDS
            for value in p.values
        ]
        if each:
            mark(
                series, f"{part}-seeds", axes.plot(*zip(*each, strict=True), ".", color=ink.colour, alpha=0.6)
            )
        _spread(axes, series, part, x, own, limits, band and finite)
        label = "_nolegend_"


def _spread(
    axes: Axes, series: Series, part: str, x: Floats, own: Sequence[Point], limits: Range, band: bool
) -> None:
    """Draw the band over many seeds, or a bar at each point."""
    from matplotlib.artist import Artist

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
