"""Room around the panels of a figure for their words, measured once (`Margins`).

matplotlib's constrained layout measures each panel twice for every file that a figure is written to: it took
half of the time of a report. Here each panel is measured once, whatever the number of files.
This module imports matplotlib, and is imported where a figure is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import LayoutEngine
from matplotlib.spines import Spine
from matplotlib.text import Text
from matplotlib.ticker import FixedLocator
from matplotlib.transforms import Bbox, ScaledTranslation

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
                around.append((spot.rowspan.start, spot.colspan.start, _around(axes, renderer)))
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


def _around(axes: Axes, renderer: Any) -> tuple[float, float, float, float]:
    """Pixels of the words left, right, above and below the axes.

    What is measured here stays: ticks, the labels' distance from the axes, and the height of the titles. Each
    draw would seek them again.
    """
    axes.apply_aspect()
    words: list[Bbox | None] = [*_of_axis(axes.xaxis, renderer), *_of_axis(axes.yaxis, renderer)]
    if axes.yaxis.get_offset_text().get_text():
        # Titles move above a power of ten over the axis.
        words.append(axes.get_tightbbox(renderer, for_layout_only=True))
    # A given height of one title, here of an empty one, keeps those of all.
    axes.set_title("", loc="right", y=1.0)
    written = axes.get_default_bbox_extra_artists()
    titles = [own for own in axes.get_children() if isinstance(own, Text) and own not in written]
    words += [_thin(own.get_window_extent(renderer), across=True) for own in titles if own.get_text()]
    words += [own.get_tightbbox(renderer) for own in written if not isinstance(own, Spine)]
    frame = axes.bbox
    # A bar of errors has an infinite box on a logarithmic axis. Its mark and its caps have their own.
    whole = Bbox.union([frame, *(box for box in words if box is not None and np.isfinite(box.extents).all())])
    beyond = (frame.x0 - whole.x0, whole.x1 - frame.x1, whole.y1 - frame.y1, frame.y0 - whole.y0)
    first, second, third, fourth = (max(0.0, float(one)) for one in beyond)
    return first, second, third, fourth


def _of_axis(axis: Axis, renderer: Any) -> list[Bbox]:
    """The boxes of an axis: its ticks with their numbers, its power of ten, and its label."""
    if not isinstance(axis.get_major_locator(), FixedLocator):
        # Other ticks would need other room.
        axis.set_major_locator(FixedLocator(axis.get_majorticklocs().tolist()))
    figure, frame, upright = axis.axes.figure, axis.axes.bbox, axis is axis.axes.yaxis
    # matplotlib does not seek the place of a label that has one, and so measures the numbers once.
    axis.set_label_coords(0.5, 0.0)
    label, power = axis.label, axis.get_offset_text()
    with _left_out(label, power):
        numbers = axis.get_tightbbox(renderer)
    length = axis.get_tick_padding() * figure.dpi / 72
    ticks = Bbox([[frame.x0 - length * upright, frame.y0 - length * (not upright)], [frame.x1, frame.y1]])
    found = [ticks if numbers is None else Bbox.union([ticks, numbers])]
    room, inches = axis.labelpad / 72, cast(Any, figure.dpi_scale_trans)
    if upright:
        away = ScaledTranslation((found[0].x0 - frame.x0) / figure.dpi - room, 0.0, inches)
        axis.set_label_coords(0.0, 0.5, transform=axis.axes.transAxes + away)
    else:
        away = ScaledTranslation(0.0, (found[0].y0 - frame.y0) / figure.dpi - room, inches)
        axis.set_label_coords(0.5, 0.0, transform=axis.axes.transAxes + away)
    if power.get_visible() and power.get_text():
        found.append(power.get_window_extent(renderer))
    else:
        # Each draw would measure the numbers again, to place a power of ten beside them.
        for tick in axis.get_major_ticks():
            tick.label1.set_in_layout(False)
    if label.get_visible() and label.get_text():
        found.append(_thin(label.get_window_extent(renderer), across=not upright))
    return found


@contextmanager
def _left_out(*words: Text) -> Iterator[None]:
    """Hide words for a while."""
    before = [own.get_visible() for own in words]
    for own in words:
        own.set_visible(False)
    try:
        yield
    finally:
        for own, shown in zip(words, before, strict=True):
            own.set_visible(shown)


def _thin(box: Bbox, *, across: bool) -> Bbox:
    """The box without its length: words that are longer than a panel do not make it smaller."""
    middle_x, middle_y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    if across:
        return Bbox([[middle_x, box.y0], [middle_x, box.y1]])
    return Bbox([[box.x0, middle_y], [box.x1, middle_y]])


def _edges(found: Sequence[tuple[int, float, float]], count: int) -> tuple[list[float], list[float]]:
    """The most pixels before and behind the panels of each row or column."""
    before, behind = [0.0] * count, [0.0] * count
    for place, ahead, after in found:
        before[place], behind[place] = max(before[place], ahead), max(behind[place], after)
    return before, behind


def _gap(before: Sequence[float], behind: Sequence[float], pad: float) -> float:
    """Pixels between two neighbouring panels: the most that any two need."""
    return max((one + other + pad for one, other in zip(behind, before[1:], strict=False)), default=0.0)
