"""Figures in a page: ids of their own, references that lead to them, and colours that a page sets."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from support.every import every

from securefl.report.inline import inline_svg


def heat_map() -> Figure:
    figure = Figure(figsize=(2, 1))
    axes = figure.subplots()
    axes.pcolormesh(np.arange(4.0).reshape(2, 2), rasterized=True)
    axes.plot([0, 2], [0, 2], color="#000000", label="line")
    return figure


def test_a_picture_in_a_figure_stays_a_picture() -> None:
    """A reference to an id gets the figure's name, and data must not."""
    text = inline_svg(heat_map(), name="map", title="A map.", labels={})
    (image,) = re.findall(r'<image[^>]*href="data:image/png;base64,([^"]*)"', text)
    assert base64.b64decode(image, validate=False).startswith(b"\x89PNG")
    assert re.sub(r"\s", "", image).rstrip("=").isascii()
    assert not image.endswith("-map")


def test_two_figures_of_a_page_share_no_id() -> None:
    one, other = (inline_svg(heat_map(), name=name, title="A map.", labels={}) for name in ("a", "b"))
    ids = [set(re.findall(r'id="([^"]*)"', text)) for text in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, own in zip((one, other), ids, strict=True):
        assert set(re.findall(r'href="#([^"]*)"', text)) <= own
        assert set(re.findall(r"url\(#([^)]*)\)", text)) <= own


def test_black_follows_the_page() -> None:
    assert "stroke: currentColor" in inline_svg(heat_map(), name="map", title="A map.", labels={})


def test_a_figure_styles_itself_alone() -> None:
    assert "<style" not in inline_svg(heat_map(), name="map", title="A map.", labels={})


@every("first", ["style.blank(height=1)", "paper.styled(None).__enter__()"])
def test_settings_in_the_working_folder_are_not_read(first: str, tmp_path: Path) -> None:
    """A `matplotlibrc` in a folder such as /tmp may be another user's."""
    (tmp_path / "matplotlibrc").write_text("figure.facecolor: red\ntext.usetex: True\n")
    look = f"from securefl.report import paper, style; {first}; import matplotlib, os; print(os.getcwd())"
    told = f"{look}; print(matplotlib.rcParams['figure.facecolor'], matplotlib.rcParams['text.usetex'])"
    done = subprocess.run(
        [sys.executable, "-c", told], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(tmp_path), "white", "False"]
