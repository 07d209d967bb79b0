"""The studies of a published table: runs them in its folder, with the paper's settings or with tuned ones.

    run_table(table, folder, tell)     a run folder for each part; `standing` reads how far they are

With tuned settings, each system's settings are chosen by records that measure nothing afterwards:

    choosing(table)                    the studies of all candidates, tested on one half of the test records
    scores(table, metrics)             the accuracy of each; once more for those beyond an edge of a grid
    measured(table, tried)             the studies of the best ones, tested on the other half
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, zip_longest
from math import inf
from pathlib import Path
from typing import Any, Final

import pandas as pd
import tomli_w
from rich.console import Console

from securefl.core.errors import ConfigError, DataError
from securefl.core.logs import to_stderr
from securefl.core.memory import free_cycles
from securefl.published.table import Axis, Measure, Part, Row, Table, missing
from securefl.report.terminal import say as line_on
from securefl.storage.folder_lock import locked
from securefl.storage.private_folder import CONFIG
from securefl.storage.texts import read_text, toml
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import rounds_in
from securefl.study.config import Arm, slug
from securefl.study.folder import require_no_more
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
            home = _home(folder, part)
            require_no_more(study, home)
            found[part.name], _ = run_study(
                study, home, partial(tell, part), stop=stop, say=say, baselines=False
            )
            free_cycles()
            stop.check()
    return found


def resized(table: Table, seeds: int | None, rounds: int | None) -> Table:
    """The table with so many seeds, from 1, and rounds; with its own where that is None."""

    def of(part: Part) -> Part:
        study, own = toml(part.text), part.study.study
        if seeds is not None:
            put(study, "study.seeds", [*range(1, seeds + 1)])
        if rounds is not None:
            put(study, "study.rounds", rounds)
            put(study, "study.evaluate_every", min(rounds, own.evaluate_every))
        return replace(part, text=tomli_w.dumps(study))

    return table if seeds is rounds is None else replace(table, parts=tuple(map(of, table.parts)))


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

# Every system has SIZE candidates. A system without an option of its own has SIZE learning rates; a system
# with one (FedProx's mu, FedProf's alpha) has three, with three values each. All have the same least and
# largest rate: the rate moves accuracies by more than systems do. If the best one is at an edge of
# its grid, a better one may be beyond: there the grid goes on, once. Candidates are compared under seeds and
# on test records that measure nothing. A record's side follows from its content, so that no record does both
# under any seed.
MANY: Final = tuple(2.0 ** (k / 2) for k in range(-4, 5))
"""Factors on the paper's learning rate, for a system without an option of its own."""
FEW: Final = (1 / 4, 1.0, 4.0)
"""Factors for a system whose own option has three values."""
SIZE: Final = len(MANY)
"""The number of candidates of every system."""
SEEDS: Final = 2
"""The number of seeds under which candidates are compared."""
FIRST_SEED: Final = 1001
"""The first of them, beyond those of every table."""
SHARE: Final = 0.5
"""The share of the test records that choose."""
GRID: Final = (
    f"{SIZE} candidates a system: {SIZE} learning rates from {MANY[0]:g} to {MANY[-1]:g} times the paper's, "
    "or three in the same range with three values of the system's own option. If the best one is at an edge, "
    f"two more values beyond it. The highest accuracy on {SHARE:.0%} of the test records, the mean over "
    f"{SEEDS} seeds that measure nothing, chooses. The other records measure."
)
"""The grid in words, for reports."""
HALVED: Final = (
    f"Of a client's held-out records {1 - SHARE:.0%} are left for measuring: losses that choose clients, as "
    "FedCor's, and local accuracies are of these alone."
)
"""What the grid costs studies with a hold-out."""
RATE: Final = "local.learning_rate"

Candidate = tuple[tuple[str, float], ...]
"""Settings that one system is tried with: keys of its [[arm]], with their values."""
Scores = Mapping[tuple[str, str], Mapping[Candidate, float]]
"""The accuracy of each candidate that was tried, by the part's name and the arm's."""


def axes(part: Part, row: Row) -> tuple[Axis, ...]:
    """The settings of a system that tuning chooses: its learning rate, and its own option if it has one."""
    (arm,) = (arm for arm in part.study.arms if arm.name == row.arm)
    paper = (arm.local or part.study.local).learning_rate
    factors = MANY if row.tunes is None else FEW
    rates = Axis(
        key=RATE,
        values=tuple(f * paper for f in factors),
        below=tuple(factors[0] * f * paper for f in (1 / 16, 1 / 4)),
        above=tuple(factors[-1] * f * paper for f in (4, 16) if factors[-1] * f <= row.fastest),
    )
    return (rates,) if row.tunes is None else (rates, row.tunes)


def candidates(part: Part, row: Row) -> tuple[Candidate, ...]:
    """The candidates of a system, SIZE of them. Raises ConfigError for a grid of another size."""
    own = axes(part, row)
    found = tuple(
        tuple(zip([a.key for a in own], one, strict=True)) for one in product(*(a.values for a in own))
    )
    if len(found) != SIZE:
        raise ConfigError(
            f"Expected {SIZE} candidates of {row.label}, as of every system, got {len(found)}. Give "
            f"{own[-1].key} {SIZE // len(FEW)} values."
        )
    return found


def beyond(part: Part, row: Row, tried: Mapping[Candidate, float]) -> tuple[Candidate, ...]:
    """The candidates beyond the edges of a grid at which its best one is."""
    best = dict(best_of(tried)[0])
    return tuple(
        tuple({**best, axis.key: value}.items())
        for axis in axes(part, row)
        for edge, more in ((axis.values[0], axis.below), (axis.values[-1], axis.above))
        if best[axis.key] == edge
        for value in more
    )


def best_of(tried: Mapping[Candidate, float]) -> tuple[Candidate, float]:
    """The best candidate and its accuracy. Of equal ones the first, which has the lowest learning rate."""
    return max(sorted(tried.items()), key=lambda one: one[1])


def choosing(table: Table, tried: Scores | None = None) -> Table | None:
    """The studies of all candidates, as a table. With `tried`, of those beyond edges; None without any."""
    parts = []
    for part in table.parts:
        asked = [
            (f"{row.arm}, {_words(one)}", row, one)
            for row in part.rows
            for one in (
                candidates(part, row) if tried is None else beyond(part, row, tried[part.name, row.arm])
            )
        ]
        seeds = range(max(FIRST_SEED, 1 + max(part.study.study.seeds)), 1 << 31)[:SEEDS]
        if asked:
            parts.append(_with(part, asked, {"study.seeds": [*seeds], "data.test_on": "validation"}))
    title = f"{table.title}: choosing settings"
    return replace(table, parts=tuple(parts), title=title, twin_of=None) if parts else None


def scores(table: Table, metrics: Mapping[str, pd.DataFrame], tried: Scores | None = None) -> Scores:
    """The accuracies of the candidates of `choosing(table, tried)`, beside those of `tried`.

    metrics: of each of its parts, by the part's name.
    """
    found: dict[tuple[str, str], dict[Candidate, float]] = {}
    for part in table.parts:
        runs = metrics.get(part.name)
        for row in part.rows:
            known = {} if tried is None else dict(tried[part.name, row.arm])
            asked = candidates(part, row) if tried is None else beyond(part, row, known)
            if runs is not None:
                known |= {one: _accuracy(runs, f"{row.arm}, {_words(one)}") for one in asked}
            found[part.name, row.arm] = known
    return found


def measured(table: Table, tried: Scores) -> Table:
    """The studies of the chosen settings, as a table."""
    parts = [
        _with(part, [(row.arm, row, best_of(tried[part.name, row.arm])[0]) for row in part.rows], {})
        for part in table.parts
    ]
    return replace(table, parts=tuple(parts), title=f"{table.title}: tuned", twin_of=None)


def tuned(table: Table, chosen: Iterable[str]) -> Table:
    """The table as it is printed: with the last accuracy first, and every chosen setting as a difference.

    chosen: `in_words`. Its version is the table's own: the studies follow from it and the choices.
    """
    parts = tuple(
        replace(part, rows=tuple(replace(row, options=_not_tuned(row)) for row in part.rows))
        for part in table.parts
    )
    measures = tuple(dict.fromkeys((Measure.LAST, *table.measures)))
    halved = (HALVED,) if any(part.study.data.holdout for part in table.parts) else ()
    words = (*table.differences, GRID, *halved, *chosen)
    return replace(table, parts=parts, measures=measures, differences=words)


def _not_tuned(row: Row) -> dict[str, Any]:
    return {key: value for key, value in row.options.items() if row.tunes is None or key != row.tunes.key}


def in_words(table: Table, tried: Scores) -> Iterator[str]:
    """A sentence for each system: the settings that were chosen, and the accuracy that chose them."""
    for part in table.parts:
        for row in part.rows:
            own = tried[part.name, row.arm]
            best, accuracy = best_of(own)
            extra = len(own) - SIZE
            wider = f", of {SIZE} candidates and {extra} beyond an edge" if extra else ""
            edges = [*filter(None, (_edge(axis, own) for axis in axes(part, row)))]
            at = f"; {' and '.join(edges)}" if edges else ""
            yield f"{part.name}: {row.label}: chosen {_words(best)} ({accuracy:.3f}{wider}{at})."


def _edge(axis: Axis, tried: Mapping[Candidate, float]) -> str:
    """At which edge of all its values a choice still is, or nothing."""
    values, value = sorted({dict(one)[axis.key] for one in tried}), dict(best_of(tried)[0])[axis.key]
    if values[0] < value < values[-1]:
        return ""
    if not (axis.below if value == values[0] else axis.above):
        return f"{axis.key} {value:g} is the end of its range"
    return f"{axis.key} {value:g} is still at an edge"


def _words(candidate: Candidate) -> str:
    return ", ".join(f"{key.replace('.', ' ').replace('_', ' ')} {value:g}" for key, value in candidate)


def _accuracy(metrics: pd.DataFrame, arm: str) -> float:
    """The mean over the seeds of the best accuracy of a run."""
    # Models are tested in the same rounds under all settings, and in the last one of each run.
    tested = metrics["accuracy"].notna().groupby(metrics["round"]).transform("any")
    tested |= ~metrics.duplicated(["arm", "seed"], keep="last")
    own = metrics[(metrics["arm"] == arm) & tested]
    # A run that diverged has no accuracy there, and is never chosen: that of a regression has no least value.
    return float(own.groupby("seed")["accuracy"].max().mean()) if own["accuracy"].notna().all() else -inf


def _with(part: Part, arms: Sequence[tuple[str, Row, Candidate]], changes: Mapping[str, Any]) -> Part:
    """The part with these arms alone. arms: their names, rows and settings."""
    study = toml(part.text)
    for key, value in {"data.validation": SHARE, **changes}.items():
        put(study, key, value)
    unprotected = study["privacy"].get("non_private", [])
    sent = {name for _, row, _ in arms for name in (unprotected if row.sends is None else row.sends)}
    study["privacy"]["non_private"] = [name for name in unprotected if name in sent]
    study["arm"] = []
    for name, row, settings in arms:
        own: dict[str, Any] = {"arm": [{**part.arms[row.arm], "name": name}]}
        for key, value in settings:
            put(own, f"arm.{key}", value)
        study["arm"] += own["arm"]
    rows = tuple(Row(label=name, arm=name) for name, _, _ in arms)
    return replace(part, text=tomli_w.dumps(study), rows=rows, ours=arms[0][0], setting={})
