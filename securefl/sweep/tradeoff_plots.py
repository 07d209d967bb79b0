"""Draws the figures of a sweep: accuracy and rounds against the true epsilon, another key, or bytes.

Each series is a line of means over the seeds, with a 95 % band by Student's t, or points if seeds are few. A
figure has one pair of axes for all series, or one for each panel. Every artist of a series has a gid
"series-<number>-...", by which the page shows and hides it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from math import inf, isfinite, isnan, sqrt
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from securefl.accounting.figures import SIGN
from securefl.report import style
from securefl.report.accuracy import MEASURES, Measure
from securefl.report.pages import Picture
from securefl.report.plots import draw_floor, lines
from securefl.report.significance import student
from securefl.report.style import (
    FEW_SEEDS,
    WIDTH,
    Look,
    beyond,
    blank,
    far_apart,
    letters,
    light_frame,
    look,
    text_height,
)
from securefl.sweep.tradeoff import Point, Series, holds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HEIGHT: Final = 2.5
"""The least inches of a panel among several."""
_FILLED: Final = 0.8
"""The share of a panel's width that a line of its words takes at most."""
Panel = tuple[str, ...]
Place = Callable[[Series, float], float]
"""Where a series is drawn at a value of its axis."""


def pictures(
    series: Sequence[Series],
    *,
    measure: Measure = MEASURES["classification"],
    others: Sequence[Sequence[Series]] = (),
) -> list[Picture]:
    """The pictures for which this sweep has data. The first one is the one that a reader should see first.

    Series without an accuracy are in none. measure: of accuracy. others: series over other axes than epsilon.
    """
    series, *others = [[own for own in group if own.known] for group in (series, *others)]
    made = []
    if any(isfinite(point.at) for own in series for point in own.points("final_accuracy")):
        made.append(accuracy(series, measure))
        if any(own.rows["target"].notna().any() for own in series):
            made.append(rounds_against_epsilon(series))
    made += [accuracy(own, measure) for own in others if own]
    if series:
        made.append(accuracy_against_bytes(series, measure))
    for picture in made:
        style.legend(picture.figure)
    return made


def _picture(name: str, title: str, caption: str, figure: Figure, series: Sequence[Series]) -> Picture:
    labels = {f"series-{own.number}": own.label for own in series}
    return Picture(name=name, title=title, caption=caption, draw=lambda: figure, labels=labels)


def accuracy(
    series: Sequence[Series], measure: Measure, width: float = WIDTH, unprotected: Sequence[Series] = ()
) -> Picture:
    """The picture of final accuracy against the true epsilon, or the swept key over which these series are.

    unprotected: runs without noise, each drawn as a line across the panels whose words begin with its own.
    """
    key = series[0].axis
    figure, panels = panelled(series, f"final {measure.axis}", width=width)
    about = " Each line is an arm at fixed values of all other swept keys."
    if key:
        for axes in panels.values():
            far_apart(axes, [point.at for own in series for point in own.points("final_accuracy")])
        along(panels, lambda _: key)
        place: Place = lambda _, at: at  # noqa: E731 -- beside the other axis
    else:
        place, endless = _epsilon_axis(panels, series)
        about = (
            " The axis is the largest epsilon that a client's ledger states against the adversaries after "
            "the run, whatever made it finite: noise on statistics or updates, or private training."
        )
        about += " On the right: no finite epsilon." if endless else ""
        if any(own.endless for own in series):
            about += " Open marks and dashed lines: noise was added, and epsilon is infinite all the same."
    for own in series:
        draw(panels[own.panel], own, place, own.points("final_accuracy"), measure.least, 1.0)
    for own in unprotected:
        for panel, axes in panels.items():
            if panel[: len(own.panel)] == own.panel:
                _across(axes, own)
    return _picture(
        name=f"accuracy_{(key or 'epsilon').replace('.', '_')}",
        title=f"Accuracy against {key or 'the true epsilon'}",
        caption=f"Accuracy after the last round: {measure.words}. Mean over the seeds with a 95 % band "
        f"(Student's t); fewer than {FEW_SEEDS} seeds are drawn as points.{about}{_tested(panels, series)}",
        figure=figure,
        series=[*series, *unprotected],
    )


def _across(axes: Axes, series: Series) -> None:
    """Draw a run without noise as a dashed line over all epsilons, with its band."""
    ink = look(series.look).colour
    for point in series.points("final_accuracy"):
        mean, half = student(point.values)
        axes.axhline(mean, color=ink, linestyle=(0, (5, 2)), label=series.line)
        if len(point.values) >= FEW_SEEDS:
            axes.axhspan(mean - half, mean + half, color=ink, alpha=0.15, linewidth=0)


def _tested(panels: Mapping[Panel, Axes], series: Sequence[Series]) -> str:
    """Draw the accuracy of a constant answer in each panel. Returns a caption's words on it and on models."""
    known = [own for own in series if own.rows["floor"].notna().any()]
    for own in known:
        # Series over the same records have the same floor: their lines are one.
        draw_floor(panels[own.panel], own.rows)
    floor = " Grey dots: the accuracy of one constant answer." if known else ""
    personal, what = (
        {own.personal for own in series},
        "personal models, each tested on records like its own client's",
    )
    if True not in personal:
        return f" The one global model is tested on the server's records.{floor}"
    if False not in personal:
        return f" All are of {what} (dotted).{floor}"
    return f" Dotted: {what}, which do not compare with global models on the server's records.{floor}"


def rounds_against_epsilon(series: Sequence[Series]) -> Picture:
    """The picture of rounds to the target against the true epsilon."""
    figure, panels = panelled(series, "rounds to the target")
    place, _ = _epsilon_axis(panels, series, aside=0.25)
    curves = [(own, own.points("first_round_at_target")) for own in series]
    means = [point.mean for _, points in curves for point in points]
    top = max([mean for mean in means if not isnan(mean)], default=1.0)
    for axes in panels.values():
        beyond(axes, top, "not reached" if any(map(isnan, means)) else "", whole=True)
    for own, points in curves:
        axes = panels[own.panel]
        draw(axes, own, place, points, 0.0, inf, band=False)
        lost = [place(own, point.at) for point in points if isnan(point.mean)]
        crosses = axes.plot(lost, [1.2 * top] * len(lost), "x", color=look(own.look).colour, markersize=8)
        mark(own, "never", crosses)
    return _picture(
        name="rounds_epsilon",
        title="Rounds to the target against the true epsilon",
        caption="The first round that reached the target accuracy: the mean over the seeds that reached it, "
        f"with a 95 % bar; fewer than {FEW_SEEDS} seeds are drawn as points. An open mark: some seeds never "
        "reached it. A cross at the top: no seed reached it.",
        figure=figure,
        series=series,
    )


def accuracy_against_bytes(series: Sequence[Series], measure: Measure) -> Picture:
    """The picture of final accuracy against all bytes of a run. Marks grow with epsilon."""
    figure, panels = panelled(series, f"final {measure.axis}")
    asked = pd.concat([own.rows["asked"] for own in series]).drop_duplicates()
    sizes = (5 + 6 * asked.rank(pct=True).set_axis(asked)) ** 2
    xs: list[float] = []
    for own in series:
        worn = worn_by(own)
        rows = own.rows.assign(moved=(own.rows["bytes_up"] + own.rows["bytes_down"]) / 1e6)
        means = rows.groupby("asked")[["moved", "final_accuracy"]].mean()
        dots = panels[own.panel].scatter(
            means["moved"],
            means["final_accuracy"],
            s=sizes[means.index],
            marker=worn.marker,
            edgecolors=worn.colour,
            facecolors=worn.fill,
            alpha=0.8,
            label=own.line,
        )
        mark(own, "mark", [dots])
        xs += means["moved"].tolist()
    for axes in panels.values():
        if not far_apart(axes, xs) and min(xs) == max(xs):
            axes.set_xlim(0, 2 * max(xs) or 1)
    along(panels, lambda _: "sent and received in the whole run, all clients (MB)")
    return _picture(
        name="accuracy_bytes",
        title="Accuracy against bytes",
        caption="Accuracy after the last round and megabytes on the wire, both directions, means over the "
        "seeds. Each cell has a mark, which grows with its epsilon; an infinite one has the largest."
        f"{_tested(panels, series)}",
        figure=figure,
        series=series,
    )


def _epsilon_axis(
    panels: Mapping[Panel, Axes], series: Sequence[Series], *, aside: float = 0.0
) -> tuple[Place, bool]:
    """The axis of true epsilons, with infinity to the right of the largest finite one.

    aside: the share of the gap between two epsilons over which the series at one epsilon are spread.
    Returns the place of an epsilon, and whether there is an infinite one.
    """
    found = {point.at for own in series for point in own.points("final_accuracy")}
    # 1.9998 and 2 are one place: the gap between them is no step of the axis.
    finite = sorted({float(f"{value:.3g}") for value in found if 0 < value < inf}) or [1.0]
    step = min(max([high / low for low, high in pairwise(finite)], default=2.0), 10.0)
    right = finite[-1] * step**1.2
    count = 1 + max((own.look for own in series), default=0)

    def place(own: Series, epsilon: float) -> float:
        # Spread, so that equal series stay visible side by side; without a finite epsilon many are equal.
        shift = (own.look + 0.5) / count - 0.5
        # An epsilon of 0 has no place on a logarithmic axis.
        at, share = (max(epsilon, finite[0]), aside) if isfinite(epsilon) else (right, 0.5)
        return float(at * step ** (share * shift))

    # Ticks that touch are illegible: of close ones only the first is drawn.
    endless, inches = inf in found, min(_inches(axes) for axes in panels.values())
    gap = ((right if endless else finite[-1]) / finite[0]) ** (0.05 * text_height("xtick.labelsize") / inches)
    ticks: list[float] = []
    for value in finite:
        if not ticks or value / ticks[-1] >= gap:
            ticks.append(float(f"{value:.2g}"))
    marks = {**{value: f"{value:g}" for value in ticks}, **({right: SIGN} if endless else {})}
    for axes in panels.values():
        axes.set_xscale("log")
        if endless:
            axes.axvline(sqrt(finite[-1] * right), color="#999999", linewidth=0.8, linestyle=(0, (2, 3)))
        axes.minorticks_off()
        axes.set_xticks([*marks], [*marks.values()])

    along(panels, lambda panel: f"true epsilon{holds([own for own in series if own.panel == panel])}")
    return place, endless


def panelled(
    series: Sequence[Series], what: str, *, width: float = WIDTH
) -> tuple[Figure, dict[Panel, Axes]]:
    """A figure with axes for every panel of these series. what: the quantity of all vertical axes.

    Several panels are in rows of two, in the order of their words.
    """
    there = list(dict.fromkeys(own.panel for own in series))
    columns, rows = (
        list(dict.fromkeys(panel[part] for panel in there)) for part in (slice(1), slice(1, None))
    )
    spots = [column + row for row in rows for column in columns if column + row in there]
    several = len(spots) > 1
    down, across = -(-len(spots) // 2), 1 + several
    figure = blank(height=max(0.8 * width, _HEIGHT * down * several), width=width)
    placed = figure.subplots(down, across, sharex=several, sharey=several, squeeze=False).flat
    for axes, panel in zip_longest(placed, spots):
        axes.set_visible(panel is not None)
        # In lines that fit its width: longer ones would overlap the next panel's title.
        parts = filter(None, (", ".join(own) for own in ((panel or ())[:1], (panel or ())[1:])))
        axes.set_title("\n".join(_fitted(axes, own) for own in parts), fontsize="medium")
        axes.tick_params(labelbottom=True)
        light_frame(axes)
    for axes in figure.axes[::across]:
        axes.set_ylabel(fill(what, letters(_FILLED * figure.get_figheight() / down)))
    return figure, dict(zip(spots, figure.axes, strict=False))


def along(panels: Mapping[Panel, Axes], what: Callable[[Panel], str]) -> None:
    """Label the horizontal axes, below the lowest panel of each column. what: the words of a panel's axis."""
    # No label of the whole figure: the legend would lie on it.
    lowest = {round(axes.get_position().x0, 6): panel for panel, axes in panels.items()}
    for panel in lowest.values():
        panels[panel].set_xlabel(_fitted(panels[panel], what(panel)))


def _fitted(axes: Axes, words: str) -> str:
    """Words in lines that fit the width of a panel."""
    return fill(words, letters(_FILLED * _inches(axes)))


def _inches(axes: Axes) -> float:
    """The width of a panel with its share of the margins."""
    own: Any = axes
    width: float = own.get_figure().get_figwidth() / own.get_subplotspec().get_gridspec().ncols
    return width


def worn_by(series: Series) -> Look:
    """The look of a series: dotted for personal models, open and dashed if its true epsilon is infinite."""
    dash = (1, 2) if series.personal else (4, 2) if series.endless else ()
    return replace(look(series.look), hollow=series.endless, dash=dash)


def draw(
    axes: Axes,
    series: Series,
    place: Place,
    points: Sequence[Point],
    least: float,
    most: float,
    *,
    band: bool = True,
) -> None:
    """Draw a series: finite epsilons as a line with its band (or bars), infinite ones as points with bars.

    Points without a mean are left out. least, most: the ends of the quantity. Bands and bars are cut there.
    """
    worn, label = worn_by(series), series.line
    values = [
        (number, point.at, place(series, point.at), point.missing, seed, value)
        for number, point in enumerate(points)
        for seed, value in enumerate(point.values)
    ]
    known = pd.DataFrame(values, columns=["round", "at", "x", "missing", "seed", "y"]).assign(arm=label)
    # In two parts: a line to infinity would cross a gap that has no scale.
    for part, finite in (("line", True), ("infinite", False)):
        own = known[known["at"].map(isfinite) == finite]
        ends: dict[str, Any] = {"least": least, "most": most, "joined": finite, "band": band and finite}
        for drawn, mean in lines(axes, own, {series.line: worn}, x="x", y="y", **ends).values():
            lost = own[own["missing"] > 0].drop_duplicates("round").set_index("round")["x"]
            drawn += axes.plot(
                lost, mean[lost.index], worn.marker, color=worn.colour, markerfacecolor="white"
            )
            drawn[0].set_label(label)
            mark(series, part, drawn)
            label = "_nolegend_"


def mark(series: Series, part: str, artists: Iterable[Any]) -> None:
    for number, artist in enumerate(artists):
        artist.set_gid(f"series-{series.number}-{part}-{number}")
