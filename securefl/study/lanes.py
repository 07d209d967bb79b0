"""Arms and seeds side by side: each in a process of its own, forked from the study's.

A lane inherits its world, writes its own files as a run alone does, and sends the record of each finished
round. Its end is its exit code; nothing else comes back, since every round is on disk.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any, Final, NoReturn

from securefl.core.errors import WorkerDied
from securefl.processes import end_with_parent, ending, forking, silent
from securefl.study.config import Arm
from securefl.study.interruption import Interrupted, Stop, Told

Pair = tuple[Arm, int]
"""An arm and a seed."""
Record = Mapping[str, Any]
Play = Callable[[Pair, Callable[[Record], None], Stop], None]
"""Plays a pair to its end: (pair, what is told every record, what asks to stop)."""
_FINISHED, _STOPPED, _FAILED = 0, 3, 4
"""Exit codes of lanes. Any other is of one that was ended from outside."""
_NO_PROCESS: Final = (
    "The system gave no process to play an arm in. Finished rounds are kept: run the same command with "
    "--workers 1, which needs none."
)
_BEAT: Final = 0.1
"""Seconds between two looks at the lanes."""


def side_by_side(
    pairs: Sequence[Pair], play: Play, tell: Callable[[Arm, int, Record], None], *, lanes: int, stop: Stop
) -> Pair | None:
    """Play all pairs, some at a time. Returns one that ended in an error, or None.

    tell: called here for every record, each pair's in their order.
    After a request to `stop`, or an error in one lane, every other finishes its round, and nothing new
    begins. Any other interruption ends the lanes at once. Raises Interrupted after a request to stop, and
    WorkerDied if a lane was ended from outside.
    """
    context = multiprocessing.get_context("fork")
    # Nobody reads from this pipe, so that one word in it is seen by every lane.
    hears, tells = context.Pipe(duplex=False)
    shift = _Shift(deque(pairs), play, tell, hears)
    stopping = False
    try:
        with stop.finishing("this round"):
            while shift.running or (shift.waiting and not stopping):
                if not stopping and (shift.failed or shift.died or _asked(stop)):
                    tells.send_bytes(b"stop")
                    stopping = True
                while shift.waiting and len(shift.running) < lanes and not stopping:
                    if not shift.begin(context):
                        lanes = len(shift.running)
                if not lanes:
                    raise WorkerDied(_NO_PROCESS)
                shift.hear()
    finally:
        # None is left after a whole shift. Every round is durable, so that a lane can be killed anywhere.
        shift.kill()
        hears.close()
        tells.close()
    stop.check()
    if shift.died:
        raise WorkerDied(shift.died)
    return shift.failed


def _asked(stop: Stop) -> bool:
    try:
        stop.check()
    except Interrupted:
        return True
    return False


@dataclass
class _Shift:
    """What is played, and how it went."""

    waiting: deque[Pair]
    play: Play
    tell: Callable[[Arm, int, Record], None]
    hears: Connection
    running: dict[Connection, tuple[ForkProcess, Pair]] = field(default_factory=dict)
    failed: Pair | None = None
    died: str = ""

    def begin(self, context: multiprocessing.context.ForkContext) -> bool:
        """Begin the next pair. False if the system gives no process for it."""
        pair = self.waiting.popleft()
        news, sends = context.Pipe(duplex=False)
        lane = context.Process(target=_run, args=(pair, self.play, sends, self.hears))
        with forking():
            try:
                lane.start()
            except OSError:
                self.waiting.appendleft(pair)
                news.close()
                sends.close()
                return False
            self.running[news] = lane, pair
        # The lane alone holds this end, so that its end is heard.
        sends.close()
        return True

    def hear(self) -> None:
        """Tell what came from the lanes, and note which have ended."""
        for news in connection.wait(list(self.running), timeout=_BEAT):
            assert isinstance(news, Connection)
            _, (arm, seed) = self.running[news]
            try:
                record = json.loads(news.recv_bytes())
            except (EOFError, OSError):
                self._end(news)
                continue
            self.tell(arm, seed, record)

    def _end(self, news: Connection) -> None:
        lane, (arm, seed) = self.running[news]
        lane.join()
        del self.running[news]
        news.close()
        # None under a launcher that ignores SIGCHLD. The records say how far the lane came. The parent plays
        # what is left.
        code = lane.exitcode
        if code is not None:
            lane.close()
        if code == _FAILED:
            self.failed = self.failed or (arm, seed)
        elif code not in (None, _FINISHED, _STOPPED):
            self.died = self.died or (
                f"The process of {arm.name} under seed {seed} {ending(code)}. Finished rounds are kept: run "
                "the same command again, and it goes on. If memory ran out, add --workers 1 to it."
            )

    def kill(self) -> None:
        for news, (lane, _) in self.running.items():
            lane.kill()
            lane.join()
            lane.close()
            news.close()
        self.running.clear()


def _run(pair: Pair, play: Play, sends: Connection, hears: Connection) -> NoReturn:
    """Play a pair in a forked process, and leave it. What was inherited is the parent's to close."""
    gc.freeze()
    silent()
    end_with_parent()
    code = _FAILED
    try:
        play(pair, lambda record: sends.send_bytes(json.dumps(record).encode()), Told(hears.poll))
        code = _FINISHED
    except Interrupted:
        code = _STOPPED
    finally:
        # By `os._exit`: whoever draws on the terminal in the parent may have held its lock at the fork.
        os._exit(code)
