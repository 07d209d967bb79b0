"""The curves of a study, from tidy data frames: one row per observation, one function per figure.

All figures are built on matplotlib's object interface and touch no global state (see `style`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from securefl.report.style import arm_colours, arms_of, blank, checked, dash, legend, light_frame, marker

_SMALL = 9.0


def accuracy(
    metrics: pd.DataFrame, *, target: float | None = None, colours: Mapping[str, str] | None = None
) -> Figure:
    """Accuracy over rounds, one line per arm; with several seeds the mean and a band of one deviation.

    metrics: columns arm, round, accuracy and, where there are several, seed. A round of an arm is left out
    unless every seed that played it has an accuracy. target: drawn as a line; the round at which each arm's
    (mean) curve first reaches it is marked, and named in the legend.
    Raises DataError for missing columns or an empty frame.
    """
    # Dropped before arms are listed: a line through nan would have gaps, and an arm without values no line.
    data = evaluated(checked(metrics, ("arm", "round", "accuracy")))
    arms = arms_of(data)
    colours = colours or arm_colours(arms)
    figure = blank(height=4.2)
    axes = figure.subplots()
    light_frame(axes)
    labels = [
        _curve(axes, data[data["arm"] == arm], arm, dash(place), colours[arm], target)
        for place, arm in enumerate(arms)
    ]
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
    legend(figure, labels)
    return figure


def _curve(axes: Axes, own: pd.DataFrame, arm: str, line: str, colour: str, target: float | None) -> str:
    """Draw an arm's curve, its band over the seeds and where it reaches the target. Returns its label."""
    curve = _by_round(own, ["accuracy"])
    rounds, mean = curve.index.to_numpy(dtype=float), curve["accuracy"].to_numpy()
    reached = _first_reach(rounds, mean, target)
    label = arm if target is None else f"{arm} ({_reach_words(reached)})"
    axes.plot(rounds, mean, color=colour, linestyle=line, linewidth=1.8, marker=marker(mean), label=label)
    if "seed" in own.columns:
        spread = _deviation(own)
        # A band over one round has no width, and would not be seen.
        if len(rounds) == 1:
            axes.errorbar(rounds, mean, yerr=spread, color=colour, capsize=4)
        axes.fill_between(rounds, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)
    if target is not None and reached is not None:
        height = mean[rounds == reached]
        axes.plot([reached], height, "o", color=colour, markeredgecolor="white", markersize=8, zorder=5)
    return label


def bytes_and_time(metrics: pd.DataFrame, *, colours: Mapping[str, str] | None = None) -> Figure:
    """Accuracy against what it cost so far: megabytes on the wire, and minutes of the cost model.

    metrics: columns arm, round, accuracy, megabytes (of this round, both directions, all clients), seconds
    (of this round, cost model) and, where there are several, seed, over which all is averaged per round. The
    costs are summed up here. Where the arms differ more than twentyfold in a cost, its axis is logarithmic.
    Raises DataError for missing columns or an empty frame.
    """
    data = checked(metrics, ("arm", "round", "accuracy", "megabytes", "seconds"))
    arms = arms_of(data)
    colours = colours or arm_colours(arms)
    figure = blank(height=4.2)
    panels = figure.subplots(1, 2, sharey=True)
    for axes in panels:
        light_frame(axes)
    totals: dict[str, list[float]] = {"megabytes": [], "minutes": []}
    for place, arm in enumerate(arms):
        curve = _by_round(data[data["arm"] == arm], ["accuracy", "megabytes", "seconds"])
        cost = {"megabytes": curve["megabytes"].cumsum(), "minutes": curve["seconds"].cumsum() / 60}
        # Costs add up over all rounds, also over those in which nobody measured accuracy.
        seen = curve.index.isin(evaluated(data[data["arm"] == arm])["round"])
        for axes, (name, total) in zip(panels, cost.items(), strict=True):
            # One legend serves both panels: a label in each would list every arm twice.
            label = arm if name == "megabytes" else "_nolegend_"
            axes.plot(
                total[seen],
                curve["accuracy"][seen],
                color=colours[arm],
                marker=marker(total[seen]),
                linestyle=dash(place),
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
    legend(figure, arms)
    return figure


def evaluated(metrics: pd.DataFrame) -> pd.DataFrame:
    """The rows of the rounds in which every seed that played them was evaluated, arm by arm."""
    # A seed that ended early was tested in a round that the others were not: it would stand for all of them.
    keys = [name for name in ("arm", "round") if name in metrics.columns]
    return metrics[metrics["accuracy"].notna().groupby([metrics[name] for name in keys]).transform("all")]


def _seeds(data: pd.DataFrame) -> int:
    return int(data["seed"].nunique()) if "seed" in data.columns else 1


def _by_round(data: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    return data.groupby("round")[columns].mean().sort_index()


def _deviation(data: pd.DataFrame) -> NDArray[np.float64]:
    # ddof=0: one seed has a deviation of 0, where ddof=1 would give nan and break the band.
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
