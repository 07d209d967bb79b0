"""A sweep that was checked, as lines of text and for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from securefl.accounting.figures import brief, plain
from securefl.accounting.shared import Account
from securefl.study.forecast import Forecast, duration
from securefl.sweep.best import caveats
from securefl.sweep.cells import Sweep
from securefl.sweep.check import ArmCost, Checked


def lines(sweep: Sweep, checked: Sequence[Checked]) -> Iterator[str]:
    """A line for each cell and arm: epsilon by party, or why the cell cannot run."""
    yield f"{sweep.name}: a sweep of {len(checked)} cells over {', '.join(sweep.keys)}"
    yield "Epsilon is that of a client that takes part in every round, after the whole schedule."
    yield from caveats(sweep)
    yield from _shared(checked)
    for own in checked:
        yield ""
        yield own.cell.name
        if own.refused:
            yield f"  cannot run: {own.refused}"
        for cost in own.arms:
            yield f"  {cost.arm}: {_epsilon(cost)}{_rounds(own, cost)}"


def _shared(checked: Sequence[Checked]) -> Iterator[str]:
    """What shared ledgers hold, and what these cells would add."""
    ledgers: dict[str, tuple[Account, int]] = {}
    for own in checked:
        if own.held is not None:
            path = str(own.cell.study.privacy.ledger)
            held, count = ledgers.get(path, (own.held, 0))
            ledgers[path] = held, count + len(own.allotted)
    for path, (held, count) in ledgers.items():
        spent = ", ".join(f"{brief(held.epsilon(party))} against the {party}" for party in held.terms.against)
        yield (
            f"The ledger {path} holds {len(held.entries)} runs over these records: ε {spent}, of a budget of "
            f"{held.budget:g}. These cells are {count} runs, of which those on file are free."
        )


def _epsilon(cost: ArmCost) -> str:
    return "ε " + ", ".join(f"{brief(value)} against the {party}" for party, value in cost.epsilon.items())


def _rounds(own: Checked, cost: ArmCost) -> str:
    if cost.affordable is None:
        return ""
    of = own.cell.study
    return f"; a budget of {of.privacy.budget:g} buys {cost.affordable} of {of.study.rounds} rounds"


def seconds(checked: Sequence[Checked], forecasts: Sequence[Forecast], workers: int) -> float:
    """The wall time of all cells that can run, if their arms are as fast as those that were rehearsed.

    forecasts: of the arms of one cell. Cells have the same arms, and may differ in rounds and seeds.
    """
    able = [own.cell.study.study for own in checked if not own.refused]
    whole = [
        sum(own.total_seconds(section.rounds, len(section.seeds)) for own in forecasts) for section in able
    ]
    return max(sum(whole) / min(workers, max(1, len(whole))), max(whole, default=0.0))


def last_line(checked: Sequence[Checked], forecasts: Sequence[Forecast], workers: int) -> str:
    """How long it takes."""
    taken, count = seconds(checked, forecasts, workers), min(workers, len(checked))
    processes = f"{count} worker{'' if count == 1 else 's'}"
    return f"About {duration(taken)} on this machine with {processes}, if all cells are as fast as that one."


def as_json(sweep: Sweep, checked: Sequence[Checked], taken: float | None) -> dict[str, Any]:
    """For scripts. An infinite epsilon is the text "inf"; `seconds` is null where no cell can run."""
    return {
        "sweep": sweep.name,
        "keys": list(sweep.keys),
        "accounting": [*caveats(sweep), *_shared(checked)],
        "seconds": taken,
        "cells": [
            {
                "cell": own.cell.name,
                "folder": own.cell.folder,
                "refused": own.refused or None,
                "arms": [
                    {**vars(cost), "epsilon": {p: plain(e) for p, e in cost.epsilon.items()}}
                    for cost in own.arms
                ],
            }
            for own in checked
        ],
    }
