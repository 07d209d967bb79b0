"""The studies of a published table: runs them in its folder, with the paper's settings or with tuned ones.

    run_table(table, folder, tell)     a run folder for each part; `standing` reads how far they are

With tuned settings, each system's settings are chosen by records that measure nothing afterwards:

    choosing(table)                    the studies of all candidates, tested on one half of the test records
    chosen(table, metrics)             for each system the candidate of the highest accuracy there
    measured(table, choice)            the studies of the chosen settings, tested on the other half
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import pandas as pd
import tomli_w
from rich.console import Console

from securefl.core.errors import ConfigError, DataError
from securefl.core.logs import to_stderr
from securefl.core.memory import free_cycles
from securefl.published.table import Measure, Part, Row, Table, missing
from securefl.report.terminal import say as line_on
from securefl.storage.folder_lock import locked
from securefl.storage.private_folder import CONFIG
from securefl.storage.texts import read_text, toml
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import rounds_in
from securefl.study.config import Arm, slug
from securefl.study.interruption import Interruption, Stop
from securefl.study.progress import BarGroup
from securefl.study.results import Results
from securefl.study.session import run_study
from securefl.sweep.cells import put

Tell = Callable[[Part, Arm, int, Mapping[str, Any]], None]


def run_table(
    table: Table,
    folder: Path,
    tell: Tell,
    *,
    workers: int | None = None,
    stop: Stop | None = None,
    say: Callable[[str], None] = to_stderr,
) -> dict[str, Results]:
    """Run or resume all parts of a table, one after the other, each with its arms and seeds in parallel.

    Args:
        table: the table.
        folder: of the table. Each part has a run folder in it, with a report.
        tell: called with (part, arm, seed, record) for every finished round, those of an earlier run
            included.
        workers: processes that share a part's arms and seeds, by default one for each processor.
        stop, say: as for `session.run_study`.

    Returns:
        The results, by the part's name.

    Raises:
        ConfigError: the folder has runs of another version of the table.
        DataError: before anything runs, if a data file of any part is missing.
    """
    stop = stop or Interruption()
    for why in missing(table.data).values():
        raise DataError(why)
    require_own(table, folder)
    found = {}
    with locked(folder, say):
        for part in table.parts:
            study = part.study
            if workers is not None:
                study = replace(study, runtime=replace(study.runtime, workers=workers))
            found[part.name], _ = run_study(
                study, _home(folder, part), partial(tell, part), stop=stop, say=say, baselines=False
            )
            free_cycles()
            stop.check()
    return found


def _home(folder: Path, part: Part) -> Path:
    """The run folder of a part, in the table's folder."""
    return folder / slug(part.name)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The status of a table: `done` of `of` cells, each an arm under a seed. begun: whether a round ran."""

    done: int
    of: int
    begun: bool

    def __str__(self) -> str:
        if self.done == self.of:
            return "done"
        return f"{self.done} of {self.of} cells" if self.begun else "not begun"


def standing(table: Table, folder: Path) -> Standing:
    """The table's status. Only reads, also while the table is running.

    Raises ConfigError if the folder has another version of the table, and DataError if a run is damaged.
    """
    require_own(table, folder)
    played = [
        (rounds_in(checkpoint_file(arm_folder(_home(folder, part), arm, seed))), part.study.study.rounds)
        for part in table.parts
        for arm in part.study.arms
        for seed in part.study.study.seeds
    ]
    done = sum(rounds >= whole for rounds, whole in played)
    return Standing(done=done, of=len(played), begun=any(rounds for rounds, _ in played))


def require_own(table: Table, folder: Path) -> None:
    """Raises ConfigError if the folder holds runs of another version of the table."""
    for part in table.parts:
        config = _home(folder, part) / CONFIG
        found = read_text(config) if config.is_file() else part.text
        if found == part.text:
            continue
        lines = zip_longest(part.text.splitlines(), found.splitlines(), fillvalue="nothing")
        expected, came = next((pair for pair in lines if pair[0] != pair[1]), ("", "other line ends"))
        raise ConfigError(
            f"Expected runs of this version of the table in {folder}, got those of another: {part.name} has "
            f"{came!r} in place of {expected!r}. Move the folder away, or choose another with --out."
        )


class Bar(BarGroup):
    """One bar on a terminal over all rounds of a table. Elsewhere it prints a line for each finished cell."""

    def __init__(self, table: Table, console: Console) -> None:
        super().__init__(console, "cells")
        cells = [(len(part.study.arms) * len(part.study.study.seeds), part) for part in table.parts]
        self._cells, self._rounds = sum(count for count, _ in cells), 0
        self._done, total = 0, sum(count * part.study.study.rounds for count, part in cells)
        self._show("rounds", 0, total, cells="")

    def tell(self, part: Part, arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        """Show one finished round."""
        last = record["round"] == part.study.study.rounds
        self._rounds, self._done = self._rounds + 1, self._done + last
        cells = f"{self._done}/{self._cells} cells  {part.name}"
        self._show("rounds", self._rounds, cells=cells)
        if last and not self._draws:
            line_on(self._console, f"{cells}: {arm.name} #{seed}")


# Tuned settings -------------------------------------------------------------------------------------------

# Every system has SIZE candidates. A system without an option of its own has SIZE learning rates. A system
# with one (FedProx's mu, FedProf's alpha) has a half of them, with two values each. So none is tried more
# often than another. A test record's half follows from its content: under no seed does it both choose and
# measure.
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


class Candidate(NamedTuple):
    """Settings that one system is tried with.

    factor: on the study's learning rate. options: the system's own one with its value, if it has one.
    """

    factor: float
    options: tuple[tuple[str, float], ...] = ()

    @property
    def words(self) -> str:
        """The options, to follow a name or a rate."""
        return "".join(f", {name} {value:g}" for name, value in self.options)


class Chosen(NamedTuple):
    """The settings that were chosen for a system, and the accuracy that chose them."""

    candidate: Candidate
    accuracy: float


Choice = Mapping[tuple[str, str], Chosen]
"""By the part's name and the arm's."""


def candidates(row: Row) -> tuple[Candidate, ...]:
    """The candidates of a system, SIZE of them."""
    if row.tunes is None:
        return tuple(Candidate(factor) for factor in MANY)
    name, values = row.tunes
    return tuple(Candidate(factor, ((name, value),)) for factor in FEW for value in values)


def choosing(table: Table) -> Table:
    """The studies of all candidates of a table, as a table: a part for each rate."""
    parts: list[Part] = []
    for part in table.parts:
        tried = [(row.arm + one.words, row, one) for row in part.rows for one in candidates(row)]
        seeds = list(part.study.study.seeds[:SEEDS])
        parts += _by_rate(part, tried, {"study.seeds": seeds, "data.test_on": "validation"})
    return replace(table, parts=tuple(parts), title=f"{table.title}: choosing settings", twin_of=None)


def chosen(table: Table, metrics: Mapping[str, pd.DataFrame]) -> Choice:
    """The best candidate of each system. metrics: of each part of `choosing(table)`, by the part's name.

    Of candidates with equal accuracies the first one is taken, which has the lower rate.
    """
    found = {}
    for part in table.parts:
        for row in part.rows:
            tried = [
                Chosen(one, _accuracy(metrics[_name(part, one.factor)], row.arm + one.words))
                for one in candidates(row)
            ]
            found[part.name, row.arm] = max(tried, key=lambda one: one.accuracy)
    return found


def measured(table: Table, choice: Choice) -> Table:
    """The studies of the chosen settings, as a table: a part for each rate that was chosen in a part."""
    parts: list[Part] = []
    for part in table.parts:
        taken = [(row.arm, row, choice[part.name, row.arm].candidate) for row in part.rows]
        parts += _by_rate(part, taken, {})
    return replace(table, parts=tuple(parts), title=f"{table.title}: tuned", twin_of=None)


def together(table: Table, choice: Choice, metrics: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The metrics of `measured(table, choice)` by the parts of the table itself."""
    found = {}
    for part in table.parts:
        names = dict.fromkeys(_name(part, choice[part.name, row.arm].candidate.factor) for row in part.rows)
        found[part.name] = pd.concat([metrics[name] for name in names], ignore_index=True)
    return found


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
            one, accuracy = choice[part.name, row.arm]
            rate = f"{_rate(part, one.factor):g}{one.words}"
            yield f"{part.name}: {row.label}: chosen learning rate {rate} ({accuracy:.3f})."


def _accuracy(metrics: pd.DataFrame, arm: str) -> float:
    """The mean over the seeds of the best accuracy of a run."""
    best = metrics[metrics["arm"] == arm].groupby("seed")["accuracy"].max()
    # A run that diverged has no accuracy, and is never chosen.
    return float(best.mean()) if best.notna().all() else -1.0


def _by_rate(
    part: Part, arms: Sequence[tuple[str, Row, Candidate]], changes: Mapping[str, Any]
) -> Iterator[Part]:
    """The part once for each rate, with the arms of this rate alone. arms: their names, rows and settings."""
    for factor in sorted({one.factor for _, _, one in arms}):
        own = [arm for arm in arms if arm[2].factor == factor]
        study = toml(part.text)
        halved = {"data.validation": SHARE, "local.learning_rate": _rate(part, factor)}
        for key, value in {**changes, **halved}.items():
            put(study, key, value)
        unprotected = study["privacy"].get("non_private", [])
        sent = {name for _, row, _ in own for name in (unprotected if row.sends is None else row.sends)}
        study["privacy"]["non_private"] = [name for name in unprotected if name in sent]
        study["arm"] = [{**part.arms[row.arm], "name": name, **dict(one.options)} for name, row, one in own]
        yield replace(
            part,
            name=_name(part, factor),
            text=tomli_w.dumps(study),
            rows=tuple(Row(label=name, arm=name) for name, _, _ in own),
            ours=own[0][0],
            setting={},
        )


def _name(part: Part, factor: float) -> str:
    return f"{part.name}, rate x {factor:g}"


def _rate(part: Part, factor: float) -> float:
    return part.study.local.learning_rate * factor
