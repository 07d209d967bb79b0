"""A table with tuned systems: each system's settings are chosen by records that measure nothing afterwards.

    choosing(table)        the studies of all candidates, tested on one half of the test records
    chosen(table, runs)    for each system the candidate of the highest accuracy there
    measured(table, ...)   the studies of the chosen settings, tested on the other half, under all seeds

Every system has SIZE candidates. A system without an option of its own has SIZE learning rates. A system with
one (FedProx's mu, FedProf's alpha) has a half of them, with two values each. So none is tried more often than
another. A test record's half follows from its content: under no seed does it both choose and measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd
import tomli_w

from securefl.published.table import Measure, Part, Row, Table
from securefl.storage.texts import toml
from securefl.sweep.cells import put

MANY: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Factors on the paper's learning rate, for a system without an option of its own."""
FEW: Final = (0.5, 1.0, 2.0)
"""Factors for a system whose own option has two values."""
SIZE: Final = len(MANY)
"""The number of candidates of every system."""
SEEDS: Final = 2
"""The number of the table's seeds, from the first, under which candidates are compared."""
SHARE: Final = 0.5
"""The share of the test records that choose."""
GRID: Final = (
    f"{SIZE} candidates a system: the paper's learning rate times {', '.join(f'{f:g}' for f in MANY)}; or "
    f"times {', '.join(f'{f:g}' for f in FEW)} with two values of the system's own option. The highest "
    f"accuracy on {SHARE:.0%} of the test records, the mean over {SEEDS} seeds, chooses. The others measure."
)
"""The grid in words, for reports."""
HALVED: Final = (
    f"Of a client's held-out records {1 - SHARE:.0%} are left for measuring: losses that choose clients, as "
    "FedCor's, and local accuracies are of these alone."
)
"""What the grid costs studies with a hold-out."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Settings that one system is tried with.

    factor: on the study's learning rate. option: the name and the value of the system's own option, or None.
    """

    factor: float
    option: tuple[str, float] | None = None

    def arm(self, name: str) -> str:
        """The name of its arm in the studies that choose."""
        return name if self.option is None else f"{name}, {self.option[0]} {self.option[1]:g}"


def candidates(row: Row) -> tuple[Candidate, ...]:
    """The candidates of a system, SIZE of them."""
    if row.tunes is None:
        return tuple(Candidate(factor=factor) for factor in MANY)
    name, values = row.tunes
    return tuple(Candidate(factor=factor, option=(name, value)) for factor in FEW for value in values)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The settings that were chosen for a system, with the rate, and the accuracy that chose them."""

    candidate: Candidate
    rate: float
    accuracy: float


Choice = Mapping[tuple[str, str], Chosen]
"""By the part's name and the arm's."""


def choosing(table: Table) -> Table:
    """The studies of all candidates of a table, as a table: a part for each rate."""
    parts = []
    for part in table.parts:
        seeds = list(part.study.study.seeds[:SEEDS])
        tried = [(row, one.arm(row.arm), one) for row in part.rows for one in candidates(row)]
        parts += _by_rate(part, tried, {"study.seeds": seeds, "data.test_on": "validation"})
    return replace(table, parts=tuple(parts), title=f"{table.title}: choosing settings", twin_of=None)


def chosen(table: Table, metrics: Mapping[str, pd.DataFrame]) -> Choice:
    """The best candidate of each system. metrics: of each part of `choosing(table)`, by the part's name.

    Of candidates with equal accuracies the first one is taken, which has the lower rate.
    """
    found = {}
    for part in table.parts:
        for row in part.rows:
            own = candidates(row)
            scores = [_accuracy(metrics[_name(part, one.factor)], one.arm(row.arm)) for one in own]
            best = int(np.argmax(scores))
            found[part.name, row.arm] = Chosen(
                candidate=own[best], rate=_rate(part) * own[best].factor, accuracy=scores[best]
            )
    return found


def measured(table: Table, choice: Choice) -> Table:
    """The studies of the chosen settings, as a table: a part for each rate that was chosen in a part."""
    parts = []
    for part in table.parts:
        taken = [(row, row.arm, choice[part.name, row.arm].candidate) for row in part.rows]
        parts += _by_rate(part, taken, {})
    return replace(table, parts=tuple(parts), title=f"{table.title}: tuned", twin_of=None)


def together(table: Table, choice: Choice, metrics: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The metrics of `measured(table, choice)` by the parts of the table itself."""
    return {
        part.name: pd.concat(
            [
                metrics[_name(part, factor)]
                for factor in sorted({choice[part.name, row.arm].candidate.factor for row in part.rows})
            ],
            ignore_index=True,
        )
        for part in table.parts
    }


def tuned(table: Table, choice: Choice) -> Table:
    """The table as it is printed: with the last accuracy first, and every chosen setting as a difference."""
    measures = tuple(dict.fromkeys((Measure.LAST, *table.measures)))
    halved = (HALVED,) if any(part.study.data.holdout for part in table.parts) else ()
    words = (*table.differences, GRID, *halved, *in_words(table, choice))
    return replace(table, measures=measures, differences=words)


def in_words(table: Table, choice: Choice) -> Iterator[str]:
    """A sentence for each system: the settings that were chosen, and the accuracy that chose them."""
    for part in table.parts:
        for row in part.rows:
            own = choice[part.name, row.arm]
            option = own.candidate.option
            more = "" if option is None else f", {option[0]} {option[1]:g}"
            yield f"{part.name}: {row.label}: chosen learning rate {own.rate:g}{more} ({own.accuracy:.3f})."


def _accuracy(metrics: pd.DataFrame, arm: str) -> float:
    """The mean over the seeds of the best accuracy of a run."""
    best = metrics[metrics["arm"] == arm].groupby("seed")["accuracy"].max()
    # A run that diverged has no accuracy, and is never chosen.
    return float(best.mean()) if best.notna().all() else -1.0


_Arms = Sequence[tuple[Row, str, Candidate]]
"""Rows, the names of their arms, and settings."""


def _by_rate(part: Part, arms: _Arms, changes: Mapping[str, Any]) -> list[Part]:
    """The part once for each rate of these candidates."""
    factors = sorted({one.factor for _, _, one in arms})
    return [_at(part, [own for own in arms if own[2].factor == one], changes) for one in factors]


def _at(part: Part, arms: _Arms, changes: Mapping[str, Any]) -> Part:
    """The part with these candidates of one rate alone."""
    study, factor = toml(part.text), arms[0][2].factor
    for key, value in {
        **changes,
        "data.validation": SHARE,
        "local.learning_rate": _rate(part) * factor,
    }.items():
        put(study, key, value)
    unprotected = study["privacy"].get("non_private", [])
    sent = {name for row, _, _ in arms for name in (unprotected if row.sends is None else row.sends)}
    study["privacy"]["non_private"] = [name for name in unprotected if name in sent]
    study["arm"] = [
        {**part.arms[row.arm], "name": name, **dict([one.option] if one.option else [])}
        for row, name, one in arms
    ]
    rows = tuple(Row(label=name, arm=name) for _, name, _ in arms)
    text = tomli_w.dumps(study)
    return replace(part, name=_name(part, factor), text=text, rows=rows, ours=arms[0][1], setting={})


def _name(part: Part, factor: float) -> str:
    return f"{part.name}, rate x {factor:g}"


def _rate(part: Part) -> float:
    return part.study.local.learning_rate
