"""The figures of what data holders have spent: epsilon over the rounds, and the whole privacy curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

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
COLUMNS: Final = ("arm", "seed", "round", "party", "least", "most")


def finite_parties(spent: pd.DataFrame) -> list[str]:
    """The parties against which an arm has a finite epsilon above 0, in the order of the table."""
    largest = spent.groupby(["party", "arm"], sort=False)["most"].max()
    finite = largest[np.isfinite(largest) & (largest > 0)]
    return [party for party in dict.fromkeys(spent["party"]) if party in finite.index.get_level_values(0)]


def epsilon(
    spent: pd.DataFrame,
    *,
    budget: float | None = None,
    looks: Mapping[str, Look] | None = None,
) -> Figure:
    """Epsilon over rounds, one panel for each party of `finite_parties`, one line per arm.

    spent: columns arm, seed, round, party, least and most, the epsilons of the holders who spent least and
    most, all >= 0 and possibly infinite. The line is the largest, over the seeds too. Where it is finite, the
    area below it reaches down to the least. An infinite epsilon lies above the axis, on a line that is marked
    so. budget: drawn as a dashed line; None for none. Raises DataError for missing columns or an empty frame.
    """
    data = checked(spent, COLUMNS)
    arms, parties = arms_of(data), finite_parties(data)
    looks = looks or style.looks(arms)
    figure, panels = panels_of(max(1, len(parties)), height=2.7)
    known = data["most"][np.isfinite(data["most"])]
    top = max(float(known.max()) if len(known) else 0.0, budget or 0.0) or 1.0
    for axes, party in zip(panels, parties, strict=False):
        own = data[data["party"] == party]
        for place, arm in enumerate(arms):
            # Lines of several arms with an infinite epsilon lie side by side, not on each other.
            endless = top * (1.2 + min(0.03, 0.14 / len(arms)) * (place - (len(arms) - 1) / 2))
            rounds = own[own["arm"] == arm].groupby("round").agg({"least": "min", "most": "max"})
            finite = np.isfinite(rounds["most"])
            curve(
                axes,
                rounds.index,
                rounds["most"].where(finite, endless),
                looks[arm],
                label=arm,
                low=rounds["least"].where(finite),
                high=rounds["most"],
                place=place,
            )
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
