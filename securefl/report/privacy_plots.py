"""The figures of what data holders have spent: epsilon over the rounds, and the whole privacy curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from securefl.core.release import PARTIES
from securefl.report import style
from securefl.report.style import (
    Look,
    arms_of,
    beyond,
    blank,
    checked,
    curve,
    legend,
    light_frame,
    limit,
    panels_of,
    whole_numbers,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from securefl.accounting.curve import Curve

_LEAST_DELTA: Final = 1e-10


def finite_parties(metrics: pd.DataFrame) -> list[str]:
    """The parties against which an arm has a finite epsilon above 0."""
    largest = metrics.groupby("arm")[[f"epsilon_{party}" for party in PARTIES]].max().to_numpy()
    some = (np.isfinite(largest) & (largest > 0)).any(axis=0)
    return [party for party, one in zip(PARTIES, some, strict=True) if one]


def epsilon(
    metrics: pd.DataFrame,
    *,
    budget: float | None = None,
    looks: Mapping[str, Look] | None = None,
) -> Figure:
    """Epsilon over rounds, one panel for each party of `finite_parties`, one line per arm.

    metrics: columns arm, round, and epsilon of the holder who spent most against each party, >= 0 and
    possibly infinite. The line is the largest over the seeds. An infinite epsilon lies above the axis, on a
    line that is marked so. budget: drawn as a dashed line; None for none.
    Raises DataError for missing columns or an empty frame.
    """
    data = checked(metrics, ("arm", "round", *(f"epsilon_{party}" for party in PARTIES)))
    arms, parties = arms_of(data), finite_parties(data)
    looks = looks or style.looks(arms)
    figure, panels = panels_of(max(1, len(parties)), height=2.7)
    every = data[[f"epsilon_{party}" for party in parties]].to_numpy()
    top = max(every[np.isfinite(every)].max(initial=0.0), budget or 0.0) or 1.0
    for axes, party in zip(panels, parties, strict=False):
        for place, arm in enumerate(arms):
            # Lines of several arms with an infinite epsilon lie side by side, not on each other.
            endless = top * (1.2 + min(0.03, 0.14 / len(arms)) * (place - (len(arms) - 1) / 2))
            most = data[data["arm"] == arm].groupby("round")[f"epsilon_{party}"].max()
            curve(axes, most.index, most.clip(upper=endless), looks[arm], label=arm, place=place)
        limit(axes, budget, "budget")
        axes.set_title(f"against the {party}", fontsize=10, loc="left")
        axes.set_xlabel("round")
        whole_numbers(axes.xaxis)
        beyond(axes, top, "infinite")
        axes.set_ylabel("epsilon of a data holder")
    legend(figure)
    return figure


def curves(of: Mapping[str, Curve], proved: Mapping[str, Sequence[tuple[float, float]]] = {}) -> Figure:
    """Privacy curves: delta at each epsilon, and below it the least misses at each rate of false alarms.

    Args:
        of: the curves by their name in the legend.
        proved: for some of them, what an audit proved: an epsilon, and the delta at which it is one.

    Raises nothing.
    """
    looks, figure = style.looks(of), blank(height=6.4)
    left, right = figure.subplots(2, 1)
    tops = (own.epsilon(_LEAST_DELTA) for own in of.values())
    epsilons = np.linspace(0, max((top for top in tops if np.isfinite(top)), default=0.0) or 1.0, 200)
    alarms = np.linspace(0, 1, 201)
    for place, (name, own) in enumerate(of.items()):
        deltas = own.delta(epsilons)
        # A logarithmic axis has no 0.
        curve(left, epsilons, np.where(deltas > 0, deltas, np.nan), looks[name], label=name, place=place)
        curve(right, alarms, own.miss(alarms), looks[name], label=name, place=place)
        for at, delta in proved.get(name, ()):
            left.plot(at, delta, "<", color=looks[name].colour, markeredgecolor="black", zorder=3)
    if proved:
        left.plot([], [], "<", color="none", markeredgecolor="#8a8a8a", label="proved by an audit")
    right.plot([0, 1], [1, 0], color="#8a8a8a", linestyle=":", label="a guess without the release")
    for axes in (left, right):
        light_frame(axes)
    left.set_yscale("log")
    left.set_ylim(_LEAST_DELTA, 1.5)
    left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # exponents are small on a phone
    left.set_xlabel("epsilon")
    left.set_ylabel("delta")
    right.set_xlabel("false alarms (share, 0 to 1)")
    right.set_ylabel("misses of the best test")
    legend(figure)
    return figure
