"""Runs the studies of a published table one after the other, each with its arms and seeds in parallel.

The table's folder has a run folder for each part. `standing` reads how far they are; `Bar` shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from securefl.core.errors import ConfigError, DataError
from securefl.core.logs import to_stderr
from securefl.core.memory import free_cycles
from securefl.published.table import Part, Table, missing
from securefl.report.terminal import say as line_on
from securefl.storage.folder_lock import locked
from securefl.storage.private_folder import CONFIG
from securefl.storage.texts import read_text
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import rounds_in
from securefl.study.config import Arm, slug
from securefl.study.interruption import Interruption, Stop
from securefl.study.progress import columns
from securefl.study.results import Results
from securefl.study.session import run_study

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
    """Run or resume all parts of a table in `folder`. Returns their results, by the part's name.

    tell: called with (part, arm, seed, record) for every finished round, those of an earlier run included.
    workers: processes that share a part's arms and seeds, by default one for each processor.
    stop, say: as for `session.run_study`.
    Each part has a run folder of its own, with a report.
    Raises DataError, before anything runs, if a data file of any part is missing, and ConfigError if the
    folder has runs of another version of the table.
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
        (rounds_in(checkpoint_file(arm_folder(home, arm, seed))), part.study.study.rounds)
        for part in table.parts
        for home in [_home(folder, part)]
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


class Bar(Progress):
    """One bar on a terminal over all rounds of a table. Elsewhere it prints a line for each finished cell."""

    def __init__(self, table: Table, console: Console) -> None:
        super().__init__(*columns("cells"), console=console, expand=True, disable=not console.is_terminal)
        cells = {part.name: len(part.study.arms) * len(part.study.study.seeds) for part in table.parts}
        self._lengths = {part.name: part.study.study.rounds for part in table.parts}
        self._cells, self._done = sum(cells.values()), 0
        total = sum(cells[name] * rounds for name, rounds in self._lengths.items())
        self._task = self.add_task(table.parts[0].name, total=total, cells=self._count)

    @property
    def _count(self) -> str:
        return f"{self._done}/{self._cells} cells"

    def tell(self, part: Part, arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        """Show one finished round."""
        last = record["round"] == self._lengths[part.name]
        self._done += last
        self.update(self._task, advance=1, description=part.name, cells=self._count)
        if last and not self.console.is_terminal:
            line_on(self.console, f"{self._count}  {part.name}: {arm.name} #{seed}")
