"""A sweep's answer: a sentence on the best arm, and the means of all arms at each epsilon over all seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, isnan
from typing import Final

import pandas as pd

from securefl.accounting.figures import SIGN, short
from securefl.core.release import PARTIES
from securefl.report.run_page import ArmSummary
from securefl.report.significance import listed, with_interval
from securefl.study.accounted import sentence as accounted
from securefl.sweep.cells import Sweep
from securefl.sweep.tradeoff import Point, Series, holds

CHOICE: Final = (
    "The best cell's epsilon does not cover its choice: publishing the best cell reveals something about all "
    "cells. Account for the choice with the key choice under [sweep], or count the epsilon of all cells "
    "together."
)


def headline(series: Sequence[Series]) -> str:
    """The arm of the highest accuracy at the middle one of the finite epsilons, in a sentence.

    If one constant answer is as accurate, the sentence says so first, and where an arm is better. Empty if no
    accuracy is known. Personal models do not compare with global ones, so they come second.
    """
    known = [
        (float(f"{point.at:.3g}"), point.mean, own)
        for own in [one for one in series if not one.personal] or series
        for point in own.points()
        if not isnan(point.mean)
    ]
    if not known:
        return ""
    finite = sorted({at for at, _, _ in known if isfinite(at)}) or [inf]
    middle = finite[(len(finite) - 1) // 2]
    there = [(mean, own) for at, mean, own in known if at == middle]
    mean, lead = max(there, key=lambda pair: pair[0])
    leads = [*dict.fromkeys(own.line for value, own in there if value == mean)]
    best = f"{listed(leads)} {'are level at' if len(leads) > 1 else 'has'} the highest accuracy"
    where = f"At a true epsilon of {middle:g}{holds([lead])}" if middle < inf else "Without a finite epsilon"
    floor = lead.rows["floor"].mean()
    if not mean <= floor:
        alone = len({own.label for _, _, own in known}) == 1
        return f"{where}, {f'{lead.line} has an accuracy of' if alone else f'{best}:'} {mean:.3f}."
    better = sorted({at for at, best, own in known if best > own.rows["floor"].mean()})
    learnt = ", ".join(SIGN if at == inf else f"{at:g}" for at in better)
    elsewhere = f"An arm is better at epsilon {learnt}." if learnt else "It is so at each epsilon."
    return (
        f"{where}, nothing was learnt: {best}, {mean:.3f}, and one constant answer reaches {floor:.3f}. "
        f"{elsewhere}"
    )


def arms_of(sweep: Sweep, summary: pd.DataFrame) -> list[ArmSummary]:
    """Each arm of each finished cell, for `sentences.rows`, which makes the table of a run too."""
    names = {cell.folder: cell.name for cell in sweep.cells}
    several = any(len(cell.study.arms) > 1 for cell in sweep.cells)
    made = []
    for (cell, arm), own in summary.groupby(["cell", "arm"], sort=False):
        made.append(
            ArmSummary(
                name=f"{names[str(cell)]}: {arm}" if several else names[str(cell)],
                protocol=own["protocol"].iloc[0],
                aggregation="",
                final_accuracy=own["final_accuracy"].mean(skipna=False),
                by_seed=own["final_accuracy"].tolist(),
                megabytes_up=own["bytes_up"].mean() / 1e6,
                megabytes_down=own["bytes_down"].mean() / 1e6,
                epsilon={party: own[f"epsilon_{party}"].max() for party in PARTIES},
            )
        )
    return made


def caveats(sweep: Sweep) -> list[str]:
    """Sentences on what the epsilons of a sweep cover and do not cover."""
    found = list(dict.fromkeys(accounted(cell.study) for cell in sweep.cells))
    return [*found, CHOICE] if len(sweep.cells) > 1 and sweep.choice is None else found


def table(series: Sequence[Series]) -> list[list[str]]:
    """Final accuracies with their intervals: a head, then a row for each series, by the epsilon asked for.

    If the true epsilon is larger, it stands beside the accuracy.
    """
    points = {own.label: {point.asked: point for point in own.points()} for own in series}
    asked = sorted({epsilon for own in points.values() for epsilon in own})
    rows = [
        [
            ": ".join([*own.panel, own.line]),
            *(_cell(points[own.label].get(at)) for at in asked),
        ]
        for own in series
    ]
    return [["Final accuracy at epsilon", *(SIGN if at == inf else f"{at:g}" for at in asked)], *rows]


def _cell(point: Point | None) -> str:
    if point is None or isnan(point.mean):
        return "–"
    beyond = point.at > point.asked * (1 + 1e-9)
    return with_interval(point.values) + (f" (ε = {short(point.at)})" if beyond else "")
