"""The figures of a study, from tidy data frames: one row per observation, one function per figure.

All figures are built on matplotlib's object interface and touch no global state. Colours are those of
Okabe and Ito (2008), safe for colour-blind readers: one for each kind of data quality, and one for each arm,
given in the order of the arms; hand the same `colours` to every figure of a report to keep them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

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
_INK = "#222222"
_GRID = "#E3E3E3"
_DASHES = ("-", "--", ":", "-.")
_WIDTH = 9.0
_SMALL = 9.0


def arm_colours(arms: Iterable[str]) -> dict[str, str]:
    """A colour (hex) for each arm, by its first place in `arms`. After seven arms the colours come again."""
    return {arm: ARM_COLOURS[i % len(ARM_COLOURS)] for i, arm in enumerate(dict.fromkeys(arms))}


def accuracy(
    metrics: pd.DataFrame, *, target: float | None = None, colours: Mapping[str, str] | None = None
) -> Figure:
    """Accuracy over rounds, one line per arm; with several seeds the mean and a band of one deviation.

    metrics: columns arm, round, accuracy and, where there are several, seed. Rows without accuracy are left
    out. target: drawn as a line; the round at which each arm's (mean) curve first reaches it is marked, and
    named in the legend.
    Raises DataError for missing columns or an empty frame.
    """
    data = _checked(metrics, ("arm", "round", "accuracy")).dropna(subset=["accuracy"])
    arms = _arms(data)
    colours = colours or arm_colours(arms)
    figure = _figure(height=4.2)
    axes = figure.subplots()
    _light_frame(axes)
    labels = []
    for place, arm in enumerate(arms):
        curve = _by_round(data[data["arm"] == arm], ["accuracy"])
        rounds, mean = curve.index.to_numpy(dtype=float), curve["accuracy"].to_numpy()
        reached = _first_reach(rounds, mean, target)
        labels.append(arm if target is None else f"{arm} ({_reach_words(reached)})")
        axes.plot(
            rounds,
            mean,
            color=colours[arm],
            linestyle=_dash(place),
            linewidth=1.8,
            marker=_marker(mean),
            label=labels[-1],
        )
        if "seed" in data.columns:
            spread = _deviation(data[data["arm"] == arm])
            if len(rounds) == 1:
                axes.errorbar(rounds, mean, yerr=spread, color=colours[arm], capsize=4)
            axes.fill_between(
                rounds, mean - spread, mean + spread, color=colours[arm], alpha=0.18, linewidth=0
            )
        if target is not None and reached is not None:
            height = mean[rounds == reached]
            axes.plot(
                [reached], height, "o", color=colours[arm], markeredgecolor="white", markersize=8, zorder=5
            )
    if target is not None:
        axes.axhline(
            target,
            color="#555555",
            linestyle=(0, (4, 3)),
            linewidth=1.0,
            zorder=0,
            label=f"target {target:g}",
        )
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("accuracy (share, 0 to 1)")
    if (seeds := _seeds(data)) > 1:
        axes.set_title(f"mean of {seeds} seeds; band: one standard deviation", fontsize=_SMALL, loc="left")
    _legend(figure, labels)
    return figure


def _marker(values: Sized) -> str:
    """A curve of one point is a point: a line would not be seen."""
    return "o" if len(values) == 1 else ""


def participation(participation: pd.DataFrame, *, colours: Mapping[str, str] | None = None) -> Figure:
    """How often each client took part, clients grouped by data quality (FedProf v2, Fig. 6); a panel per arm.

    participation: columns arm, client, quality, answered (rounds taken part in). Inside a group the bars fall
    from the busiest client on, so that the shape is readable at 500 clients too; the line is the mean of the
    group, its number stands below.
    colours: of the qualities, where they are not those of `QUALITY_COLOURS`.
    Raises DataError for missing columns or an empty frame.
    """
    data = _checked(participation, ("arm", "client", "quality", "answered"))
    arms, qualities = _arms(data), _qualities(data)
    colours = colours or _quality_colours(qualities)
    figure = _figure(height=0.9 + 2.1 * len(arms))
    panels = figure.subplots(len(arms), 1, sharey=True, squeeze=False)[:, 0]
    for axes, arm in zip(panels, arms, strict=True):
        _participation_panel(axes, data[data["arm"] == arm], qualities, colours)
        axes.set_title(arm, fontsize=11, loc="left")
        axes.set_ylabel("rounds taken part")
    panels[-1].set_xlabel("data quality (number of clients), mean of the group")
    panels[0].set_ylim(0, 1.15 * max(1.0, float(data["answered"].max())))
    return figure


def _participation_panel(
    axes: Axes, data: pd.DataFrame, qualities: Sequence[str], colours: Mapping[str, str]
) -> None:
    _light_frame(axes)
    gap = max(1.0, 0.012 * len(data))
    start, centres, names = 0.0, [], []
    for quality in qualities:
        counts = np.sort(data.loc[data["quality"] == quality, "answered"].to_numpy(dtype=float))[::-1]
        if not len(counts):
            continue
        places = start + np.arange(len(counts))
        # Bars that touch, without edges, stay a clean shape where a bar is less than a dot wide.
        width = 0.85 if len(data) <= 100 else 1.0
        axes.bar(places, counts, width=width, color=colours[quality], alpha=0.75, linewidth=0, label=quality)
        low, high, mean = places[0] - 0.5, places[-1] + 0.5, float(counts.mean())
        axes.plot([low, high], [mean, mean], color=_INK, linewidth=1.6)
        centres.append((low + high) / 2)
        # Under the group and not at the line, where bars would hide it.
        names.append(f"{quality} ({len(counts)})\nmean {mean:.1f}")
        start = places[-1] + 1 + gap
    axes.set_xticks(centres, names)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5 - gap, start - 0.5)


def divergence(scores: pd.DataFrame) -> Figure:
    """Divergence of every client's profile over the rounds, a heatmap (FedProf v2, Fig. 7); a panel per arm.

    scores: columns arm, round, client, quality, divergence (>= 0). Clients are grouped by quality and, inside
    a group, ordered by their median. Colour is the divergence itself on a log scale: the score
    exp(-alpha div) underflows, and a rank would hide how far the groups lie apart. Grey: no value for this
    client and round.
    Raises DataError for missing columns, an empty frame or no divergence above zero.
    """
    data = _checked(scores, ("arm", "round", "client", "quality", "divergence"))
    values = data["divergence"].to_numpy(dtype=float)
    positive = values[np.isfinite(values) & (values > 0)]
    if not len(positive):
        raise DataError("Expected some divergence above 0 to draw, found none.")
    # The outermost percent would otherwise use up the colours.
    low, high = np.quantile(positive, [0.01, 0.99])
    norm = LogNorm(vmin=low, vmax=max(high, low * 1.01))
    arms, qualities = _arms(data), _qualities(data)
    figure = _figure(height=0.8 + 3.6 * len(arms))
    panels = figure.subplots(len(arms), 1, squeeze=False)[:, 0]
    meshes = []
    for axes, arm in zip(panels, arms, strict=True):
        meshes.append(_divergence_panel(axes, data[data["arm"] == arm], qualities, norm))
        axes.set_title(arm, fontsize=11, loc="left")
    panels[-1].set_xlabel("round")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    bar = figure.colorbar(meshes[0], ax=list(panels), extend="both", pad=0.02, aspect=25 * len(arms))
    bar.set_label("divergence from the baseline (log scale)")
    return figure


def _divergence_panel(axes: Axes, data: pd.DataFrame, qualities: Sequence[str], norm: LogNorm) -> QuadMesh:
    quality = data.groupby("client")["quality"].first()
    median = data.groupby("client")["divergence"].median()
    place = {name: i for i, name in enumerate(qualities)}
    order = sorted(quality.index, key=lambda client: (place[str(quality[client])], median[client]))
    table = data.pivot_table(index="client", columns="round", values="divergence").reindex(order)
    values = table.to_numpy(dtype=float)
    # A logarithm has no place for a perfect match; it takes the colour of the lowest.
    grid = np.ma.masked_invalid(np.where(values == 0, norm.vmin or 0.0, values))
    edges = np.arange(len(order) + 1) - 0.5
    axes.set_facecolor("#DDDDDD")
    mesh = axes.pcolormesh(
        _edges(table.columns.to_numpy(dtype=float)), edges, grid, norm=norm, cmap="viridis_r", rasterized=True
    )
    groups = [str(quality[client]) for client in order]
    centres, names, start = [], [], 0
    for name in qualities:
        count = groups.count(name)
        if count:
            centres.append(start + (count - 1) / 2)
            names.append(f"{name} ({count})")
            start += count
            axes.axhline(start - 0.5, color="white", linewidth=2.0)
    axes.set_yticks(centres, names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_ylabel("clients, by data quality")
    return mesh


def bytes_and_time(metrics: pd.DataFrame, *, colours: Mapping[str, str] | None = None) -> Figure:
    """Accuracy against what it cost so far: megabytes on the wire, and minutes of the cost model.

    metrics: columns arm, round, accuracy, megabytes (of this round, both directions, all clients), seconds
    (of this round, cost model) and, where there are several, seed, over which all is averaged per round. The
    costs are summed up here. Where the arms differ more than twentyfold in a cost, its axis is logarithmic.
    Raises DataError for missing columns or an empty frame.
    """
    data = _checked(metrics, ("arm", "round", "accuracy", "megabytes", "seconds"))
    arms = _arms(data)
    colours = colours or arm_colours(arms)
    figure = _figure(height=4.2)
    panels = figure.subplots(1, 2, sharey=True)
    for axes in panels:
        _light_frame(axes)
    totals: dict[str, list[float]] = {"megabytes": [], "minutes": []}
    for place, arm in enumerate(arms):
        curve = _by_round(data[data["arm"] == arm], ["accuracy", "megabytes", "seconds"])
        cost = {"megabytes": curve["megabytes"].cumsum(), "minutes": curve["seconds"].cumsum() / 60}
        seen = curve["accuracy"].notna()
        for axes, (name, total) in zip(panels, cost.items(), strict=True):
            label = arm if name == "megabytes" else "_nolegend_"
            axes.plot(
                total[seen],
                curve["accuracy"][seen],
                color=colours[arm],
                marker=_marker(total[seen]),
                linestyle=_dash(place),
                linewidth=1.8,
                label=label,
            )
            totals[name].append(float(total.iloc[-1]))
    for axes, ends in zip(panels, totals.values(), strict=True):
        if min(ends) > 0 and max(ends) / min(ends) > 20:
            axes.set_xscale("log")
    panels[0].set_xlabel("sent and received so far, all clients (MB)")
    panels[1].set_xlabel("time so far in the cost model (minutes)")
    panels[0].set_ylabel("accuracy (share, 0 to 1)")
    _legend(figure, arms)
    return figure


def _figure(*, height: float) -> Figure:
    return Figure(figsize=(_WIDTH, height), dpi=110, layout="constrained")


def _light_frame(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _legend(figure: Figure, labels: Sequence[str]) -> None:
    # About 120 characters of this size fit the width; handle and gap take 8 of each column.
    columns = max(1, min(4, 120 // (8 + max(map(len, labels)))))
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=10)


def _dash(place: int) -> str:
    return _DASHES[place // len(ARM_COLOURS) % len(_DASHES)]


def _checked(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise DataError(f"Expected the columns {', '.join(columns)} to draw this figure; missing: {missing}.")
    if frame.empty:
        raise DataError("Expected at least one row to draw this figure, found none.")
    return frame


def _arms(data: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(data["arm"].astype(str)))


def _qualities(data: pd.DataFrame) -> list[str]:
    found = set(data["quality"].astype(str))
    known = [name for name in QUALITY_COLOURS if name in found]
    return known + sorted(found - set(known))


def _quality_colours(qualities: Iterable[str]) -> dict[str, str]:
    return {name: QUALITY_COLOURS.get(name, _OTHER_QUALITY) for name in qualities}


def _seeds(data: pd.DataFrame) -> int:
    return int(data["seed"].nunique()) if "seed" in data.columns else 1


def _by_round(data: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    return data.groupby("round")[columns].mean().sort_index()


def _deviation(data: pd.DataFrame) -> NDArray[np.float64]:
    spread = data.groupby("round")["accuracy"].std(ddof=0).sort_index()
    return np.asarray(spread, dtype=np.float64)


def _first_reach(
    rounds: NDArray[np.float64], mean: NDArray[np.float64], target: float | None
) -> float | None:
    if target is None or not (hits := np.flatnonzero(mean >= target)).size:
        return None
    return float(rounds[hits[0]])


def _reach_words(reached: float | None) -> str:
    return "target not reached" if reached is None else f"target at round {reached:g}"


def _edges(centres: NDArray[np.float64]) -> NDArray[Any]:
    if len(centres) == 1:
        return np.array([centres[0] - 0.5, centres[0] + 0.5])
    middle = (centres[1:] + centres[:-1]) / 2
    return np.concatenate([[2 * centres[0] - middle[0]], middle, [2 * centres[-1] - middle[-1]]])
