"""Runs arms and seeds in parallel: each lane is a process of its own, forked from the study's.

A lane inherits its world, writes the same files as a single run, and sends the record of each finished round
to its parent. At its end the parent gets an exit code and nothing else, since every round is on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from securefl.core.errors import WorkerDied
from securefl.storage.processes import FAILED, Ended, Line, Supervisor, ending
from securefl.study.config import Arm
from securefl.study.interruption import Interrupted, Stop, Told

Pair = tuple[Arm, int]
"""An arm and a seed."""
Record = Mapping[str, Any]
Play = Callable[[Pair, Callable[[Record], None], Stop], None]
"""Runs a pair to its end: (pair, callback for every record, object that asks to stop)."""
_FINISHED, _STOPPED = 0, 3
"""Exit codes of lanes, beside `FAILED`. Any other code is of a lane that was ended from outside."""
_NO_PROCESS: Final = (
    "The system refused to start a process for an arm. Finished rounds are kept: run the same command with "
    "--workers 1, which needs no process."
)


def side_by_side(
    pairs: Sequence[Pair], play: Play, tell: Callable[[Arm, int, Record], None], *, lanes: int, stop: Stop
) -> Pair | None:
    """Run all pairs, `lanes` of them at a time. Returns a pair that ended in an error, or None.

    tell: called in this process for every record, for each pair in the order of its rounds.
    After a request to `stop`, or an error in one lane, every other lane finishes its round, and no new round
    begins. Any other interruption ends the lanes at once. Raises Interrupted after a request to stop, and
    WorkerDied if a lane was ended from outside.
    """
    waiting, stopping = deque(pairs), False
    # Every round is durable, so a lane can be killed at any point. After the loop no lane is left.
    with Supervisor[Pair]("fork") as crew, stop.finishing("this round"):
        shift = _Shift(tell)
        while crew.running or (waiting and not stopping):
            if not stopping and (shift.failed or shift.died or _asked(stop)):
                crew.stop()
                stopping = True
            while waiting and len(crew.running) < lanes and not stopping:
                if crew.start(waiting[0], _run, waiting[0], play):
                    waiting.popleft()
                else:
                    lanes = len(crew.running)
            if not lanes:
                raise WorkerDied(_NO_PROCESS)
            for pair, news in crew.hear():
                shift.hear(pair, news)
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
    """The outcome so far: a pair that failed, and a message if a lane was ended from outside."""

    tell: Callable[[Arm, int, Record], None]
    failed: Pair | None = None
    died: str = ""

    def hear(self, pair: Pair, news: Any) -> None:
        """Pass on a record that came from a lane, or note how the lane ended."""
        arm, seed = pair
        if not isinstance(news, Ended):
            self.tell(arm, seed, news)
        elif news.code == FAILED:
            self.failed = self.failed or pair
        # Without an exit code (None) the records show how far the lane came. The parent runs what is left.
        elif news.code not in (None, _FINISHED, _STOPPED):
            self.died = self.died or (
                f"The process of {arm.name} under seed {seed} {ending(news.code)}. Finished rounds are kept: "
                "run the same command again, which continues the run. If memory ran out, add --workers 1."
            )


def _run(line: Line, pair: Pair, play: Play) -> int:
    """Run a pair in a forked process. The parent closes the inherited files."""
    try:
        play(pair, line.tell, Told(line.stopping))
    except Interrupted:
        return _STOPPED
    return _FINISHED
