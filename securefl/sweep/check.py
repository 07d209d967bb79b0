"""Checks every cell of a sweep before the first one runs: errors, epsilon, and affordable rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from securefl.accounting.figures import brief, counted, plain
from securefl.accounting.shared import Allotment, SharedRuns
from securefl.algorithm.clients import Algorithm, specs_of
from securefl.algorithm.plan import Plan
from securefl.core.errors import BudgetExceeded, ConfigError, SecureFLError
from securefl.core.reading import beneath
from securefl.study import world
from securefl.study.accounted import foreseen, ledger_of, stored_runs
from securefl.study.composition import compositions
from securefl.study.config import Study
from securefl.study.forecast import Forecast, affordable_rounds, duration, final_epsilon, noise_of
from securefl.sweep.best import caveats
from securefl.sweep.cells import Cell, Sweep, require_none
from securefl.training import single_thread


@dataclass(frozen=True, kw_only=True)
class ArmCost:
    """The cost of one arm.

    epsilon: by party, after the last round of the schedule. affordable: the number of rounds that the budget
    buys; None without a budget. training_noise: the noise multiplier of private training; None without it.
    """

    arm: str
    epsilon: Mapping[str, float]
    affordable: int | None
    training_noise: float | None


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A cell that was built and not run. refused: the reason why it cannot run, or an empty text.

    arms: their costs. Empty if the cell is refused, or no costs were wanted.
    allotted: the charges of its runs in the shared ledger, for each arm and seed. held: the contents of that
    ledger; None if the study names none. records: the digest of the records or clients that it is for.
    """

    cell: Cell
    refused: str
    arms: tuple[ArmCost, ...]
    allotted: tuple[Allotment, ...] = ()
    held: SharedRuns | None = None
    records: str = ""


def check(
    cells: Iterable[Cell], *, costs: bool, tell: Callable[[str], None] = lambda name: None
) -> list[Checked]:
    """Build the first seed's world and every arm of these cells.

    costs: whether to compute each arm's cost. tell: called with the name of each cell, before it is built.
    Cells with the same data share a world. An error that would stop a cell at its start becomes its
    `refused`.
    """
    single_thread()
    ordered = list(cells)
    alike: dict[str, list[Cell]] = {}
    for cell in ordered:
        alike.setdefault(data_of(cell.study, cell.study.study.seeds[0]), []).append(cell)
    # One world at a time: those of a whole sweep may not fit into memory together.
    found = {own.cell.folder: own for group in alike.values() for own in _checked(group, costs, tell)}
    return [found[cell.folder] for cell in ordered]


def data_of(study: Study, seed: int) -> str:
    """The options that a world depends on, as text. Studies with equal texts can share a world."""
    privacy = (study.noised, study.claims, study.privacy.unit, study.privacy.adjacency)
    shared = study.privacy.ledger is not None
    parts = (study.data, study.corruption, study.model, study.loss, study.cost, study.runtime.device)
    return repr((seed, *privacy, shared, *parts, study.home))


def _checked(cells: Sequence[Cell], costs: bool, tell: Callable[[str], None]) -> Iterator[Checked]:
    """Check cells with the same data, in one world."""
    first = cells[0].study
    tell(cells[0].name)
    try:
        here = world.build(first, first.study.seeds[0])
    except SecureFLError as error:
        yield from (Checked(cell=cell, refused=str(error), arms=()) for cell in cells)
        return
    for cell in cells:
        study = cell.study
        tell(cell.name)
        own = world.of_study(here, study)
        try:
            made = compositions(study, own)
            wants = tuple(foreseen(study, made))
            held = stored_runs(study, here.marks, made[study.arms[0].name][1])
            arms = tuple(_cost(name, *made[name]) for name in made if costs)
            yield Checked(
                cell=cell, refused="", arms=arms, allotted=wants, held=held, records=here.marks.records
            )
        except SecureFLError as error:
            yield Checked(cell=cell, refused=str(error), arms=())


def _cost(name: str, algorithm: Algorithm, plan: Plan) -> ArmCost:
    sent = specs_of(algorithm)
    return ArmCost(
        arm=name,
        epsilon=final_epsilon(plan, sent),
        affordable=affordable_rounds(plan, sent),
        training_noise=next((noise_of(s.training) for s in sent if s.training is not None), None),
    )


def require_all(sweep: Sweep, checked: Sequence[Checked]) -> None:
    """Raises ConfigError if any checked cell cannot run: each reason once, with the cells that it stops."""
    try:
        require_none(
            [(own.cell.name, own.cell.overrides) for own in checked], [own.refused for own in checked]
        )
    except ConfigError as error:
        raise beneath(f"{sweep.file}: " if sweep.file else "", error) from None


def require_room(checked: Sequence[Checked], begun: Callable[[Cell], Mapping[str, str]]) -> None:
    """Raises BudgetExceeded if the remaining runs of all cells together exceed a shared ledger's budget.

    Raises ConfigError if two cells would charge one ledger for different records or clients.
    begun: gives the identity of the ledger of each run of a cell that has begun, by the names of `foreseen`.
    """
    for path, (held, cells) in _by_ledger(checked).items():
        wants: list[Allotment] = []
        for own in cells:
            if own.records != cells[0].records:
                unit = own.cell.study.privacy.unit
                raise ConfigError(
                    f"Expected the same {unit}s in all cells with one `ledger`, got others in "
                    f"{cells[0].cell.name} and {own.cell.name}. Leave what changes them out of the grid."
                )
            known = begun(own.cell)
            wants += [
                replace(want, run=known.get(want.run, f"{own.cell.folder} {want.run}"))
                for want in own.allotted
            ]
        if (refused := held.refusal(wants)) is not None:
            raise BudgetExceeded(f"{path}: {refused}")


def _by_ledger(checked: Sequence[Checked]) -> dict[Path | None, tuple[SharedRuns, list[Checked]]]:
    """The present contents of each shared ledger, and the cells that name it."""
    found: dict[Path | None, tuple[SharedRuns, list[Checked]]] = {}
    for own in checked:
        if own.held is not None:
            found.setdefault(ledger_of(own.cell.study), (own.held, []))[1].append(own)
    return found


def lines(sweep: Sweep, checked: Sequence[Checked]) -> Iterator[str]:
    """A line for each cell that can run and each arm: epsilon by party."""
    yield f"{sweep.name}: a sweep of {counted(len(checked), 'cell')} over {', '.join(sweep.keys)}"
    yield "Epsilon is that of a client that takes part in every round, after the whole schedule."
    yield from caveats(sweep)
    yield from _shared(checked)
    for own in checked:
        if own.refused:
            continue
        yield ""
        yield own.cell.name
        of = own.cell.study
        for cost in own.arms:
            line = f"  {cost.arm}: ε {_against(cost.epsilon)}"
            if cost.affordable is not None:
                line += (
                    f"; a budget of {of.privacy.budget:g} buys {cost.affordable} of {of.study.rounds} rounds"
                )
            if cost.training_noise is not None:
                line += f"; private training with noise multiplier {cost.training_noise:g}"
            yield line


def _shared(checked: Sequence[Checked]) -> Iterator[str]:
    """A sentence for each shared ledger: its present epsilon, and the runs that these cells would add."""
    for held, cells in _by_ledger(checked).values():
        spent = _against({party: held.epsilon(party) for party in held.terms.adversaries})
        stored = counted(len(held.entries), "run")
        more = counted(sum(len(own.allotted) for own in cells), "run")
        named = cells[0].cell.study.privacy.ledger
        yield (
            f"The ledger {named} holds {stored} over these records: ε {spent}, of a budget of "
            f"{held.budget:g}. These cells are {more}; those that are in the ledger cost nothing more."
        )


def _against(epsilon: Mapping[str, float]) -> str:
    return ", ".join(f"{brief(value)} against the {party}" for party, value in epsilon.items())


def seconds(checked: Sequence[Checked], forecasts: Sequence[Forecast], workers: int) -> float:
    """The wall time in seconds of all cells that can run, if their arms are as fast as the rehearsed ones.

    forecasts: of the arms of one cell. Cells have the same arms, and may differ in rounds and seeds.
    """
    whole = [
        sum(
            arm.total_seconds(own.cell.study.study.rounds, len(own.cell.study.study.seeds))
            for arm in forecasts
        )
        for own in checked
        if not own.refused
    ]
    return max(sum(whole) / min(workers, max(1, len(whole))), max(whole, default=0.0))


def last_line(checked: Sequence[Checked], forecasts: Sequence[Forecast], workers: int) -> str:
    """A sentence with the expected time of the sweep."""
    taken = duration(seconds(checked, forecasts, workers))
    count = counted(min(workers, len(checked)), "worker")
    return f"About {taken} on this machine with {count}, if all cells are as fast as that one."


def as_json(sweep: Sweep, checked: Sequence[Checked], taken: float | None) -> dict[str, Any]:
    """The check for scripts. An infinite epsilon is the text "inf"; `seconds` is null if no cell can run."""
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
                "arms": plain(own.arms),
            }
            for own in checked
        ],
    }
