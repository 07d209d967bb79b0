"""Figures for a paper: their width, a matplotlib style of a person's own, and files as PDF, SVG or PNG.

A style file is read as data. matplotlib's own reader is not used: it may evaluate colours, import hooks and
start LaTeX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from securefl.core.errors import ConfigError
from securefl.report.style import PALETTE, no_settings_of_the_folder
from securefl.storage.files import write
from securefl.storage.texts import read_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN: Final = 3.3
"""Inches of a column of a paper of two columns."""
_WIDTHS: Final = (1.0, 20.0)
_PER_INCH: Final = {"in": 1.0, "cm": 2.54, "mm": 25.4}
_NOTICE: Final = {".pdf": "Subject", ".svg": "Description", ".png": "Comment"}
"""By a file's ending, the field of its metadata that takes a notice."""
_DATE: Final = {".pdf": "CreationDate", ".svg": "Date"}
_SIZES: Final[dict[Any, Any]] = {
    "font.size": 8.0,
    "lines.linewidth": 1.0,
    "lines.markersize": 4.5,
    "axes.linewidth": 0.6,
    "text.parse_math": False,
}
"""Readable at the width of a column, without a style of one's own. A name with $ in it is no formula."""
_CYCLE: Final = "axes.prop_cycle"
_COLOURS: Final = re.compile(r"""cycler\(\s*(?:color *=|(["'])color\1 *,) *[\[(]([^\[\]()]+)[\])]\s*\)""")
_ALLOWED: Final = (
    *("axes.", "errorbar.", "figure.", "font.", "grid.", "hatch.", "legend.", "lines.", "mathtext."),
    *("patch.", "pdf.fonttype", "ps.fonttype", "savefig.", "svg.fonttype", "text.color", "xtick.", "ytick."),
)
_CODE: Final = ("figure.hooks",)
"""A setting that names a function to import."""
_SETTING: Final = re.compile(
    r"""\s*(?P<key>[\w.]+)\s*:\s*(?P<value>(?:[^#"']|"[^"]*"|'[^']*')*?)\s*(?:#.*)?"""
)


def inches(width: float | str) -> float:
    """A width, such as 3.3 or "84mm", in inches. Raises ConfigError unless a figure has room in it."""
    found = re.fullmatch(r"\s*(\d*\.?\d+)\s*(in|cm|mm)?\s*", str(width))
    value = float(found[1]) / _PER_INCH[found[2] or "in"] if found else 0.0
    if not _WIDTHS[0] <= value <= _WIDTHS[1]:
        raise ConfigError(
            f"Expected a width from {_WIDTHS[0]:g}in to {_WIDTHS[1]:g}in, such as {COLUMN}in or 84mm, got "
            f"{width!r}. Take the width of a column of your paper."
        )
    return value


def require_picture(path: Path) -> None:
    """Raise ConfigError unless the file's ending is that of a picture that `write_figure` writes."""
    if path.suffix.lower() not in _NOTICE:
        raise ConfigError(
            f"Expected a file that ends in {', '.join(_NOTICE)}, got {path.name!r}. The ending is the format."
        )


def write_figure(path: Path, figure: Figure, notice: str = "") -> None:
    """Write a figure in the format of its file's ending. The same figure gives the same bytes.

    notice: noted in the file's metadata.
    """
    from matplotlib import rc_context

    ending, drawn = path.suffix.lower(), BytesIO()
    about: dict[str, Any] = {_NOTICE[ending]: notice} if notice else {}
    if ending in _DATE:
        about[_DATE[ending]] = None
    # Publishers refuse fonts of matplotlib's default type 3.
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "securefl"}):
        figure.savefig(drawn, format=ending[1:], dpi=300, metadata=about)
    write(path, drawn.getvalue())


@contextmanager
def styled(file: Path | None) -> Iterator[None]:
    """A context in which figures are drawn in sizes for a paper, and in the style of this file.

    Raises ConfigError, with the line, for a style that sets anything but fonts, sizes, colours and lines.
    """
    with no_settings_of_the_folder():
        from matplotlib import rc_context
    settings, colours = ({}, None) if file is None else _read(file)
    before = PALETTE.set(colours) if colours else None
    try:
        with rc_context({**_SIZES, **settings}):
            yield
    finally:
        if before is not None:
            PALETTE.reset(before)


def _read(file: Path) -> tuple[dict[Any, Any], tuple[str, ...] | None]:
    """The settings of a style file, and its colours of series."""
    from matplotlib import RcParams

    settings, colours = dict[Any, Any](), None
    for number, line in enumerate(read_text(file).splitlines(), 1):
        if not line.partition("#")[0].strip():
            continue
        try:
            found = _SETTING.fullmatch(line)
            if found is None:
                raise ValueError("it is no `key: value`")
            key, value = found[1], found[2].strip('"')
            if not key.startswith(_ALLOWED) or key in _CODE:
                raise ValueError(f"{key} is none of them")
            if key == _CYCLE:
                colours = _colours(value)
            else:
                settings.update(RcParams(**{key: value}))
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"{file}, line {number}: expected a setting of fonts, sizes, colours or lines, as a style "
                f"file of matplotlib has them, got {line.strip()!r}: {error}. A style is data, and no code: "
                "leave the line out."
            ) from None
    return settings, colours


def _colours(value: str) -> tuple[str, ...]:
    """The colours in the text `cycler("color", [...])`, which is never run."""
    from matplotlib.colors import to_hex
    from matplotlib.rcsetup import validate_color

    if (found := _COLOURS.fullmatch(value)) is None:
        raise ValueError('it is no cycler("color", [...]) of colours')
    return tuple(to_hex(validate_color(colour.strip("\"' "))) for colour in found[2].rstrip(", ").split(","))
