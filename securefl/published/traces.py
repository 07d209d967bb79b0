"""Pictures of a table's runs beside its published figures: accuracy over what the table counts.

There is a picture for each measure that counts, such as rounds or Wh, and in it a panel for each part. It has
the mean of each system over its seeds. No number is read from a paper's own curves, which are pictures. What
the paper prints is drawn beside: the best accuracy at the right of the panel, and below it what each system
needed to reach its target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.published.beside import Sample, costs, sample
from securefl.published.table import Figure, Measure, Part, Row, Table
from securefl.report import style
from securefl.report.plots import evaluated
from securefl.report.style import FEW_SEEDS, NARROW, Look, blank, light_frame
from securefl.report.tables import write_png
from securefl.study.config import slug

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

_CURVES, _GAP, _WORDS = 2.3, 0.12, 1.05
"""Inches: of the curves' height, between them and the rows below, and of all words of a part."""
_GREY: Final = "#555555"
_PUBLISHED: Final[Mapping[str, Any]] = {
    "marker": "o",
    "markerfacecolor": "white",
    "markersize": 5,
    "capsize": 2,
}
_MARKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "published": {"marker": "o", "markerfacecolor": "white"},
    "measured": {"marker": "o"},
    "measured, at least": {"marker": ">"},
}
"""The marks of the legend, by their words."""


def write(folder: Path, table: Table, metrics: Mapping[str, pd.DataFrame]) -> list[Path]:
    """Write the table's pictures into its folder, such as traces-rounds.png. Returns their paths."""
    found = []
    for measure, picture in pictures(table, metrics).items():
        found.append(folder / f"traces-{slug(measure)}.png")
        write_png(found[-1], picture)
    return found


def pictures(table: Table, metrics: Mapping[str, pd.DataFrame]) -> dict[Measure, Picture]:
    """A picture for each measure of the table that counts.

    metrics: of each part's results, by the part's name, as `beside.beside` takes them.
    """
    counted = [one for one in table.measures if one.counts and one.target is None]
    return {measure: _picture(table, measure, metrics) for measure in counted}


def _picture(table: Table, measure: Measure, metrics: Mapping[str, pd.DataFrame]) -> Picture:
    looks = style.looks(row.label for part in table.parts for row in part.rows)
    rows = 0.17 * max(len(part.rows) for part in table.parts) + 0.15
    words = style.legend_height(NARROW, [*looks, *_MARKS])
    figure = blank(height=words + len(table.parts) * (_CURVES + _GAP + rows + _WORDS), width=NARROW)
    panels = figure.subplots(len(table.parts), 1, squeeze=False)[:, 0]
    for above, part in zip(panels, table.parts, strict=True):
        systems = [_System.of(part, row, measure, metrics[part.name], looks) for row in part.rows]
        below = _rows_under(above, rows)
        _draw_curves(above, part, systems)
        _draw_needed(below, part, measure, systems)
        _share_axis(above, below, systems)
    _add_legend(figure, looks)
    return figure


@dataclass(frozen=True, kw_only=True, eq=False)
class _System:
    """One system of a part: its mean curve (rounds,), and what it needed to reach its target.

    spent: of the measure, up to each round. deviation: of the accuracies over the seeds. best: as published.
    published, measured: what it needed.
    """

    row: Row
    look: Look
    dash: str
    spent: NDArray[np.float64]
    accuracy: NDArray[np.float64]
    deviation: NDArray[np.float64]
    best: Figure | None
    published: Figure | None
    measured: Sample
    seeds: int

    @classmethod
    def of(
        cls, part: Part, row: Row, measure: Measure, metrics: pd.DataFrame, looks: Mapping[str, Look]
    ) -> _System:
        own = metrics[metrics["arm"] == row.arm].sort_values(["seed", "round"])
        own = own.assign(spent=costs(measure, own).groupby(own["seed"]).cumsum())
        # Costs add up over all rounds, also over those in which no model was tested.
        by_round = evaluated(own).groupby("round")
        best = next((row.figures[one] for one in (Measure.BEST, Measure.LAST) if one in row.figures), None)
        return cls(
            row=row,
            look=looks[row.label],
            dash=_dash(row.label, looks),
            spent=by_round["spent"].mean().to_numpy(),
            accuracy=by_round["accuracy"].mean().to_numpy(),
            deviation=np.asarray(by_round["accuracy"].std(ddof=0), dtype=np.float64),
            best=best,
            published=row.figures.get(measure),
            measured=sample(measure, metrics, row.arm, part.study.study.target),
            seeds=own["seed"].nunique(),
        )

    def ends(self) -> Iterator[float]:
        """What an axis of the measure must show."""
        yield self.spent[-1]
        yield self.measured.mean + np.nan_to_num(self.measured.deviation)
        yield from _ends(self.published)


def _dash(label: str, looks: Mapping[str, Look]) -> str:
    """The line of a system: dashed if an earlier one has its colour."""
    earlier = list(looks)[: list(looks).index(label)]
    return "dashed" if any(looks[one].colour == looks[label].colour for one in earlier) else "solid"


def _ends(figure: Figure | None) -> Iterator[float]:
    if figure is not None and figure.mean is not None:
        yield figure.mean + (figure.deviation or 0)


def _draw_curves(axes: Axes, part: Part, systems: Sequence[_System]) -> None:
    light_frame(axes)
    low, high = np.inf, -np.inf
    for place, own in enumerate(systems):
        ink = own.look.colour
        axes.plot(own.spent, own.accuracy, color=ink, linewidth=1.6, linestyle=own.dash)
        if own.seeds >= FEW_SEEDS:
            ends = own.accuracy - own.deviation, own.accuracy + own.deviation
            axes.fill_between(own.spent, *ends, color=ink, alpha=0.15, linewidth=0)
        low = min(low, own.accuracy[len(own.accuracy) // 2 :].min())
        high = max(high, own.accuracy.max(), *_ends(own.best))
        if own.best is not None and own.best.mean is not None:
            low = min(low, own.best.mean)
            axes.errorbar(
                1.03 + 0.035 * place,
                own.best.mean,
                yerr=own.best.deviation,
                color=ink,
                clip_on=False,
                transform=axes.get_yaxis_transform(),
                **_PUBLISHED,
            )
    if any(own.best for own in systems):
        axes.text(1.02, -0.02, "published\nbest", transform=axes.transAxes, fontsize=8, va="top")
    target = part.study.study.target
    if target is not None:
        low, high = min(low, target), max(high, target)
        axes.axhline(target, color=_GREY, linestyle=(0, (4, 3)), linewidth=1, zorder=0)
    # Curves begin at chance, or below 0 for regressions: beside that, the systems would not differ.
    axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.set_ylabel("accuracy")
    seeds = systems[0].seeds
    band = "; band: one standard deviation" if seeds >= FEW_SEEDS else ""
    axes.set_title(f"{part.name}\nmean of {seeds} seeds{band}", fontsize=9, loc="left")


def _rows_under(axes: Axes, inches: float) -> Axes:
    """Axes of this height under others, as wide as they are."""
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    figure: Any = axes.get_figure(root=True)
    # A height in shares of the curves' would change when the panels are placed.
    shares: Any = axes.transAxes
    from_corner = figure.dpi_scale_trans + ScaledTranslation(0, 0, shares)
    where = blended_transform_factory(axes.transAxes, from_corner)
    return axes.inset_axes((0, -_GAP - inches, 1, inches), transform=where)


def _draw_needed(axes: Axes, part: Part, measure: Measure, systems: Sequence[_System]) -> None:
    light_frame(axes)
    axes.grid(visible=False)
    for place, own in enumerate(systems):
        ink, needed = own.look.colour, own.published
        look = {"marker": ">" if own.measured.bounded else "o", "markerfacecolor": ink}
        spread = own.measured.deviation if np.isfinite(own.measured.deviation) else None
        axes.errorbar(own.measured.mean, place + 0.2, xerr=spread, color=ink, **{**_PUBLISHED, **look})
        if needed is not None and needed.mean is not None:
            axes.errorbar(needed.mean, place - 0.2, xerr=needed.deviation, color=ink, **_PUBLISHED)
        elif needed is not None:
            axes.text(
                0.99,
                place - 0.2,
                "published: N/A",
                transform=axes.get_yaxis_transform(),
                color=ink,
                fontsize=7,
                ha="right",
                va="center",
            )
    axes.set_yticks(range(len(systems)), [own.row.label for own in systems], fontsize=8)
    axes.set_ylim(len(systems) - 0.5, -0.5)
    axes.set_xlabel(_needed_words(part, measure))


def _needed_words(part: Part, measure: Measure) -> str:
    here = part.study.study.target
    paper = part.setting.get("study.target", here)
    if here is None:
        return str(measure)
    return f"{measure} to {here:g}" + ("" if here == paper else f" (published: to {paper:g})")


def _share_axis(above: Axes, below: Axes, systems: Sequence[_System]) -> None:
    """One scale for both panels of a part.

    It is logarithmic if the paper's figures are far beyond the curves, or if the systems spend amounts of
    different orders.
    """
    spent, most = [own.spent[-1] for own in systems], max(end for own in systems for end in own.ends())
    far = most > 3 * max(spent) or max(spent) > 20 * min(spent)
    for axes in (above, below):
        if far:
            axes.set_xscale("log")
            axes.set_xlim(min(own.spent[0] for own in systems), 1.1 * most)
            style.plain_logarithmic(axes.xaxis)
        else:
            axes.set_xlim(0, 1.05 * most)
            style.few_numbers(axes.xaxis)
    above.tick_params(labelbottom=False)


def _add_legend(figure: Picture, looks: Mapping[str, Look]) -> None:
    from matplotlib.lines import Line2D

    axes = figure.axes[0]
    for label, worn in looks.items():
        axes.plot([], [], color=worn.colour, linestyle=_dash(label, looks), label=label)
    line: Mapping[str, Any] = {"color": _GREY, "linestyle": "none", "markersize": 5}
    for label, own in _MARKS.items():
        axes.add_line(Line2D([], [], label=label, **line, **own))
    style.legend(figure, [*looks, *_MARKS])
