"""Progress bars of a study, on a terminal or in a notebook: one per arm, with accuracy, bytes and epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from securefl.accounting.figures import brief
from securefl.study.config import Arm, Study


def draws(console: Console) -> bool:
    """Whether bars can be drawn: on a terminal, and in a notebook that has widgets."""
    # Without ipywidgets, rich warns at every redraw and draws nothing.
    return console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)


class Bars:
    """A context that shows finished rounds as bars, or every tenth round as a line if no bar can be drawn."""

    def __init__(self, study: Study, console: Console) -> None:
        self._console = console
        self._draws = draws(console)
        self._rounds = study.study.rounds
        self._several = len(study.study.seeds) > 1
        self._bytes: dict[str, int] = {}
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description:<18}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            disable=not self._draws,
        )

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        """Show one finished round."""
        name = f"{arm.name} #{seed}" if self._several else arm.name
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=self._rounds, figures="")
        self._bytes[name] = self._bytes.get(name, 0) + record["bytes_up"] + record["bytes_down"]
        figures = (
            f"acc {_share(record['accuracy'])}  {self._bytes[name] / 1e6:7.2f} MB  "
            f"{record['wall_seconds']:.2f} s  ε {_against(record['epsilon'])}"
        )
        self._progress.update(self._tasks[name], completed=record["round"], figures=figures)
        last = record["round"] == self._rounds
        if not self._draws and (last or record["round"] % 10 == 0):
            line = f"{name:<18} round {record['round']:>4}  {figures}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)


def _share(accuracy: float | None) -> str:
    # As wide as a number, so that columns do not move.
    return "-    " if accuracy is None else f"{accuracy:.3f}"


def _against(epsilon: Mapping[str, float]) -> str:
    return " ".join(f"{party}={brief(value)}" for party, value in epsilon.items())
