"""The progress of a sweep on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from securefl.study.progress import draws
from securefl.sweep.cells import Cell, Sweep


class Bars:
    """A context with a bar for the sweep and one for each worker.

    Where no bar can be drawn it prints a line a cell.
    """

    def __init__(self, sweep: Sweep, done: int, workers: int, console: Console) -> None:
        self._console, self._count, self._done = console, len(sweep.cells), done
        self._draws = draws(console)
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            # A log file has no use for bars that redraw themselves. `ended` prints lines instead.
            disable=not self._draws,
        )
        self._all = self._progress.add_task("cells", total=self._count, completed=done, figures="")
        self._workers = [
            # Not started: a bar's clock begins with its worker's first cell.
            self._progress.add_task(f"worker {place + 1}", total=1, start=False, figures="")
            for place in range(workers)
        ]

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begun(self, cell: Cell, place: int) -> None:
        study = cell.study
        total = len(study.arms) * len(study.study.seeds) * study.study.rounds
        self._progress.reset(self._workers[place], total=total, figures=cell.name)

    def round(self, place: int, done: int) -> None:
        self._progress.update(self._workers[place], completed=done)

    def ended(self, cell: Cell, place: int, error: str | None) -> None:
        self._done += 1
        self._progress.update(self._all, completed=self._done)
        self._progress.update(self._workers[place], figures="")
        if error is not None or not self._draws:
            what = "finished" if error is None else f"failed: {error}"
            line = f"{self._done}/{self._count}  {cell.name}: {what}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
