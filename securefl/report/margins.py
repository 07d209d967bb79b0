"""Room around the panels of a figure for their words, measured once (`Margins`).

matplotlib's constrained layout measures each panel twice for every file that a figure is written to: it took
half of the time of a report. Here each panel is measured once, whatever the number of files.
This module imports matplotlib, and is imported where a figure is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import LayoutEngine
from matplotlib.ticker import FixedLocator
from matplotlib.transforms import ScaledTranslation

_PAD: Final = 0.06
"""Inches between words and the edge of the figure, or the words of the next panel."""


class Margins(LayoutEngine):
    """Places the panels of one regular grid so that all words of axes, titles and a legend below have room.

    All panels get the same size. A figure is placed when it is first drawn, and once: words that are added
    later, and another size, do not move it. A figure with a bar of colours or a title above all panels
    needs the constrained layout.
    """

    _adjust_compatible = True
    _colorbar_gridspec = True

    def __init__(self) -> None:
        super().__init__()
        self._placed = False

    def execute(self, fig: Figure) -> None:
        """Place the panels of the figure, unless this has been done."""
        if self._placed:
            return
        self._placed = True
        renderer = _measuring(fig.dpi)
        spots = [(axes, spot) for axes in fig.axes if (spot := axes.get_subplotspec()) is not None]
        around = []
        for axes, spot in spots:
            if axes.get_visible():
                _fix_ticks(axes)
                around.append((spot.rowspan.start, spot.colspan.start, _around(axes, renderer)))
                _fix_labels(axes)
        if not around:
            return
        rows = max(spot.rowspan.stop for _, spot in spots)
        columns = max(spot.colspan.stop for _, spot in spots)
        left, right = _edges([(column, own[0], own[1]) for _, column, own in around], columns)
        top, bottom = _edges([(row, own[2], own[3]) for row, _, own in around], rows)
        pad = _PAD * fig.dpi
        below = sum(legend.get_window_extent(renderer).height + pad for legend in fig.legends)
        width, height = fig.get_size_inches() * fig.dpi
        across, down = _gap(left, right, pad), _gap(top, bottom, pad)
        wide = (width - left[0] - right[-1] - 2 * pad - across * (columns - 1)) / columns
        high = (height - top[0] - bottom[-1] - 2 * pad - down * (rows - 1) - below) / rows
        if min(wide, high) <= 0:
            return  # the words are larger than the figure
        fig.subplots_adjust(
            left=(left[0] + pad) / width,
            right=1 - (right[-1] + pad) / width,
            top=1 - (top[0] + pad) / height,
            bottom=(bottom[-1] + pad + below) / height,
            wspace=across / wide,
            hspace=down / high,
        )


@cache
def _measuring(dpi: float) -> RendererAgg:
    """It measures words, and draws none. It remembers words, which the figures of a page share."""
    return RendererAgg(1, 1, dpi)  # type: ignore[no-untyped-call]


def _fix_ticks(axes: Axes) -> None:
    """Keep the ticks that are measured: others would need other room, and are sought at each draw."""
    for axis in (axes.xaxis, axes.yaxis):
        if not isinstance(axis.get_major_locator(), FixedLocator):
            axis.set_major_locator(FixedLocator(axis.get_majorticklocs().tolist()))


def _fix_labels(axes: Axes) -> None:
    """Keep each label's distance from the axes, and the titles' heights, which each draw would seek again."""
    # A given height of one title, here of an empty one, keeps those of all.
    axes.set_title("", loc="right", y=1.0)
    figure, frame = axes.get_figure(root=True), axes.bbox
    if figure is None:
        return
    inches: Any = figure.dpi_scale_trans
    under = (axes.xaxis.label.get_position()[1] - frame.y0) / figure.dpi
    beside = (axes.yaxis.label.get_position()[0] - frame.x0) / figure.dpi
    below, left = ScaledTranslation(0.0, under, inches), ScaledTranslation(beside, 0.0, inches)
    axes.xaxis.set_label_coords(0.5, 0.0, transform=axes.transAxes + below)
    axes.yaxis.set_label_coords(0.0, 0.5, transform=axes.transAxes + left)


def _around(axes: Axes, renderer: Any) -> tuple[float, float, float, float]:
    """Pixels of the words left, right, above and below the axes."""
    words, frame = axes.get_tightbbox(renderer, for_layout_only=True), axes.bbox
    if words is None:
        return 0.0, 0.0, 0.0, 0.0
    beyond = (frame.x0 - words.x0, words.x1 - frame.x1, words.y1 - frame.y1, frame.y0 - words.y0)
    first, second, third, fourth = (max(0.0, float(one)) for one in beyond)
    return first, second, third, fourth


def _edges(found: Sequence[tuple[int, float, float]], count: int) -> tuple[list[float], list[float]]:
    """The most pixels before and behind the panels of each row or column."""
    before, behind = [0.0] * count, [0.0] * count
    for place, ahead, after in found:
        before[place], behind[place] = max(before[place], ahead), max(behind[place], after)
    return before, behind


def _gap(before: Sequence[float], behind: Sequence[float], pad: float) -> float:
    """Pixels between two neighbouring panels: the most that any two need."""
    return max((one + other + pad for one, other in zip(behind, before[1:], strict=False)), default=0.0)
