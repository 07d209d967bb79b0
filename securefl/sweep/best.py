"""Sentences on a sweep's result: the best arms at each epsilon, by their means over all seeds.

An arm is compared only if its true epsilon is at most the one that was asked for, and an epsilon only if all
arms ran there.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isinf, isnan
from typing import Final

import pandas as pd

from securefl.study.accounted import sentence as accounted
from securefl.sweep.cells import Sweep
from securefl.sweep.tradeoff import Series

NEAR: Final = 0.01
"""An arm counts as level with the best if its accuracy is at most this much lower."""


CHOICE: Final = (
    "The best cell's epsilon does not cover its choice: publishing the best cell reveals something about all "
    "cells. Account for the choice with `choice` under [sweep], or count the epsilon of all cells together."
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


def sentences(series: Sequence[Series]) -> list[str]:
    """Sentences on the arms that are level with the best, and the number of settings in which each one is.

    Empty for one arm. A setting is an epsilon in one panel. Before the best arms of an epsilon are named,
    settings of panels with the same first words are averaged.
    """
    table = means(series)
    if table.shape[1] < 2 or table.empty:
        return []
    return [*_by_epsilon(table), _counted(table)]


def caveats(sweep: Sweep) -> list[str]:
    """Sentences on what the epsilons of a sweep cover and do not cover."""
    found = list(dict.fromkeys(accounted(cell.study) for cell in sweep.cells))
    return [*found, CHOICE] if len(sweep.cells) > 1 and sweep.choice is None else found


def means(series: Sequence[Series]) -> pd.DataFrame:
    """Mean final accuracies: a row for each panel and epsilon, a column for each line.

    A row is left out if a line has no value in it.
    """
    rows = [
        {
            "first": ", ".join(own.panel[:1]),
            "others": ", ".join(own.panel[1:]),
            "asked": point.asked,
            "line": own.line,
            "mean": point.mean,
        }
        for own in series
        if _honest(own)
        for point in own.points("final_accuracy")
    ]
    if not rows:
        return pd.DataFrame()
    found = pd.DataFrame(rows).pivot_table(
        index=["first", "others", "asked"], columns="line", values="mean", sort=False
    )
    return found.dropna()


def _honest(own: Series) -> bool:
    """Whether every true epsilon is at most the one asked for, and one global model is tested."""
    kept = own.rows["epsilon_true"] <= own.rows["asked"] * (1 + 1e-9)
    return bool(kept.all()) and not own.personal


def level(table: pd.DataFrame) -> pd.DataFrame:
    """Whether each line is within `NEAR` of the best one: a row for each setting, a column for each line."""
    return table.ge(table.max(axis=1) - NEAR, axis=0)


def _by_epsilon(table: pd.DataFrame) -> list[str]:
    found = level(table.groupby(level=["first", "asked"], sort=False).mean())
    told = []
    for first, own in found.groupby(level="first", sort=False):
        runs: list[tuple[str, list[float]]] = []
        for asked, row in own.droplevel("first").sort_index().iterrows():
            names = _either([str(name) for name in row.index[row]])
            if runs and runs[-1][0] == names:
                runs[-1][1].append(float(str(asked)))
            else:
                runs.append((names, [float(str(asked))]))
        words = "; ".join(f"{names} {_range(asked)}" for names, asked in runs)
        told.append(f"Best{f' at {first}' if first else ''}, or within {NEAR:g} of it: {words}.")
    return told


def _either(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _range(asked: Sequence[float]) -> str:
    if isinf(asked[0]):
        return "where epsilon is infinite"
    if len(asked) == 1:
        return f"at ε {asked[0]:.3g}"
    last = "on, and where epsilon is infinite" if isinf(asked[-1]) else f"to {asked[-1]:.3g}"
    return f"from ε {asked[0]:.3g} {last}"


def _counted(table: pd.DataFrame) -> str:
    counts = level(table).sum().sort_values(ascending=False, kind="stable")
    words = ", ".join(f"{name} in {count}" for name, count in counts.items())
    return f"Within {NEAR:g} of the best of its setting, of {len(table)} settings: {words}."
