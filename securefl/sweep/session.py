"""Runs or resumes a sweep in its folder, with progress bars, and writes its tables, plots and page."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from securefl.report.terminal import say
from securefl.storage.processes import processors
from securefl.study.accounted import begun
from securefl.study.config import Brought
from securefl.study.interruption import Interruption, Stop
from securefl.study.own_code import told as code_in_words
from securefl.study.progress import BarGroup
from securefl.sweep.cells import Cell, Sweep
from securefl.sweep.check import check, require_all, require_room
from securefl.sweep.on_ray import run_on_ray
from securefl.sweep.report import write
from securefl.sweep.run import Facts, Watch, error_of_cell, facts_of, finished, run_cells, share_key

if TYPE_CHECKING:
    from rich.console import Console


class Bars(BarGroup):
    """A context with a bar for the sweep and one for each worker.

    If no bar can be drawn, it prints a line for each finished cell. failed: the errors of failed cells, by
    name.
    """

    def __init__(self, sweep: Sweep, done: int, console: Console) -> None:
        super().__init__(console, "figures")
        self._count, self._done = len(sweep.cells), done
        self.failed: dict[str, str] = {}
        self._show("cells", done, self._count, figures="")

    def begun(self, cell: Cell, place: int) -> None:
        total = len(cell.study.pairs) * cell.study.study.rounds
        self._show(f"worker {place + 1}", 0, total, figures=cell.name)

    def round(self, place: int, done: int) -> None:
        self._show(f"worker {place + 1}", done)

    def ended(self, cell: Cell, place: int, error: str | None) -> None:
        self._done += 1
        self._show("cells", self._done)
        if error is not None:
            self.failed[cell.name] = error
        if error is not None or not self._draws:
            what = "finished" if error is None else f"failed: {error}"
            say(self._console, f"{self._done}/{self._count}  {cell.name}: {what}")


def own_code(sweep: Sweep) -> list[str]:
    """A line for each piece of a person's own code that the cells run."""
    return list(dict.fromkeys(line for cell in sweep.cells for line in code_in_words(cell.study)))


def require_runnable(sweep: Sweep, out: Path, console: Console) -> None:
    """Check every unfinished cell.

    Raises ConfigError, with their names, if cells could not run, and BudgetExceeded if the cells together
    exceed the budget of a shared ledger.
    """
    from rich.text import Text

    left = [cell for cell in sweep.cells if not finished(sweep.home(out, cell))]
    with console.status("checking all cells") as status:
        # Check all before one runs: an error in the last must not cost the hours, or epsilon, of the first.
        checked = check(left, costs=False, tell=lambda name: status.update(Text(f"checking {name}")))
        require_all(sweep, checked)
        require_room(checked, lambda cell: begun(cell.study, sweep.home(out, cell)))


def run_and_write(
    sweep: Sweep,
    out: Path,
    workers: int | None,
    console: Console,
    stop: Interruption,
    *,
    on_ray: bool = False,
) -> tuple[Facts, pd.DataFrame, Mapping[str, str]]:
    """Run the unfinished cells of a sweep, with progress on the console, and write tables, plots and page.

    workers: by default as many as processors. on_ray: whether cells run on a Ray cluster. Returns the
    finished cells with their facts, the summary table, which may be empty, and the errors of the cells that
    failed, by name. The caller has locked and claimed the folder. Raises Interrupted after a request to stop.
    """
    done = sum(finished(sweep.home(out, cell)) for cell in sweep.cells)
    left = max(1, len(sweep.cells) - done)
    workers = min(workers or processors(), left)
    here = any(cell.study.brought != Brought() for cell in sweep.cells)
    with Bars(sweep, done, console) as bars:
        if on_ray:
            run_on_ray(sweep, out, watch=bars, stop=stop)
        elif here:
            _run_here(sweep, out, watch=bars, stop=stop)
        else:
            run_cells(sweep, out, workers=workers, watch=bars, stop=stop)
    # A signal waits until the report is written: half-written tables beside finished cells would mislead.
    with stop.finishing("the report"):
        told = facts_of(sweep, out)
        return told, write(sweep, out, told, bars.failed), bars.failed


def _run_here(sweep: Sweep, out: Path, *, watch: Watch, stop: Stop) -> None:
    """`run_cells` in this process, one by one: other processes do not have the caller's Python objects."""
    for cell in sweep.cells:
        folder = sweep.home(out, cell)
        if finished(folder):
            continue
        watch.begun(cell, 0)
        share_key(sweep, out, cell.study, folder)
        error = error_of_cell(folder, partial(attrgetter("study"), cell), partial(watch.round, 0), stop)
        watch.ended(cell, 0, error)
