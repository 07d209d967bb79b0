"""Figures as SVG elements of a page that may be light or dark (`inline_svg`).

Text stays text. The colours of frames, text and paper become values of CSS that a page's theme sets:
`currentColor`, `--paper`, `--rule`, `--faint`, `--note` (see `style.PAGE_INKS`). A page without them shows
the figure's own colours.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from securefl.report.style import PAGE_INKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOUR = re.compile("|".join(PAGE_INKS), re.IGNORECASE)


def inline_svg(figure: Figure, *, name: str, title: str, labels: Mapping[str, str]) -> Markup:
    """The figure as an <svg> element for a page with several figures.

    name: of the figure, unique in the page. Ids must be unique in a page, so each gets the name as a
    suffix. title: the words for a reader who cannot see the figure. labels: by the beginning of an id, such
    as "series-3", the title of the elements with such ids. A browser shows it under the pointer.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer, usual = io.StringIO(), figure.dpi
    # With a fixed salt and no date, the same figures give the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "securefl"}):
        # `savefig` would draw the figure twice: once for its layout, and drawing lays it out too.
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(buffer, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    figure.dpi = usual
    root = ElementTree.fromstring(buffer.getvalue())
    _localise(root, name, labels)
    # Without these two the page sets the size, and the view box keeps the aspect ratio.
    for key in ("width", "height"):
        root.attrib.pop(key)
    root.attrib |= {"role": "img", "aria-label": title, "fill": "currentColor"}
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # safe: ElementTree escapes all text


def _localise(element: ElementTree.Element, name: str, labels: Mapping[str, str]) -> None:
    element.tag = element.tag.rpartition("}")[2]
    for child in list(element):
        if child.tag.rpartition("}")[2] in ("metadata", "style"):
            element.remove(child)  # matplotlib's style would apply to the whole page
        else:
            _localise(child, name, labels)
    for key, value in list(element.attrib.items()):
        del element.attrib[key]
        element.attrib[key.rpartition("}")[2]] = _local(key, value, name)
    found = re.match(r"([a-z]+-\d+)-", element.get("id", ""))
    if found and found[1] in labels:
        title = ElementTree.Element("title")
        title.text = labels[found[1]]
        element.insert(0, title)


def _local(key: str, value: str, name: str) -> str:
    # A picture in a figure, such as a heat map, is a "data:" reference, and none to an id.
    if key == "id" or (key.endswith("href") and value.startswith("#")):
        return f"{value}-{name}"
    if key == "style":
        # Attributes of SVG take no `var()`, but styles do.
        value = _COLOUR.sub(lambda found: PAGE_INKS[found[0].lower()], value)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#\1-{name})", value)
