"""Panels of a figure stand apart: their titles too."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from support.every import every

from securefl.sweep.tradeoff import Series
from securefl.sweep.tradeoff_plots import Panel, panelled


class Placed:
    """A series as far as its panel."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel


LONG = ("noise in shares of the clients", "100 clients", "Dirichlet 0.3")


@every("columns", [2, 3, 5])
def test_long_titles_do_not_run_into_each_other(columns: int) -> None:
    series: Sequence[Series] = [Placed((f"{k},000 records", *LONG)) for k in range(columns)]  # type: ignore[misc]
    figure, made = panelled(series, "accuracy")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [axes.title.get_window_extent(canvas.get_renderer()) for axes in made.values()]
    assert len(boxes) == columns
    rows = zip(boxes[::2], boxes[1::2], strict=False)
    assert all(left.x1 < right.x0 for left, right in rows)
    assert all(above.y0 > below.y1 for above, below in zip(boxes, boxes[2:], strict=False))
