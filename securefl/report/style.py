"""Style of all figures: colours, markers, frame and legend.

The colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart. Each kind of data
quality has one colour. Each series (an arm, or a line of a sweep) has a name, a colour and a mark, in the
order in which pages list the series. Pass the same `looks` to every figure of a page, so that a series
looks the same in all of them. All pages and pictures take colours from here alone.

The modules of this folder import matplotlib, jinja2 and pandas where they draw and write, so that a
command that draws nothing does not wait for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from colorsys import hsv_to_rgb
from contextlib import chdir, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from securefl.core.errors import DataError
from securefl.core.lazy import loading
from securefl.report.terminal import shortened

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

ARM_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#888888")
QUALITY_COLOURS: Mapping[str, str] = {
    "clean": "#0072B2",
    "noisy": "#E69F00",
    "polluted": "#D55E00",
    "irrelevant": "#009E73",
    "blurred": "#56B4E9",
    "pixel": "#CC79A7",
}
OTHER_QUALITY = "#777777"
GRID = "#E3E3E3"
PAGE_INKS: Final[Mapping[str, str]] = {
    "#000000": "currentColor",
    "#ffffff": "var(--paper, #ffffff)",
    "#e3e3e3": "var(--rule, #e3e3e3)",
    "#999999": "var(--faint, #999999)",
    "#bbbbbb": "var(--faint, #bbbbbb)",
    "#555555": "var(--note, #555555)",
}
"""By colour of a figure, in lower case: the CSS value in its place on a page, which is light or dark."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*", "d")
FEW_SEEDS: Final = 5
"""With fewer seeds a figure shows each seed as a point: a band of so few says more than is known."""
WIDTH: Final = 5.1
"""Inches of a picture: one picture is legible on a telephone's page and fits a screen."""
_FAR: Final = 20
_MARKS: Final = 10
"""About the number of marks of a line of any length."""
_LETTERS_OF_A_POINT: Final = 133
"""Letters of a point in height that stand in an inch."""
PALETTE: Final[ContextVar[tuple[str, ...]]] = ContextVar("palette", default=ARM_COLOURS)
"""The colours of series: those of this module, or of a person's own style (`paper.styled`)."""


@dataclass(frozen=True)
class Look:
    """The style of one series: its colour (hex), its mark, and its dash in points on and off; () is solid.

    hollow: whether marks are filled with white.
    """

    colour: str
    marker: str
    hollow: bool = False
    dash: tuple[int, ...] = ()

    @property
    def fill(self) -> str:
        return "white" if self.hollow else self.colour


def look(number: int) -> Look:
    """The look of the series with this number, counted from 0. Numbers below 2,000 have different looks."""
    return Look(_colour(number), MARKERS[number % len(MARKERS)])


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, in the order in which the names first occur."""
    return {name: look(place) for place, name in enumerate(dict.fromkeys(names))}


def _colour(number: int) -> str:
    # 7 colours and 13 markers have no common factor, so all 91 pairs occur before one repeats.
    colours = PALETTE.get()
    if number < len(colours) * len(MARKERS):
        return colours[number % len(colours)]
    # Then each further cycle through the markers has a new colour. Golden-section steps keep the hues apart.
    red, green, blue = hsv_to_rgb(number // len(MARKERS) * 0.6180339887498949 % 1, 0.75, 0.7)
    return f"#{round(255 * red):02X}{round(255 * green):02X}{round(255 * blue):02X}"


@contextmanager
def no_settings_of_the_folder() -> Iterator[None]:
    """Import matplotlib from `/`, where root alone makes files, unless it is imported.

    It reads the file `matplotlibrc` of the working folder first, which may be another user's.
    """
    if "matplotlib" in sys.modules:
        yield
    else:
        with chdir("/"):
            yield


def blank(*, height: float, width: float = WIDTH) -> Figure:
    """An empty figure of this height and width in inches. Its panels are placed when it is first drawn.

    Each further file of it has the panels where they are: to place them takes as long as to draw them.
    """
    with loading("matplotlib.figure"), no_settings_of_the_folder():
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

    class Once(ConstrainedLayoutEngine):
        def execute(self, fig: Figure) -> None:
            super().execute(fig)
            fig.set_layout_engine("none")

    return Figure(figsize=(width, height), dpi=110, layout=Once())


def light_frame(axes: Axes) -> None:
    """Draw only the axes and faint horizontal lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def panels_of(count: int, *, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with panels of one vertical axis, one below the other. height: of a panel, in inches."""
    figure = blank(height=0.6 + height * count)
    panels = list(figure.subplots(count, 1, sharey=True, squeeze=False).flat)
    for axes in panels:
        light_frame(axes)
    return figure, panels


def curve(
    axes: Axes,
    across: Any,
    up: Any,
    worn: Look,
    *,
    label: str = "_nolegend_",
    low: Any = None,
    high: Any = None,
    seeds: Iterable[Any] = (),
    place: int = 0,
    joined: bool = True,
    band: bool = True,
) -> list[Any]:
    """Draw a series: a line with some ten marks, the values of its seeds, and a band between two bounds.

    Args:
        axes: where it is drawn.
        across, up: the places of its points.
        worn: its look.
        label: its words in the legend.
        low, high: the bounds of each point, nan where it has none; None if no point has bounds.
        seeds: for each seed its values at all points, drawn as dots; nan where it has none.
        place: of the series among those of the panel. Marks of different series are at different points, so
            that they stay visible where lines overlap.
        joined: whether a line joins its points.
        band: False for a bar at each point, as a single point always has: a band there has no width.

    Returns:
        What was drawn, the line first.
    """
    from matplotlib import rcParams

    across, up, ink = np.asarray(across), np.asarray(up), worn.colour
    size = 5 / 6 * rcParams["lines.markersize"]
    gap = max(1, len(across) // _MARKS)
    drawn: list[Any] = axes.plot(
        across,
        up,
        worn.marker,
        color=ink,
        markerfacecolor=worn.fill,
        markersize=size,
        linestyle=(0, worn.dash) if joined and worn.dash else "-" if joined else "",
        linewidth=1.2 * rcParams["lines.linewidth"],
        markevery=(place % gap, gap) if len(across) > 1 else None,
        label=label,
    )
    for values in seeds:
        drawn += axes.plot(across, values, ".", color=ink, markersize=size, alpha=0.5, label="_nolegend_")
    known = np.zeros(len(across), bool) if low is None else ~np.isnan(low)
    if band and known.sum() > 1:
        drawn.append(axes.fill_between(across, low, high, where=known, color=ink, alpha=0.15, linewidth=0))
    elif known.any():
        ends = np.array([up - low, high - up])[:, known]
        drawn += axes.errorbar(
            across[known], up[known], yerr=ends, fmt="none", ecolor=ink, capsize=3
        ).get_children()
    return drawn


def beyond(axes: Axes, top: float, word: str) -> None:
    """Number the vertical axis from 0 to `top`, and mark 1.2 times as much with a word."""
    from matplotlib.ticker import MaxNLocator

    ticks = [at for at in MaxNLocator(nbins=5).tick_values(0, top) if at <= 1.05 * top]
    words = [f"{at:g}" for at in ticks]
    axes.set_ylim(0, 1.3 * top)
    axes.set_yticks([*ticks, 1.2 * top], [*words, word])


def limit(axes: Axes, height: float | None, name: str) -> None:
    """Draw a height that was asked for as a dashed line, if there is one."""
    if height is not None:
        ink: dict[str, Any] = {"color": "#555555", "linestyle": (0, (4, 3)), "linewidth": 1.0, "zorder": 0}
        axes.axhline(height, label=f"{name} {height:g}", **ink)


def legend(figure: Figure) -> None:
    """Draw the legend below the figure, each name once, in as many columns as fit. The figure grows by it."""
    named: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if not named:
        return
    room = letters(figure.get_figwidth(), "legend.fontsize")
    # The line sample and the gap take 8 letters in each column. Labels that are folded, into about two lines,
    # stand in one.
    labels = shortened([*named], 2 * (room - 16))
    across = max(1, min(4, room // (8 + max(map(len, labels)))))
    words = [fill(label, room - 16) for label in labels]
    down = -(-sum(label.count("\n") + 1 for label in words) // across)
    figure.set_figheight(figure.get_figheight() + 0.021 * text_height("legend.fontsize") * down + 0.1)
    figure.legend([*named.values()], words, loc="outside lower center", ncols=across, frameon=False)


def text_height(setting: str) -> float:
    """The height in points of a text that this setting of matplotlib sizes."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties

    sizes: Any = rcParams
    return float(FontProperties(size=sizes[setting]).get_size_in_points())


def letters(inches: float, setting: str = "font.size") -> int:
    """About how many letters of such a text stand in so many inches."""
    return int(_LETTERS_OF_A_POINT / text_height(setting) * inches)


def panel_title(axes: Axes, words: str, *, share: float = 1.0) -> None:
    """Write the title of a panel at its left, in as many lines as it needs.

    share: the part of the figure's width that the panel has, without the labels of its axis.
    """
    figure = axes.get_figure(root=True)
    inches = WIDTH if figure is None else figure.get_figwidth()
    axes.set_title(fill(words, max(16, letters(inches * share) - 12)), fontsize=11, loc="left")


def far_apart(axes: Axes, values: Sequence[float]) -> bool:
    """Whether these numbers would crowd on a linear axis. The horizontal one is then made logarithmic.

    A linear one has at most five numbers: those of small times have many digits.
    """
    far = len(values) > 0 and min(values) > 0 and max(values) / min(values) > _FAR
    if far:
        axes.set_xscale("log")
        plain_logarithmic(axes.xaxis)
    else:
        axes.locator_params("x", nbins=4)
    return far


def whole_numbers(axis: Axis) -> None:
    """Label an axis of rounds or counts with whole numbers alone, one of them at least."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def plain_logarithmic(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers, such as 0.02 and 500."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    class FewNumbers(LogLocator):
        def tick_values(self, vmin: float, vmax: float) -> Any:
            # Over more than two decades, 2 and 5 would lie on their neighbours in a narrow picture.
            self.set_params(subs=(1.0, 2.0, 5.0) if vmax < 200 * vmin else (1.0,))
            return super().tick_values(vmin, vmax)

    axis.set_major_locator(FewNumbers(numticks=7))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


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
