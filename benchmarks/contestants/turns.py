"""What a contestant is given, and the clock of its rounds."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

_TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One piece of work: rounds of federated averaging with SGD, every client of one size and weight.

    kind: "mlp" with `hidden` units, or "lenet5". source: a data set of securefl's.
    records: of each client. cohort: clients in a round. rounds: with those that are not timed.
    """

    name: str
    kind: str
    hidden: tuple[int, ...] | None
    source: str
    clients: int
    records: int
    cohort: int
    epochs: int
    batch: int
    rate: float
    rounds: int

    @classmethod
    def read(cls, table: dict[str, Any]) -> Cell:
        """From JSON, which has no tuples."""
        hidden = table["hidden"]
        return cls(**table | {"hidden": None if hidden is None else tuple(hidden)})


@dataclass(frozen=True)
class Work:
    """The same records, partition and first model for all contestants, from one file.

    x (n, *shape) and y (n,): client after client. initial (d,): the parameters in the model's order.
    """

    path: Path
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    initial: NDArray[np.float32]

    @classmethod
    def read(cls, path: Path) -> Work:
        with np.load(path) as arrays:
            return cls(path, arrays["x"], arrays["y"], arrays["initial"])

    def write(self) -> None:
        np.savez(self.path, x=self.x, y=self.y, initial=self.initial)

    def client(self, number: int, cell: Cell) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        own = slice(number * cell.records, (number + 1) * cell.records)
        return self.x[own], self.y[own]


class Turns:
    """Tells what each round took, and waits for the word before the next one begins."""

    def __init__(self, rounds: int, answer: Callable[..., None]) -> None:
        self._left, self._answer = rounds, answer

    def begin(self) -> None:
        """The set-up is done."""
        self._answer(ready=True)
        self._wait()

    def next(self) -> None:
        """A round is done."""
        cpu = process_time() - self._own
        wall = perf_counter() - self._began
        self._answer(cpu=cpu + others() - self._others, wall=wall)
        self._left -= 1
        if self._left:
            self._wait()

    def _wait(self) -> None:
        if not sys.stdin.readline():
            raise EOFError("Expected the word for another round, but the driver has gone.")
        self._others = others()
        self._began, self._own = perf_counter(), process_time()


def others() -> float:
    """CPU seconds so far of all processes that this one started, and those that they did (Linux)."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name may hold blanks and brackets; the fields that follow are numbers.
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        ticks[number] = sum(map(int, fields[11:15]))  # its own time, and that of its children that ended
    return (
        ended.ru_utime
        + ended.ru_stime
        + _TICK * sum(ticks[per_client] for per_client in descendants(parents))
    )


def descendants(parents: dict[int, int]) -> set[int]:
    """The processes under this one, where each process's parent is known."""
    found: set[int] = set()
    newest = {os.getpid()}
    while newest:
        newest = {number for number, parent in parents.items() if parent in newest} - found
        found |= newest
    return found
