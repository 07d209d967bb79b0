"""What a contestant is given, and the clock of its rounds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray


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
    """CPU seconds so far of all processes that this one started, and those that they did."""
    ended, found = psutil.Process().cpu_times(), 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            found += sum(child.cpu_times()[:4])  # its own, and that of its children that ended
    return ended.children_user + ended.children_system + found
