"""Arms and seeds side by side: each in a process of its own, forked from the study's.

A lane inherits its world, writes its own files as a run alone does, and sends the record of each finished
round. Its end is its exit code; nothing else comes back, since every round is on disk.
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
"""Plays a pair to its end: (pair, what is told every record, what asks to stop)."""
_FINISHED, _STOPPED = 0, 3
"""Exit codes of lanes, beside `FAILED`. Any other is of one that was ended from outside."""
_NO_PROCESS: Final = (
    "The system gave no process to play an arm in. Finished rounds are kept: run the same command with "
    "--workers 1, which needs none."
)


def side_by_side(
    pairs: Sequence[Pair], play: Play, tell: Callable[[Arm, int, Record], None], *, lanes: int, stop: Stop
) -> Pair | None:
    """Play all pairs, some at a time. Returns one that ended in an error, or None.

    tell: called here for every record, each pair's in their order.
    After a request to `stop`, or an error in one lane, every other finishes its round, and nothing new
    begins. Any other interruption ends the lanes at once. Raises Interrupted after a request to stop, and
    WorkerDied if a lane was ended from outside.
    """
    waiting, stopping = deque(pairs), False
    # Every round is durable, so that a lane can be killed anywhere. None is left after a whole shift.
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
    """How it went."""

    tell: Callable[[Arm, int, Record], None]
    failed: Pair | None = None
    died: str = ""

    def hear(self, pair: Pair, news: Any) -> None:
        """Tell a record that came from a lane, or note how the lane ended."""
        arm, seed = pair
        if not isinstance(news, Ended):
            self.tell(arm, seed, news)
        elif news.code == FAILED:
            self.failed = self.failed or pair
        # Where nobody learns the code, the records say how far the lane came. The parent plays what is left.
        elif news.code not in (None, _FINISHED, _STOPPED):
            self.died = self.died or (
                f"The process of {arm.name} under seed {seed} {ending(news.code)}. Finished rounds are kept: "
                "run the same command again, and it goes on. If memory ran out, add --workers 1 to it."
            )


def _run(line: Line, pair: Pair, play: Play) -> int:
    """Play a pair in a forked process. What was inherited is the parent's to close."""
    try:
        play(pair, line.tell, Told(line.stopping))
    except Interrupted:
        return _STOPPED
    return _FINISHED
