"""A sweep's result: a sentence on the best arm, and the means of all arms at each epsilon over all seeds.

An arm is compared only if its true epsilon is at most the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan
from typing import Final

import pandas as pd

from securefl.study.accounted import sentence as accounted
from securefl.sweep.cells import Sweep
from securefl.sweep.tradeoff import Series

CHOICE: Final = (
    "The best cell's epsilon does not cover its choice: publishing the best cell reveals something about all "
    "cells. Account for the choice with the key choice under [sweep], or count the epsilon of all cells "
    "together."
)


def headline(series: Sequence[Series]) -> str:
    """What accuracy an epsilon costs, in plain words, of the arm that is best in the middle of the epsilons.

    Empty if no accuracy is known. Personal models do not compare with global ones, so they come second.
    """
    shown = [own for own in series if not own.personal] or list(series)
    known = {
        own.number: [point for point in own.points("final_accuracy") if not isnan(point.mean)]
        for own in shown
    }
    finite = sorted({float(f"{p.at:.3g}") for points in known.values() for p in points if isfinite(p.at)})
    if not finite:
        best = max(((p.mean, own.line) for own in shown for p in known[own.number]), default=None)
        return (
            ""
            if best is None
            else f"No cell has a finite epsilon. The best accuracy is {best[0]:.3f}, of {best[1]}."
        )
    middle = finite[(len(finite) - 1) // 2]
    there = [
        (point.mean, own)
        for own in shown
        for point in known[own.number]
        if float(f"{point.at:.3g}") == middle
    ]
    mean, lead = max(there, key=lambda pair: pair[0])
    first = lead.rows.iloc[0]
    holds = (
        f" per {first['unit']} at delta {first['delta']:g}"
        if {"unit", "delta"} <= {*lead.rows.columns}
        else ""
    )
    whose = (
        f"the best arm is {lead.line}, with an accuracy of"
        if len(shown) > 1
        else f"{lead.line} has an accuracy of"
    )
    told = f"At a true epsilon of {middle:g}{holds}, {whose} {mean:.3f}"
    own = [point for point in known[lead.number] if isfinite(point.at)]
    ends = [point for point in (own[0], own[-1]) if float(f"{point.at:.3g}") != middle]
    rest = [f"{point.mean:.3f} at {float(f'{point.at:.3g}'):g}" for point in dict.fromkeys(ends)]
    endless = [point.mean for point in known[lead.number] if not isfinite(point.at)]
    if endless:
        rest.append(f"{max(endless):.3f} where epsilon is infinite")
    return f"{told}{'; it is ' if rest else ''}{_and(rest)}."


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def caveats(sweep: Sweep) -> list[str]:
    """Sentences on what the epsilons of a sweep cover and do not cover."""
    found = list(dict.fromkeys(accounted(cell.study) for cell in sweep.cells))
    return [*found, CHOICE] if len(sweep.cells) > 1 and sweep.choice is None else found


def means(series: Sequence[Series]) -> pd.DataFrame:
    """Mean final accuracies: a row for each panel and line, a column for each epsilon.

    nan where a line has no value. Empty if no two lines compare at any epsilon.
    """
    rows = [
        {
            "panel": ", ".join(own.panel),
            "line": own.line,
            "epsilon": point.asked,
            "mean": point.mean,
        }
        for own in series
        if _honest(own)
        for point in own.points("final_accuracy")
    ]
    if not rows:
        return pd.DataFrame()
    found = pd.DataFrame(rows).pivot_table(
        index=["panel", "line"], columns="epsilon", values="mean", sort=False
    )
    return found if (found.groupby("panel").count() > 1).to_numpy().any() else pd.DataFrame()


def _honest(own: Series) -> bool:
    """Whether every true epsilon is at most the one asked for, and one global model is tested."""
    kept = own.rows["epsilon_true"] <= own.rows["asked"] * (1 + 1e-9)
    return bool(kept.all()) and not own.personal
