"""Progress bars on a terminal or in a notebook: those of a study have accuracy, bytes and epsilon."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

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


class BarGroup:
    """A context with a bar for each name. If none can be drawn, a caller prints lines instead.

    console: where they are drawn. figures, last: as for `columns`.
    """

    def __init__(self, console: Console, *figures: str, last: int | None = None) -> None:
        self._console, self._draws = console, draws(console)
        self._tasks: dict[str, TaskID] = {}
        # In a log file bars cannot redraw themselves.
        self._progress = Progress(
            *columns(*figures, last=last), console=console, expand=True, disable=not self._draws
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _show(self, name: str, done: int, total: int | None = None, **figures: Any) -> None:
        """Show that `done` of `total` are finished. A bar that begins anew, at 0, has a new clock."""
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, **figures)
        elif not done:
            self._progress.reset(self._tasks[name], total=total)
        self._progress.update(self._tasks[name], completed=done, **figures)


class Bars(BarGroup):
    """Shows finished rounds as a bar for each arm and seed, or every tenth round as a line."""

    def __init__(self, study: Study, console: Console) -> None:
        last = max(_WORD, min(_EPSILONS, console.width - _REST))
        super().__init__(console, "accuracy", "spent", last=last)
        self._rounds = study.study.rounds
        self._several = len(study.study.seeds) > 1
        self._bytes: Counter[str] = Counter()

    def tell(self, arm: Arm, seed: int, record: Mapping[str, Any]) -> None:
        """Show one finished round."""
        name = f"{arm.name} #{seed}" if self._several else arm.name
        self._bytes[name] += record["bytes_up"] + record["bytes_down"]
        # As wide as a number, so that columns do not move.
        share = "-    " if record["accuracy"] is None else f"{record['accuracy']:.3f}"
        spent = " ".join(f"{party}={brief(value)}" for party, value in record["epsilon"].items())
        cost = f"acc {share}  {self._bytes[name] / 1e6:7.2f} MB  {record['wall_seconds']:.2f} s"
        wide, number = self._console.width >= _WIDE, record["round"]
        accuracy = cost if wide else f"acc {share}"
        self._show(name, number, self._rounds, accuracy=accuracy, spent=f"ε {spent}")
        if not self._draws and (number == self._rounds or number % 10 == 0):
            say(self._console, f"{name:<18} round {number:>4} of {self._rounds}  {cost}  ε {spent}")

    def observe(self, name: str, done: int, total: int) -> None:
        """Show one finished pass of a training of the observer's own."""
        self._show(name, done, total, accuracy="", spent="(the observer's)")
        if not self._draws and done == total:
            say(self._console, f"{name}: trained for comparison by the observer")
