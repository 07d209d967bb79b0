"""Parallel local training: a wave's fits in several processes, for models that `cohorts` cannot batch.

The processes are forked for each wave. They inherit the fits, so no fit is sent to them, and write the
results into shared memory.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import torch

from securefl.core.errors import DataError, WorkerDied
from securefl.storage.processes import Ended, Line, Supervisor, can_fork, ending
from securefl.training.devices import one_thread
from securefl.training.jobs import TrainingJob, TrainingResult
from securefl.training.run_jobs import one_by_one, run_job

_NOTHING, _TRAINED, _REFUSED, _FAILED = range(4)
"""The state of a fit: no result yet, a trained model, a DataError, or another error."""
_LEAST_ROOM: Final = 2048
"""The least number of bytes for the result of a fit. A DataError's text must fit if the model is tiny."""


@dataclass(frozen=True)
class Forked:
    """A trainer that divides a wave between processes. This process is the first of them.

    The results are those of `one_by_one` on one thread, bit for bit. If processes cannot be forked, or if
    there are fewer than two workers or fits, it calls `one_by_one`.

    Raises WorkerDied if a process ends before its work is done. All other processes have ended then.
    """

    workers: int

    def __call__(self, fits: Sequence[TrainingJob]) -> list[TrainingResult]:
        if min(self.workers, len(fits)) < 2 or not _safe():
            return one_by_one(fits)
        # Build modules, and import the packages of private training, once for all processes.
        for fit in {id(fit.problem): fit for fit in fits}.values():
            fit.problem.module(fit.problem.initial)
        if any(fit.problem.private is not None for fit in fits):
            from securefl.training import dpsgd  # noqa: F401 - Opacus takes two seconds to import
        with one_thread():
            return _together(fits, _shares(fits, self.workers))


def _safe() -> bool:
    # With an accelerator, autograd starts threads at its first use, and refuses to work in a forked process.
    return can_fork() and not torch.accelerator.is_available()


def _shares(fits: Sequence[TrainingJob], workers: int) -> list[list[int]]:
    """The positions of the fits of each process, with about the same numbers of records."""
    shares: list[list[int]] = [[] for _ in range(min(workers, len(fits)))]
    loads = [0] * len(shares)
    for place in sorted(range(len(fits)), key=lambda k: -len(fits[k].context.x)):
        least = loads.index(min(loads))
        shares[least].append(place)
        loads[least] += len(fits[place].context.x) + 1
    return shares


def _together(fits: Sequence[TrainingJob], shares: Sequence[Sequence[int]]) -> list[TrainingResult]:
    board = _Board(fits)
    try:
        # The processes hold no lock or other resource, so they can be killed at any time.
        with Supervisor[int]("fork") as crew:
            mine = list(shares[0])
            for number, share in enumerate(shares[1:]):
                if not crew.start(number, _work, board, fits, share):
                    mine.extend(share)
            for place in mine:
                board.post(place, run_job(fits[place]))
            _join(crew)
        # Training here again raises an error that is not a DataError, as without other processes. This
        # process's streams of the fit are unchanged, since the other process drew from its own copies.
        found = [board.result(place) for place in range(len(fits))]
        return [run_job(fit) if came is None else came for fit, came in zip(fits, found, strict=True)]
    finally:
        board.close()


class _Board:
    """The result of each fit, in memory that forked processes share."""

    def __init__(self, fits: Sequence[TrainingJob]) -> None:
        behind = [(fit.hook.values if fit.hook else 0) + len(fit.problem.initial_norms) for fit in fits]
        self._lengths = [4 * (len(fit.start) + more) for fit, more in zip(fits, behind, strict=True)]
        # First the states, a byte each. Then the results.
        rooms = (max(length, _LEAST_ROOM) for length in self._lengths)
        self._rooms = list(accumulate(rooms, initial=len(fits)))
        self._memory = mmap.mmap(-1, self._rooms[-1])

    def post(self, place: int, came: TrainingResult) -> None:
        if isinstance(came, DataError):
            self._post(place, _REFUSED, str(came).encode()[:_LEAST_ROOM])
        else:
            self._post(place, _TRAINED, came.astype(np.float32, copy=False).tobytes())

    def fail(self, place: int) -> None:
        self._post(place, _FAILED, b"")

    def result(self, place: int) -> TrainingResult | None:
        """The result of a fit, or None if this process must train it. Raises WorkerDied if it is lost."""
        state, room = self._memory[place], self._rooms[place]
        if state == _NOTHING:
            raise WorkerDied(_lost("ended"))
        if state == _FAILED:
            return None
        if state == _REFUSED:
            text = self._memory[room : room + _LEAST_ROOM].rstrip(b"\0")
            return DataError(text.decode(errors="ignore"))
        return np.frombuffer(self._memory[room : room + self._lengths[place]], np.float32).copy()

    def close(self) -> None:
        self._memory.close()

    def _post(self, place: int, state: int, content: bytes) -> None:
        room = self._rooms[place]
        self._memory[room : room + len(content)] = content
        self._memory[place] = state


def _join(crew: Supervisor[int]) -> None:
    """Wait for all processes. Raises WorkerDied if one ended with an error or a signal."""
    while crew.running:
        for _, news in crew.hear():
            # If the exit code is unknown, `_Board.result` finds a missing result.
            if isinstance(news, Ended) and news.code:
                raise WorkerDied(_lost(ending(news.code)))


def _work(line: Line, board: _Board, fits: Sequence[TrainingJob], share: Sequence[int]) -> None:
    """Train a share of the fits in a forked process. Its only effect is on the board."""
    for place in share:
        try:
            board.post(place, run_job(fits[place]))
        except Exception:  # the parent trains the fit again, and so raises it with its traceback
            board.fail(place)


def _lost(how: str) -> str:
    return (
        f"A worker process {how} before its training was done. Finished rounds are kept: run the same "
        "command again, and it goes on. If memory ran out, add --workers 1 to it."
    )
