"""Room for the words of a figure: none is cut, none lies on another panel, and panels are placed once."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from PIL import Image
from support.every import every

from securefl.report.inline import inline_svg
from securefl.report.style import WIDTH, blank, legend, panel_title
from securefl.report.tables import write_png


def drawn(down: int, across: int, width: float, scale: float = 1.0) -> Figure:
    """A grid of panels with labels at every side that a report uses, and a legend of several lines."""
    figure = blank(height=1.0 + 2.6 * down, width=width)
    for number, axes in enumerate(figure.subplots(down, across, squeeze=False).flat):
        axes.plot([0, scale], [0, scale], label=f"arm {number} of a study" if number < 3 else "_nolegend_")
        axes.set_xlabel("rounds so far")
        axes.set_ylabel("accuracy")
        panel_title(axes, "one panel of this figure", share=1 / across)
    legend(figure)
    return figure


def boxes(figure: Figure) -> tuple[list[np.ndarray], np.ndarray]:
    """Left, lower, right and upper pixels of each panel with its words, and of the legend."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    panels = [axes.get_tightbbox(renderer) for axes in figure.axes]
    (below,) = figure.legends
    found = [np.array(box.extents) for box in panels if box is not None]
    return found, np.array(below.get_window_extent(renderer).extents)


def apart(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1])


@every(
    ("down", "across", "width", "scale"),
    [
        *((2, 2, 2 * WIDTH, scale) for scale in (1.0, 123456.0, 0.00012)),
        *((1, 1, WIDTH, 123456.0), (2, 2, WIDTH, 0.1), (3, 1, WIDTH, 1.0), (3, 1, WIDTH, 123456.0)),
    ],
)
def test_all_words_have_room(down: int, across: int, width: float, scale: float) -> None:
    figure = drawn(down, across, width, scale)
    panels, below = boxes(figure)
    whole = [*panels, below]
    edge = figure.get_size_inches() * figure.dpi
    for box in whole:
        assert box[0] >= 0
        assert box[1] >= 0
        assert (box[2:] <= edge).all()
    assert all(apart(one, other) for place, one in enumerate(whole) for other in whole[:place])


def test_little_room_is_left_empty() -> None:
    panels, _ = boxes(drawn(1, 2, WIDTH))
    edge = WIDTH * 110
    assert panels[0][0] < 0.02 * edge
    assert panels[1][2] > 0.97 * edge
    assert panels[1][0] - panels[0][2] < 0.03 * edge


def test_panels_are_placed_once_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed = 0
    usual = ConstrainedLayoutEngine.execute

    def counted(self: ConstrainedLayoutEngine, fig: Figure) -> object:
        nonlocal placed
        placed += 1
        return usual(self, fig)

    monkeypatch.setattr(ConstrainedLayoutEngine, "execute", counted)
    figure = drawn(1, 2, WIDTH)
    write_png(tmp_path / "a.png", figure)
    inline_svg(figure, name="a", title="A figure.", labels={})
    assert placed == 1


def test_the_files_of_a_figure_are_the_same_picture(tmp_path: Path) -> None:
    """A picture is drawn at 150 dots an inch in its file, and labels keep their distance in the page."""
    figure = drawn(1, 2, WIDTH)
    write_png(tmp_path / "a.png", figure)
    panels, below = boxes(figure)
    assert figure.dpi == 110
    again, other = boxes(drawn(1, 2, WIDTH))
    assert np.allclose(panels, again, atol=3)
    assert np.allclose(below, other, atol=3)


def test_the_file_of_a_figure_is_what_matplotlib_draws(tmp_path: Path) -> None:
    """All dots of all colours, at 150 an inch, with the notice beside them."""
    write_png(tmp_path / "a.png", drawn(1, 2, WIDTH), "for you")
    figure = drawn(1, 2, WIDTH)
    figure.dpi = 150
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    with Image.open(tmp_path / "a.png") as found:
        assert found.size == (int(WIDTH * 150), int(figure.get_figheight() * 150))
        assert np.array_equal(np.asarray(found), np.asarray(canvas.buffer_rgba())[..., :3])
        assert found.info["Comment"] == "for you"
        assert found.info["dpi"] == pytest.approx((150, 150), abs=0.1)


def test_a_bar_of_errors_beside_a_logarithmic_panel_has_room() -> None:
    """Its box is infinite there. The figure stayed where matplotlib puts one without words."""
    figure = blank(height=4.0, width=WIDTH)
    axes = figure.subplots()
    axes.plot([1, 1000], [0, 1], label="arm 0 of a study")
    axes.set_xscale("log")
    axes.errorbar(
        1.2, 0.5, yerr=0.1, marker="o", clip_on=False, transform=axes.get_yaxis_transform(), capsize=2
    )
    legend(figure)
    (panel,), below = boxes(figure)
    edge = figure.get_size_inches() * figure.dpi
    assert panel[2] <= edge[0]
    assert axes.bbox.x1 < 0.84 * edge[0]
    assert apart(panel, below)


def test_an_empty_figure_is_drawn() -> None:
    blank(height=1.0).savefig(BytesIO(), format="png")
