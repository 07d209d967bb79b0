"""Figures that show every client: its participation, its profile divergence, and its place in an embedding.

The embedding colours each client by the most frequent label of its records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from securefl.core.errors import DataError
from securefl.report.pages import number_text
from securefl.report.style import (
    GRID,
    OTHER_QUALITY,
    QUALITY_COLOURS,
    arms_of,
    blank,
    checked,
    legend,
    light_frame,
    look,
    panel_title,
    plain_logarithmic,
    qualities_of,
    whole_numbers,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

_INK = "#000000"


def participation(participation: pd.DataFrame) -> Figure:
    """Plot each client's participation by data quality (FedProf v2, Fig. 6), with a panel for each arm.

    participation: columns arm, client, quality, answered (the number of rounds in which the client took
    part). Each quality has a row, with a dot for each client and a line at their mean.
    Raises DataError for missing columns or an empty frame.
    """
    data = checked(participation, ("arm", "client", "quality", "answered"))
    qualities = qualities_of(data)
    figure, panels = _panels(data, 0.9, 0.5 + 0.4 * len(qualities), share=0.6, sharex=True)
    for axes, own in panels:
        light_frame(axes)
        names = []
        for row, quality in enumerate(qualities):
            counts = own.loc[own["quality"] == quality, "answered"].to_numpy(dtype=float)
            # Clients with as many rounds lie beside each other, in their order.
            place = row + 0.28 * np.sin(2.4 * np.arange(len(counts)))
            ink: dict[str, Any] = {"alpha": 0.6, "label": quality}
            ink["color"] = QUALITY_COLOURS.get(quality, OTHER_QUALITY)
            axes.plot(counts, place, "o", markersize=4, markeredgewidth=0, **ink)
            mean = counts.mean() if len(counts) else np.nan
            axes.vlines([mean][: len(counts)], row - 0.4, row + 0.4, color=_INK, linewidth=1.6)
            names.append(f"{quality} ({len(counts)}), mean {number_text(mean)}")
        axes.set_yticks(range(len(qualities)), names)
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(qualities) - 0.5, -0.5)
    # A panel of few rows has no room for a title of several lines.
    more = sum(axes.get_title(loc="left").count("\n") for axes in figure.axes)
    figure.set_figheight(figure.get_figheight() + 0.18 * more)
    axes.set_xlabel("rounds taken part; line: mean")
    axes.set_xlim(-0.5, 1.05 * max(1.0, float(data["answered"].max())))
    whole_numbers(axes.xaxis)
    return figure


def _panels(
    data: pd.DataFrame, height: float, each: float, *, share: float = 1.0, sharex: bool = False
) -> tuple[Figure, list[tuple[Axes, pd.DataFrame]]]:
    """A figure with a panel for each arm, titled by its name, beside the arm's rows.

    height, each: of the figure without panels and of a panel, in inches. share: as for `panel_title`.
    """
    arms = arms_of(data)
    figure = blank(height=height + each * len(arms))
    found = []
    for axes, arm in zip(figure.subplots(len(arms), 1, sharex=sharex, squeeze=False).flat, arms, strict=True):
        panel_title(axes, arm, share=share)
        found.append((axes, data[data["arm"] == arm]))
    return figure, found


def divergence(scores: pd.DataFrame) -> Figure:
    """Divergence of every client's profile over the rounds, a heatmap (FedProf v2, Fig. 7); a panel per arm.

    scores: columns arm, round, client, quality, divergence (>= 0), which holds until the client's next row.
    Clients are grouped by quality and, inside a group, ordered by their median over the rounds. Colour is the
    divergence itself on a log scale: the score exp(-alpha div) underflows, and a rank would hide how far the
    groups lie apart. Grey: no value for this client and round.
    Raises DataError for missing columns, an empty frame or no divergence above zero.
    """
    from matplotlib.colors import LogNorm

    data = checked(scores, ("arm", "round", "client", "quality", "divergence"))
    values = data["divergence"].to_numpy(dtype=float)
    positive = values[np.isfinite(values) & (values > 0)]
    if not len(positive):
        raise DataError("Expected some divergence above 0 to draw, got none.")
    # The outermost percent would otherwise use up the colours.
    low, high = np.quantile(positive, [0.01, 0.99])
    norm = LogNorm(vmin=low, vmax=max(high, low * 1.01))
    qualities = qualities_of(data)
    figure, panels = _panels(data, 0.8, 3.6, share=0.6)
    for axes, own in panels:
        mesh = _divergence_panel(axes, own, qualities, norm, int(data["round"].max()))
    axes.set_xlabel("round")
    whole_numbers(axes.xaxis)
    bar = figure.colorbar(mesh, ax=figure.axes, extend="both", pad=0.02, aspect=25 * len(panels))
    bar.set_label("divergence from the baseline (log scale)")
    plain_logarithmic(bar.ax.yaxis)
    return figure


def _divergence_panel(
    axes: Axes, data: pd.DataFrame, qualities: Sequence[str], norm: LogNorm, last: int
) -> QuadMesh:
    quality = data.groupby("client")["quality"].first()
    table = data.pivot_table(index="client", columns="round", values="divergence")
    # A number holds until the client's next one, also through rounds without a change.
    first = int(table.columns.min())
    table = table.reindex(columns=range(first, last + 1)).ffill(axis=1)
    median = table.median(axis=1)
    order = sorted(quality.index, key=lambda client: (qualities.index(str(quality[client])), median[client]))
    values = table.reindex(order).to_numpy(dtype=float)
    # A logarithm has no place for a perfect match; it takes the colour of the lowest.
    grid = np.ma.masked_invalid(np.where(values == 0, norm.vmin or 0.0, values))
    axes.set_facecolor(GRID)
    across, down = (np.arange(count + 1) - 0.5 for count in reversed(grid.shape))
    mesh = axes.pcolormesh(first + across, down, grid, norm=norm, cmap="viridis_r", rasterized=True)
    groups = quality.astype(str).value_counts().reindex([*qualities]).dropna()
    ends = groups.cumsum() - 0.5
    for end in ends:
        axes.axhline(end, color="white", linewidth=2.0)
    axes.set_yticks(ends - groups / 2, [f"{name} ({count:.0f})" for name, count in groups.items()])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_ylabel("clients, by data quality")
    return mesh


def embedding(places: pd.DataFrame) -> Figure:
    """Plot the clients in the plane (FedCor, Fig. 7, without t-SNE), with a panel for each arm.

    places: columns arm, client, label (the most frequent one of its records), first, second. The two
    directions are those of the largest variance, so clients that are near in the figure are near in the
    embedding too, as far as two directions can show. The axes have no unit.
    Raises DataError for missing columns or an empty frame.
    """
    data = checked(places, ("arm", "client", "label", "first", "second"))
    labels = sorted(data["label"].astype(str).unique(), key=lambda one: (len(one), one))
    figure, panels = _panels(data, 0.5, 3.8)
    for axes, own in panels:
        light_frame(axes)
        for number, label in enumerate(labels):
            alike = own[own["label"].astype(str) == label]
            axes.scatter(
                alike["first"],
                alike["second"],
                s=34,
                color=look(number).colour,
                marker=look(number).marker,
                alpha=0.85,
                linewidths=0,
                label=f"mostly label {label}" if label else "clients",
            )
        far = 1.05 * max(data[["first", "second"]].abs().max().max(), 1e-9)
        ends = (-far, far)
        axes.set(xlabel="first direction", ylabel="second direction", xlim=ends, ylim=ends)
    legend(figure)
    return figure
