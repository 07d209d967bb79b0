"""A wave's local training in several processes, for what does not train faster side by side in one.

The processes are forked for each wave. They inherit what they train, so that nothing is sent to them, and
write what comes of it into memory that all share.
"""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NoReturn

import numpy as np
import torch

from securefl.core.errors import DataError, WorkerDied
from securefl.processes import can_fork, ending, forking, silent
from securefl.training.devices import one_thread
from securefl.training.fit import Fit, Fitted, fitted, one_by_one

_NOTHING, _TRAINED, _REFUSED, _FAILED = range(4)
"""What is known of a fit: nothing yet, the trained model, a DataError, or that another error came."""
_LEAST_ROOM: Final = 2048
"""Bytes for what comes of a fit, at least. A DataError's text must find room beside a tiny model."""


@dataclass(frozen=True)
class Forked:
    """A trainer that shares a wave among processes, of which this one is the first.

    The results are those of `one_by_one` on one thread, bit for bit. Where processes cannot be forked, or
    there is nothing to share, it is `one_by_one`.

    Raises WorkerDied if a process ends before its work. All others have ended then.
    """

    workers: int

    def __call__(self, fits: Sequence[Fit]) -> list[Fitted]:
        if min(self.workers, len(fits)) < 2 or not _safe():
            return one_by_one(fits)
        # Modules are built, and what private training imports is imported, once for all processes.
        for fit in {id(fit.problem): fit for fit in fits}.values():
            fit.problem.module(fit.problem.initial)
        if any(fit.problem.private is not None for fit in fits):
            from securefl.training import dpsgd  # noqa: F401 - Opacus takes two seconds to import
        with one_thread():
            return _together(fits, _shares(fits, self.workers))


def _safe() -> bool:
    # Beside an accelerator autograd has threads of its own after its first use, and refuses to work in a
    # forked process.
    return can_fork() and not torch.accelerator.is_available()


def _shares(fits: Sequence[Fit], workers: int) -> list[list[int]]:
    """The places of the fits that each process has to do, of about the same numbers of records."""
    shares: list[list[int]] = [[] for _ in range(min(workers, len(fits)))]
    loads = [0] * len(shares)
    for place in sorted(range(len(fits)), key=lambda k: -len(fits[k].job.x)):
        least = loads.index(min(loads))
        shares[least].append(place)
        loads[least] += len(fits[place].job.x) + 1
    return shares


def _together(fits: Sequence[Fit], shares: Sequence[Sequence[int]]) -> list[Fitted]:
    board, children = _Board(fits), _Children()
    try:
        mine = list(shares[0])
        for share in shares[1:]:
            if not children.start(board, fits, share):
                mine.extend(share)
        for place in mine:
            board.post(place, fitted(fits[place]))
        children.join()
        # An error that is no DataError is raised here, as it would be without other processes. The streams of
        # a fit are untouched where another process drew from its own copies of them.
        found = [board.result(place) for place in range(len(fits))]
        return [fitted(fit) if came is None else came for fit, came in zip(fits, found, strict=True)]
    finally:
        children.kill()
        board.close()


class _Board:
    """What came of each fit, in memory that forked processes share."""

    def __init__(self, fits: Sequence[Fit]) -> None:
        rooms = [max(4 * len(fit.start), _LEAST_ROOM) for fit in fits]
        # states first, a byte each; then the lengths of what is posted, 8 bytes each; then the rooms
        self._count = len(fits)
        self._rooms = list(accumulate(rooms, initial=9 * len(fits)))
        self._memory = mmap.mmap(-1, self._rooms[-1])

    def post(self, place: int, came: Fitted) -> None:
        if isinstance(came, DataError):
            self._post(place, _REFUSED, str(came).encode()[:_LEAST_ROOM])
        else:
            self._post(place, _TRAINED, came.astype(np.float32, copy=False).tobytes())

    def fail(self, place: int) -> None:
        self._post(place, _FAILED, b"")

    def result(self, place: int) -> Fitted | None:
        """What came of a fit. None if it must be done here."""
        state, content = self._memory[place], self._content(place)
        if state == _NOTHING:
            raise WorkerDied(_lost("ended"))
        if state == _FAILED:
            return None
        if state == _REFUSED:
            return DataError(content.decode(errors="ignore"))
        return np.frombuffer(content, np.float32).copy()

    def close(self) -> None:
        self._memory.close()

    def _post(self, place: int, state: int, content: bytes) -> None:
        room, length = self._rooms[place], self._count + 8 * place
        self._memory[room : room + len(content)] = content
        self._memory[length : length + 8] = len(content).to_bytes(8, "little")
        self._memory[place] = state

    def _content(self, place: int) -> bytes:
        room, length = self._rooms[place], self._count + 8 * place
        return self._memory[room : room + int.from_bytes(self._memory[length : length + 8], "little")]


class _Children:
    """The forked processes of a wave. Each is waited for, however the wave ends."""

    def __init__(self) -> None:
        self._running: list[int] = []

    def start(self, board: _Board, fits: Sequence[Fit], share: Sequence[int]) -> bool:
        """Start a process for these fits. False if the system gives none."""
        parent = os.getpid()
        with forking():
            try:
                child = os.fork()
            except OSError:
                return False
            if child == 0:
                _work(board, fits, share, parent)
            self._running.append(child)
        return True

    def join(self) -> None:
        """Wait for all. Raises WorkerDied if one ended in another way than by itself."""
        while self._running:
            _, status = os.waitpid(self._running[-1], 0)
            self._running.pop()
            if code := os.waitstatus_to_exitcode(status):
                raise WorkerDied(_lost(ending(code)))

    def kill(self) -> None:
        """End those that are left. They hold nothing that anybody waits for."""
        while self._running:
            child = self._running.pop()
            # Ctrl-C may have come between the wait for this one and its leaving the list.
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, 9)
                os.waitpid(child, 0)


def _work(board: _Board, fits: Sequence[Fit], share: Sequence[int], parent: int) -> NoReturn:
    """Do a share of the work in a forked process, and leave it without a trace of it anywhere else."""
    try:
        # What was inherited is the parent's to end: a database that a collector closed here would lose its
        # log.
        gc.freeze()
        silent()
        for place in share:
            if os.getppid() != parent:  # nobody is left to read the results
                break
            try:
                board.post(place, fitted(fits[place]))
            except Exception:  # whatever it was comes again, with its traceback, where the parent trains
                board.fail(place)
    finally:
        # Handlers at exit, and what waits to be printed, are the parent's, too.
        os._exit(0)


def _lost(how: str) -> str:
    return (
        f"A worker process {how} before its training was done. Finished rounds are kept: run the same "
        "command again, and it goes on. If memory ran out, add --workers 1 to it."
    )
