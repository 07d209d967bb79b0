"""Figures as SVG elements that stand in one page beside others, and the marks of their legend."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from xml.etree import ElementTree

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.markers import MarkerStyle

from securefl.sweep.curves import Ink
from securefl.sweep.tradeoff import Series
from securefl.sweep.tradeoff_plots import Drawing


def swatch(series: Series) -> Markup:
    """The line and mark of a series, for a legend beside its figures."""
    ink = Ink.of(series)
    dash = f' stroke-dasharray="{ink.dash[0] * 1.5:g} {ink.dash[1] * 1.5:g}"' if ink.dash else ""
    return Markup(  # numbers and constants alone
        f'<svg class="key" viewBox="0 0 36 12" aria-hidden="true"><path d="M0 6h36" stroke="{ink.colour}" '
        f'stroke-width="2"{dash}/><path d="{_shape(ink.marker)}" fill="{ink.fill}" '
        f'stroke="{ink.colour}"/></svg>'
    )


@cache
def _shape(marker: str) -> str:
    """The outline of matplotlib's mark around (18, 6), 9 units wide, as the path of an SVG."""
    style = MarkerStyle(marker)
    outline = np.asarray(style.get_path().transformed(style.get_transform()).to_polygons()[0])
    points = [f"{x:.2f} {y:.2f}" for x, y in outline * [9, -9] + [18, 6]]
    return f"M{'L'.join(points)}z"


def inline_svg(drawing: Drawing, series: Sequence[Series]) -> str:
    """A figure as an <svg> element for a page that has others.

    Names are local to the page, so ids get the figure's name; those of series keep their beginning. Text
    stays text. The groups of a series get its label as their title, which a pointer shows.
    """
    buffer = io.StringIO()
    # A fixed salt and no date: the same figures give the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "securefl"}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawing.figure.savefig(buffer, format="svg", metadata=nothing)
    root = ElementTree.fromstring(buffer.getvalue())
    labels = {own.number: own.label for own in series}
    _localise(root, drawing.name, labels)
    # Without them the page sets the size, and the view box keeps the shape.
    for name in ("width", "height"):
        root.attrib.pop(name)
    root.attrib |= {"role": "img", "aria-label": drawing.title}
    return ElementTree.tostring(root, encoding="unicode")


def _localise(element: ElementTree.Element, name: str, labels: Mapping[int, str]) -> None:
    element.tag = element.tag.rpartition("}")[2]
    for child in list(element):
        if child.tag.rpartition("}")[2] in ("metadata", "style"):
            element.remove(child)  # matplotlib's style would hold for the whole page
        else:
            _localise(child, name, labels)
    for key, value in list(element.attrib.items()):
        del element.attrib[key]
        element.attrib[key.rpartition("}")[2]] = _local(key, value, name)
    found = re.match(r"series-(\d+)-", element.get("id", ""))
    if found:
        title = ElementTree.Element("title")
        title.text = labels[int(found[1])]
        element.insert(0, title)


def _local(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{value}-{name}"
    if key.endswith("href"):
        return f"{value}-{name}"
    return re.sub(r"url\(#([^)]+)\)", rf"url(#\1-{name})", value)
