"""Runs arms and seeds in parallel, each pair in a lane of its own: a forked process.

A lane writes the same files as a single run, and sends the record of each finished round to this process. At
its end this process gets an exit code and nothing else, since every round is on disk here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from securefl.core.errors import WorkerDied
from securefl.storage.processes import FAILED, Ended, Line, Supervisor, ending
from securefl.study.config import Arm
from securefl.study.interruption import Interrupted, Stop, Told

Record = Mapping[str, Any]
Pair = tuple[Arm, int]
Play = Callable[[Pair, Callable[[Record], None], Stop], object]
"""Runs an arm under a seed to its end: (both, callback for every record, object that asks to stop)."""
FINISHED, STOPPED = 0, 3
"""Exit codes of lanes, beside `FAILED`. Any other code is of a lane that was ended from outside."""
_NO_PROCESS: Final = (
    "The system refused to start a process for an arm. Finished rounds are kept: run the same command with "
    "--workers 1, which needs no process."
)


def in_lanes(
    pairs: Sequence[Pair], most: int, play: Play, tell: Callable[[Arm, int, Record], None], stop: Stop
) -> list[Pair]:
    """Run arms under seeds side by side. A lane inherits the memory of this process, and with it its worlds.

    After a request to `stop`, or if a lane fails or is ended from outside, every other lane finishes its
    round, and no new round begins. Any other interruption ends all lanes at once.

    Args:
        pairs: each an arm and a seed.
        most: the number of lanes at a time.
        play: runs a pair.
        tell: gets the record of every round, for each lane in the order of its rounds.
        stop: asked all the time.

    Returns:
        The pairs that ended in an error.

    Raises:
        Interrupted: a request to stop came.
        WorkerDied: a lane was ended from outside, or the system starts no process.
    """
    waiting, failed, died, stopping = deque(range(len(pairs))), list[Pair](), "", False
    # Every round is durable, so a lane can be killed at any point. After this no lane is left.
    with Supervisor[int]("fork") as forks, stop.finishing("this round"):
        while forks.running or (waiting and not stopping):
            if not stopping and (failed or died or _asked(stop)):
                forks.stop()
                stopping = True
            while waiting and len(forks.running) < most and not stopping:
                if forks.start(waiting[0], _forked, pairs[waiting[0]], play):
                    waiting.popleft()
                else:
                    most = len(forks.running)
            if not most:
                raise WorkerDied(_NO_PROCESS)
            for place, news in forks.hear():
                arm, seed = pairs[place]
                if not isinstance(news, Ended):
                    tell(arm, seed, news)
                elif news.code == FAILED:
                    failed.append((arm, seed))
                # Without an exit code (None) the records show how far the lane came. This process runs the
                # rest.
                elif news.code not in (None, FINISHED, STOPPED):
                    died = died or f"The process of {arm.name} under seed {seed} {ending(news.code)}"
    stop.check()
    if died:
        raise WorkerDied(
            f"{died}. Finished rounds are kept: run the same command again, which continues the run. If "
            "memory ran out, add --workers 1."
        )
    return failed


def _forked(line: Line, pair: Pair, play: Play) -> int:
    """Run a lane in a forked process. The parent closes the inherited files."""
    try:
        play(pair, line.tell, Told(line.stopping))
    except Interrupted:
        return STOPPED
    return FINISHED


def _asked(stop: Stop) -> bool:
    try:
        stop.check()
    except Interrupted:
        return True
    return False
