"""A sweep's answer: a sentence on the best arm, and the means of all arms at each epsilon over all seeds.

An arm is compared only if its true epsilon is at most the one that was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, isnan
from typing import Final

import pandas as pd

from securefl.study.accounted import sentence as accounted
from securefl.sweep.cells import Sweep
from securefl.sweep.tradeoff import Series, holds

CHOICE: Final = (
    "The best cell's epsilon does not cover its choice: publishing the best cell reveals something about all "
    "cells. Account for the choice with the key choice under [sweep], or count the epsilon of all cells "
    "together."
)


def headline(series: Sequence[Series]) -> str:
    """The arm of the highest accuracy at the middle one of the finite epsilons, in a sentence.

    Empty if no accuracy is known. Personal models do not compare with global ones, so they come second.
    """
    known = [
        (float(f"{point.at:.3g}"), point.mean, own)
        for own in [one for one in series if not one.personal] or series
        for point in own.points("final_accuracy")
        if not isnan(point.mean)
    ]
    if not known:
        return ""
    finite = sorted({at for at, _, _ in known if isfinite(at)}) or [inf]
    middle = finite[(len(finite) - 1) // 2]
    mean, lead = max(((mean, own) for at, mean, own in known if at == middle), key=lambda pair: pair[0])
    where = f"At a true epsilon of {middle:g}{holds([lead])}" if middle < inf else "Without a finite epsilon"
    return f"{where}, {lead.line} has the highest accuracy: {mean:.3f}."


def caveats(sweep: Sweep) -> list[str]:
    """Sentences on what the epsilons of a sweep cover and do not cover."""
    found = list(dict.fromkeys(accounted(cell.study) for cell in sweep.cells))
    return [*found, CHOICE] if len(sweep.cells) > 1 and sweep.choice is None else found


def means(series: Sequence[Series]) -> pd.DataFrame:
    """Mean final accuracies: a row for each panel and line, a column for each epsilon.

    nan where a line has no value. Empty if no two lines compare at any epsilon.
    """
    rows = [
        {"panel": ", ".join(own.panel), "line": own.line, "epsilon": point.asked, "mean": point.mean}
        for own in series
        # Honest: every true epsilon is at most the one asked for, and one global model is tested.
        if not own.personal and (own.rows["epsilon_true"] <= own.rows["asked"] * (1 + 1e-9)).all()
        for point in own.points("final_accuracy")
    ]
    if not rows:
        return pd.DataFrame()
    found = pd.DataFrame(rows).pivot_table(
        index=["panel", "line"], columns="epsilon", values="mean", sort=False
    )
    return found if (found.groupby("panel").count() > 1).to_numpy().any() else pd.DataFrame()


def answer(series: Sequence[Series]) -> list[list[str]]:
    """The same as texts, with a head, for a terminal and for the page. Empty if nothing compares."""
    found = means(series)
    head = ["Final accuracy at epsilon", *(f"{epsilon:g}" for epsilon in found.columns)]
    rows = [
        [": ".join(filter(None, name)), *("–" if isnan(mean) else f"{mean:.3f}" for mean in row)]
        for name, row in zip(found.index, found.to_numpy().tolist(), strict=True)
    ]
    return [head, *rows] if rows else []
