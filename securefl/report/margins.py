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

    def execute(self, fig: Figure) -> None:  # type: ignore[override]
        """Place the panels of the figure, unless this has been done."""
        if self._placed:
            return
        self._placed = True
        renderer = _measuring(fig.dpi)
        shown = [axes for axes in fig.axes if axes.get_visible()]
        for axes in shown:
            _fix_ticks(axes)
        spots = {axes: axes.get_subplotspec() for axes in shown}
        around = [
            (spot.rowspan.start, spot.colspan.start, _around(axes, renderer))
            for axes, spot in spots.items()
            if spot is not None
        ]
        if not around:
            return
        rows, columns = _shape(fig.axes)
        for axes in shown:
            _fix_labels(axes)
        left, right = _edges([(column, own[0], own[1]) for _, column, own in around], columns)
        top, bottom = _edges([(row, own[2], own[3]) for row, _, own in around], rows)
        pad = _PAD * fig.dpi
        below = sum(legend.get_window_extent(renderer).height + pad for legend in fig.legends)
        width, height = fig.get_size_inches() * fig.dpi
        wide = (width - sum(left) - sum(right) - pad * (columns + 1)) / columns
        high = (height - sum(top) - sum(bottom) - pad * (rows + 1) - below) / rows
        if min(wide, high) <= 0:
            return  # the words are larger than the figure
        across, down = _gap(left, right, pad), _gap(top, bottom, pad)
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
    return RendererAgg(1, 1, dpi)


def _fix_ticks(axes: Axes) -> None:
    """Keep the ticks that are measured: others would need other room, and are sought at each draw."""
    for axis in (axes.xaxis, axes.yaxis):
        if not isinstance(axis.get_major_locator(), FixedLocator):
            axis.set_major_locator(FixedLocator(axis.get_majorticklocs()))
    # matplotlib seeks the height of titles at each draw, unless a height of one of them is given.
    axes.set_title("", loc="right", y=1.0)


def _fix_labels(axes: Axes) -> None:
    """Keep each label's distance from the axes, which matplotlib measures at each draw."""
    figure, frame = axes.get_figure(root=True), axes.bbox
    if figure is None:
        return
    down = (axes.xaxis.label.get_position()[1] - frame.y0) / figure.dpi
    left = (axes.yaxis.label.get_position()[0] - frame.x0) / figure.dpi
    for axis, place, move in ((axes.xaxis, (0.5, 0.0), (0.0, down)), (axes.yaxis, (0.0, 0.5), (left, 0.0))):
        inches = ScaledTranslation(*move, figure.dpi_scale_trans)
        axis.set_label_coords(*place, transform=axes.transAxes + inches)


def _around(axes: Axes, renderer: Any) -> tuple[float, float, float, float]:
    """Pixels of the words left, right, above and below the axes."""
    words, frame = axes.get_tightbbox(renderer, for_layout_only=True), axes.bbox
    if words is None:
        return 0.0, 0.0, 0.0, 0.0
    beyond = (frame.x0 - words.x0, words.x1 - frame.x1, words.y1 - frame.y1, frame.y0 - words.y0)
    first, second, third, fourth = (max(0.0, float(one)) for one in beyond)
    return first, second, third, fourth


def _shape(panels: Sequence[Axes]) -> tuple[int, int]:
    """The numbers of rows and columns of the grid."""
    spots = [spot for spot in (axes.get_subplotspec() for axes in panels) if spot is not None]
    return max(spot.rowspan.stop for spot in spots), max(spot.colspan.stop for spot in spots)


def _edges(found: Sequence[tuple[int, float, float]], count: int) -> tuple[list[float], list[float]]:
    """The most pixels before and behind the panels of each row or column."""
    before, behind = [0.0] * count, [0.0] * count
    for place, ahead, after in found:
        before[place], behind[place] = max(before[place], ahead), max(behind[place], after)
    return before, behind


def _gap(before: Sequence[float], behind: Sequence[float], pad: float) -> float:
    """Pixels between two neighbouring panels: the most that any two need."""
    return max((one + other + pad for one, other in zip(behind, before[1:], strict=False)), default=0.0)
