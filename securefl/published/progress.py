"""The progress bar of a table on a terminal: one bar over all its rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import Progress

from securefl.published.table import Part, Table
from securefl.report.terminal import say
from securefl.study.config import Arm
from securefl.study.progress import columns


class Bar:
    """A context with a bar for the rounds of all cells. Without a terminal it prints a line for each finished
    cell.
    """

    def __init__(self, table: Table, console: Console) -> None:
        self._console = console
        studies = {part.name: part.study.study for part in table.parts}
        self._lengths = {name: study.rounds for name, study in studies.items()}
        cells = {part.name: len(part.study.arms) * len(part.study.study.seeds) for part in table.parts}
        self._cells, self._done = sum(cells.values()), 0
        self._progress = Progress(
            *columns("cells"),
            console=console,
            expand=True,
            disable=not console.is_terminal,
        )
        total = sum(cells[name] * rounds for name, rounds in self._lengths.items())
        self._task = self._progress.add_task(table.parts[0].name, total=total, cells=self._count)

    @property
    def _count(self) -> str:
        return f"{self._done}/{self._cells} cells"

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, part: Part, arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        """Show one finished round."""
        last = record["round"] == self._lengths[part.name]
        self._done += last
        self._progress.update(self._task, advance=1, description=part.name, cells=self._count)
        if last and not self._console.is_terminal:
            line = f"{self._count}  {part.name}: {arm.name} #{seed}"
            say(self._console, line)
