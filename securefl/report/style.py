"""Style of all figures: colours, markers, frame and legend.

The colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart. Each kind of data
quality has one colour. Each arm has a colour and a mark, in the order of the arms. Pass the same `looks` to
every figure of a report, so that an arm looks the same in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from securefl.core.errors import DataError

ARM_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
QUALITY_COLOURS: Mapping[str, str] = {
    "clean": "#0072B2",
    "noisy": "#E69F00",
    "polluted": "#D55E00",
    "irrelevant": "#009E73",
    "blurred": "#56B4E9",
    "pixel": "#CC79A7",
}
_OTHER_QUALITY = "#777777"
_GRID = "#E3E3E3"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*", "d")
_WIDTH = 9.0


@dataclass(frozen=True)
class Look:
    """The style of one series: its colour (hex) and its mark."""

    colour: str
    marker: str


def look(number: int) -> Look:
    """The look of the series with this number, counted from 0. Numbers below 2,000 have different looks."""
    return Look(_colour(number), MARKERS[number % len(MARKERS)])


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, in the order in which the names first occur."""
    return {name: look(place) for place, name in enumerate(dict.fromkeys(names))}


def _colour(number: int) -> str:
    # 7 colours and 13 markers have no common factor, so all 91 pairs occur before one repeats.
    if number < len(ARM_COLOURS) * len(MARKERS):
        return ARM_COLOURS[number % len(ARM_COLOURS)]
    # Then each further cycle through the markers has a new colour. Golden-section steps keep the hues apart.
    red, green, blue = hsv_to_rgb(number // len(MARKERS) * 0.6180339887498949 % 1, 0.75, 0.7)
    return f"#{round(255 * red):02X}{round(255 * green):02X}{round(255 * blue):02X}"


def blank(*, height: float) -> Figure:
    """An empty figure of this height in inches. All figures have the same width."""
    return Figure(figsize=(_WIDTH, height), dpi=110, layout="constrained")


def light_frame(axes: Axes) -> None:
    """Draw only the axes and faint horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def legend(figure: Figure, labels: Sequence[str]) -> None:
    """Draw the legend below the figure, in as many columns as fit."""
    # The width fits about 120 characters of this size. The line sample and the gap take 8 in each column.
    columns = max(1, min(4, 120 // (8 + max(map(len, labels)))))
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=10)


def checked(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the frame. Raises DataError unless it has these columns and a row."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise DataError(
            f"Expected the columns {', '.join(columns)} to draw this figure, got a table without "
            f"{', '.join(missing)}. Add them."
        )
    if frame.empty:
        raise DataError("Expected at least one row to draw this figure, got none.")
    return frame


def arms_of(data: pd.DataFrame) -> list[str]:
    """The names of the arms, in the order of their first rows."""
    return list(dict.fromkeys(data["arm"].astype(str)))


def qualities_of(data: pd.DataFrame) -> list[str]:
    """The qualities of the clients. Those with a colour of their own come first."""
    found = set(data["quality"].astype(str))
    known = [name for name in QUALITY_COLOURS if name in found]
    # Sorted, because the order of a set of strings differs between processes.
    return known + sorted(found - set(known))


def quality_colours(qualities: Iterable[str]) -> dict[str, str]:
    return {name: QUALITY_COLOURS.get(name, _OTHER_QUALITY) for name in qualities}
