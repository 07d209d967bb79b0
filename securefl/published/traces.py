"""Pictures of a table's runs beside its published figures: accuracy over what the table counts.

There is a picture for each measure that counts, such as rounds or Wh, or else one over rounds, and in it a
panel for each part. It has the mean of each system over its seeds (`plots.lines`), and below it what each
system needed to reach its target. No number is read from a paper's own curves, which are pictures. What the
paper prints of the same task is drawn beside, its accuracy at the right of the panel; figures of another task
stand in the table alone. All of them have bars of a standard deviation, as papers print it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securefl.published.comparison import costs
from securefl.published.table import Figure, Measure, Part, Table, tasks
from securefl.report import style
from securefl.report.plots import carried_on, evaluated, lines, seeds_words
from securefl.report.style import Look, blank, light_frame
from securefl.report.tables import write_png
from securefl.study.config import slug

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

_MARKS: Final[Mapping[str, Mapping[str, Any]]] = {
    "published": {"marker": "o", "markerfacecolor": "white"},
    "measured": {"marker": "o"},
    "measured, at least": {"marker": ">"},
}
"""The marks of figures, by their words in the legend."""
_NONE: Final = Figure(mean=None)


def write(folder: Path, table: Table, metrics: Mapping[str, pd.DataFrame], found: pd.DataFrame) -> list[Path]:
    """Write the table's pictures into its folder, such as traces-rounds.png. Returns their paths."""
    paths = []
    for measure, picture in pictures(table, metrics, found).items():
        paths.append(folder / f"traces-{slug(measure)}.png")
        write_png(paths[-1], picture)
    return paths


def pictures(
    table: Table, metrics: Mapping[str, pd.DataFrame], found: pd.DataFrame
) -> dict[Measure, Picture]:
    """A picture for each measure of the table that counts; over rounds if none does.

    Args:
        table: the published table.
        metrics: of each part, by its name: arm, seed, round, accuracy, and the costs of the measures.
            Rounds have no costs, and may leave some out.
        found: the figures run by run, as `comparison.values` has them.

    Returns:
        The pictures by measure.

    Raises:
        Nothing.
    """
    counted = [one for one in table.measures if one.counts and one.target is None]
    return {measure: _picture(table, measure, metrics, found) for measure in counted or (Measure.ROUNDS,)}


def from_file(table: Table, kept: pd.DataFrame, found: pd.DataFrame) -> Picture:
    """The picture over rounds, from the rows of traces.csv and of table.csv."""
    names = {row.label: row.arm for part in table.parts for row in part.rows}
    long = kept.melt(["part", "system", "round"], var_name="seed", value_name="accuracy").dropna()
    long = long.assign(arm=long["system"].map(names))
    return _picture(table, Measure.ROUNDS, {str(part): own for part, own in long.groupby("part")}, found)


def _picture(
    table: Table, measure: Measure, metrics: Mapping[str, pd.DataFrame], found: pd.DataFrame
) -> Picture:
    parts = table.parts if tasks(table) is None else map(_without_published, table.parts)
    looks = style.looks(row.label for part in table.parts for row in part.rows)
    found = found[found["measure"] == measure]
    # Where the table has no such column, there is nothing to draw below the curves.
    below = [] if found.empty else [0.17 * max(len(part.rows) for part in table.parts) + 0.15]
    heights = [2.3, *below] * len(table.parts)
    figure = blank(height=(1.1 if below else 0.7) * len(table.parts) + sum(heights))
    panels = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)
    panels = panels.reshape(len(table.parts), -1)
    for own, part in zip(panels, parts, strict=True):
        _draw([*own], part, measure, metrics[part.name], found[found["part"] == part.name], looks)
    drawn = {marks.get_label() for axes in figure.axes for marks in axes.containers}
    for label, worn in _MARKS.items():
        if f"_{label}" in drawn:
            panels[-1, 0].plot([], [], color="#555555", linestyle="none", markersize=5, label=label, **worn)
    style.legend(figure)
    return figure


def _without_published(part: Part) -> Part:
    return replace(part, rows=tuple(replace(row, figures={}) for row in part.rows))


def _draw(
    panels: Sequence[Axes],
    part: Part,
    measure: Measure,
    metrics: pd.DataFrame,
    needed: pd.DataFrame,
    looks: Mapping[str, Look],
) -> None:
    """Draw a part: its curves above, and below, if there is a panel, what each needed to reach the target."""
    above, *below = panels
    target = part.study.study.target
    first, ends, heights = list[float](), list[float](), [] if target is None else [target]
    names = {row.arm: row.label for row in part.rows}
    own = carried_on(metrics[metrics["arm"].isin(names)]).sort_values(["seed", "round"])
    # Costs add up over all rounds, also over those in which no model was tested.
    spent = own["round"]
    if measure is not Measure.ROUNDS:
        spent = costs(measure, own).groupby([own["arm"], own["seed"]]).cumsum()
    own = own.assign(spent=spent, arm=own["arm"].map(names))
    for (line, *_), accuracy in lines(above, evaluated(own), looks, x="spent").values():
        first += [accuracy.min()]
        heights += [*accuracy[len(accuracy) // 2 :], accuracy.max()]
        ends += [*line.get_xdata()[-1:]]
    for axes in panels:
        light_frame(axes)
    heights += _draw_published(above, part, looks)
    if target is not None:
        above.axhline(target, color="#555555", linestyle=(0, (4, 3)), linewidth=1, zorder=0)
    if len(set(heights)) > 1:
        low, high = min(heights), max(heights)
        # Curves begin at chance, or below 0 for regressions: beside that, the systems would not differ.
        if high - min(first) <= 2 * (high - low):
            low = min(low, *first)
        margin = 0.05 * (high - low)
        above.set_ylim(low - margin, high + margin)
    above.set_ylabel("accuracy")
    above.set_title(f"{part.name}\n{seeds_words(own)}".strip(), fontsize=9, loc="left")
    above.set_xlabel(str(measure))
    for axes in below:
        axes.sharex(above)
        ends += _draw_needed(axes, part, measure, needed, looks)
        above.tick_params(labelbottom=False)
        above.set_xlabel("")
        axes.set_xlabel(str(measure) if target is None else f"{measure} to {target:g}")
    if not style.far_apart(above, ends):
        above.set_xlim(left=0)
        above.locator_params("x", integer=measure is Measure.ROUNDS)


def _draw_published(axes: Axes, part: Part, looks: Mapping[str, Look]) -> list[float]:
    """Draw the published accuracies at the right of the panel. Returns their heights."""
    best = any(Measure.BEST in row.figures for row in part.rows)
    measure, heights = Measure.BEST if best else Measure.LAST, list[float]()
    at: Any = {"clip_on": False, "transform": axes.get_yaxis_transform()}
    for place, row in enumerate(part.rows):
        printed = row.figures.get(measure, _NONE)
        if printed.mean is not None:
            heights += [printed.mean, printed.mean + (printed.deviation or 0)]
            across = 1.03 + 0.035 * place
            _mark(axes, looks[row.label], "published", across, printed.mean, yerr=printed.deviation, **at)
    if heights:
        words = f"published\n{measure.partition(' ')[0]}"
        axes.text(1.02, -0.02, words, transform=axes.transAxes, fontsize=8, va="top")
    return heights


def _draw_needed(
    axes: Axes, part: Part, measure: Measure, needed: pd.DataFrame, looks: Mapping[str, Look]
) -> list[float]:
    """Draw what each system needed to reach the target. Returns the published means."""
    means = []
    for place, row in enumerate(part.rows):
        runs, worn = needed[needed["system"] == row.label], looks[row.label]
        kind = "measured" if runs["reached"].all() else "measured, at least"
        _mark(axes, worn, kind, runs["value"].mean(), place + 0.2, xerr=runs["value"].std())
        printed = row.figures.get(measure, _NONE)
        if printed.mean is not None:
            means.append(printed.mean)
            _mark(axes, worn, "published", printed.mean, place - 0.2, xerr=printed.deviation)
        elif measure in row.figures:
            where: Any = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "center"}
            axes.text(0.99, place - 0.2, "published: N/A", color=worn.colour, fontsize=7, **where)
    axes.grid(visible=False)
    axes.set_yticks(range(len(part.rows)), [row.label for row in part.rows], fontsize=8)
    axes.set_ylim(len(part.rows) - 0.5, -0.5)
    return means


def _mark(axes: Axes, worn: Look, kind: str, x: float, y: float, **more: Any) -> None:
    more |= {"color": worn.colour, "markersize": 5, "capsize": 2, "label": f"_{kind}"}
    axes.errorbar(x, y, **_MARKS[kind], **more)
