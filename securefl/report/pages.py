"""What all pages share: style, filters and figures.

A page is one file without network and script. All text in it is escaped, and a content policy forbids
loading or running anything. It follows the reader's choice of light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from securefl.accounting.figures import in_words
from securefl.core.errors import ConfigError
from securefl.report.inline import inline_svg

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

_BEGINS: Final = b"<!DOCTYPE html>"
POLICY: Final = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
"""The content policy of a page without a script."""
APART: Final = "Not for publication: no epsilon covers this."
"""Beside each figure, table and list of a page that is for the person at this machine."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """A figure of a page.

    draw: makes the figure. name: of files and ids, unique in the page. The caption is also the words for a
    reader who cannot see the picture. private: whether it must not be published; the page then says so. note:
    a sentence beside it. labels: by the beginning of an id in the figure, its words under the pointer.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], Figure]
    private: bool = False
    note: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def figure(self) -> Figure:
        """The figure, drawn once for its file and all pages."""
        return self.draw()

    @cached_property
    def svg(self) -> Markup:
        """Its SVG element."""
        return inline_svg(self.figure, name=self.name, title=self.caption, labels=self.labels)

    @cached_property
    def element(self) -> Markup:
        """Its heading, its SVG element and its caption."""
        apart = Markup('\n  <p class="apart">{}</p>').format(APART) if self.private else ""
        return Markup("<figure>\n  <h3>{}</h3>\n  {}\n  <figcaption>{}</figcaption>{}\n</figure>").format(
            self.title, self.svg, " ".join(filter(None, (self.caption, self.note))), apart
        )


def require_page(path: Path) -> None:
    """Raise ConfigError if a page written to this path would overwrite a file that is no HTML page."""
    if not path.exists():
        return
    began = b""
    if path.is_file():
        with path.open("rb") as file:
            began = file.read(len(_BEGINS))
    if began.lower() != _BEGINS.lower():
        raise ConfigError(
            f"Expected a new file or an HTML page, got {path}, which is neither. Choose another."
        )


@cache
def environment() -> Environment:
    """The environment of the templates of this folder, with `page.css.j2` for their style.

    A process has one, so that it compiles each template once.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    # Names come from untrusted files, so all text is escaped. StrictUndefined raises if a template uses an
    # unknown name.
    made = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        undefined=StrictUndefined,
        optimized=False,  # to optimise a template takes longer than a few pages save
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number_text, "epsilon": in_words}
    made.tests["known"] = math.isfinite
    made.globals["policy"] = POLICY
    return made


def _source(name: str) -> str:
    return files("securefl.report").joinpath(name).read_text(encoding="utf-8")


def number_text(value: float, digits: int = 1) -> str:
    """A number with `digits` decimals and thin gaps between thousands; a dash for nan."""
    if not math.isfinite(value):
        return "–"
    # A narrow no-break space: a number does not break at the end of a line.
    return f"{value:,.{digits}f}".replace(",", "\u202f")
