"""Progress bars of a study, on a terminal or in a notebook: one per arm, with accuracy, bytes and epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from securefl.accounting.figures import brief
from securefl.report.terminal import draws, say
from securefl.study.config import Arm, Study

_WIDE = 110
"""From this width on, bars show bytes and seconds too."""
_WORD = 17
"""The room of the longest word of an epsilon, such as key-holder=123.45."""
_EPSILONS = 40
"""The room of all epsilons in one line."""
_REST = 49
"""The room of a name of 18 characters and of all other columns."""


class TimeLeft(TimeRemainingColumn):
    """The estimated time to the end, in words; at the end, the time that was taken."""

    def __init__(self) -> None:
        super().__init__(elapsed_when_finished=True, table_column=Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        return Text("took " if task.finished else "left ").append_text(super().render(task))


def columns(*figures: str, last: int | None = None) -> tuple[ProgressColumn, ...]:
    """The columns of a bar: name, bar, finished of all, time left, and these fields of the task.

    Names and the last field fold between words, and the bar takes the room that is left. All other columns
    stay whole, so that a narrow terminal shows every figure. last: the width of the last field, if its words
    must stay whole.
    """
    whole = [
        TextColumn(f"{{task.fields[{name}]}}", markup=False, table_column=Column(no_wrap=True))
        for name in figures[:-1]
    ]
    return (
        TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
        BarColumn(bar_width=None, table_column=Column(ratio=1)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeLeft(),
        *whole,
        TextColumn(
            f"{{task.fields[{figures[-1]}]}}",
            markup=False,
            table_column=Column(width=last, overflow="fold"),
        ),
    )


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
            *columns("accuracy", "spent", last=max(_WORD, min(_EPSILONS, console.width - _REST))),
            console=console,
            disable=not self._draws,
            expand=True,
        )

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        """Show one finished round."""
        name = f"{arm.name} #{seed}" if self._several else arm.name
        self._bytes[name] = self._bytes.get(name, 0) + record["bytes_up"] + record["bytes_down"]
        accuracy, spent = f"acc {_share(record['accuracy'])}", f"ε {_against(record['epsilon'])}"
        cost = f"{self._bytes[name] / 1e6:7.2f} MB  {record['wall_seconds']:.2f} s"
        wide = f"{accuracy}  {cost}" if self._console.width >= _WIDE else accuracy
        self._show(name, record["round"], self._rounds, wide, spent)
        last = record["round"] == self._rounds
        if not self._draws and (last or record["round"] % 10 == 0):
            of = f"round {record['round']:>4} of {self._rounds}"
            say(self._console, f"{name:<18} {of}  {accuracy}  {cost}  {spent}")

    def observe(self, name: str, done: int, total: int) -> None:
        """Show one finished pass of a training of the observer's own."""
        self._show(name, done, total, "", "(the observer's)")
        if not self._draws and done == total:
            say(self._console, f"{name}: trained for comparison by the observer")

    def _show(self, name: str, done: int, total: int, accuracy: str, spent: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, accuracy="", spent="")
        self._progress.update(self._tasks[name], completed=done, accuracy=accuracy, spent=spent)


def _share(accuracy: float | None) -> str:
    # As wide as a number, so that columns do not move.
    return "-    " if accuracy is None else f"{accuracy:.3f}"


def _against(epsilon: Mapping[str, float]) -> str:
    return " ".join(f"{party}={brief(value)}" for party, value in epsilon.items())
