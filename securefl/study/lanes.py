"""Runs arms and seeds in parallel, each in a lane of its own: a forked process.

A lane writes the same files as a single run, and sends the record of each finished round to this process. At
its end this process gets an exit code and nothing else, since every round is on disk here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from securefl.core.errors import WorkerDied
from securefl.storage.processes import FAILED, Ended, Line, Supervisor, ending
from securefl.study.config import Arm, Study
from securefl.study.interruption import Interrupted, Stop, Told

Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Lane:
    """An arm of a study under one seed. folder: the run folder of the study."""

    study: Study
    folder: Path
    arm: Arm
    seed: int

    def __str__(self) -> str:
        return f"{self.arm.name} under seed {self.seed}"


Play = Callable[[Lane, Callable[[Record], None], Stop], None]
"""Runs a lane to its end: (lane, callback for every record, object that asks to stop)."""
FINISHED, STOPPED = 0, 3
"""Exit codes of lanes, beside `FAILED`. Any other code is of a lane that was ended from outside."""
_NO_PROCESS: Final = (
    "The system refused to start a process for an arm. Finished rounds are kept: run the same command with "
    "--workers 1, which needs no process."
)


class Forks:
    """The processes that run lanes. The context ends them all, also after an error.

    A lane inherits the memory of this process, and with it its world. most: the number of lanes that run at a
    time.
    """

    def __init__(self, play: Play, most: int) -> None:
        self._play, self.most = play, most
        self._forks = Supervisor[Lane]("fork")

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *error: object) -> None:
        # Every round is durable, so a lane can be killed at any point. After this no lane is left.
        self._forks.__exit__(*error)

    @property
    def running(self) -> Sequence[Lane]:
        """The lanes that have not ended."""
        return self._forks.running

    def start(self, lane: Lane) -> bool:
        """Start a lane. Returns False if no further process can be had now."""
        return self._forks.start(lane, _forked, lane, self._play)

    def stop(self) -> None:
        """Ask all lanes to stop after their rounds. A second call does nothing."""
        self._forks.stop()

    def hear(self) -> Iterator[tuple[Lane, Any]]:
        """Yield records, and `Ended` for each lane that has ended. Wait a tenth of a second at most.

        A round is on disk in the lane's folder before its record is yielded.
        """
        return self._forks.hear()


def _forked(line: Line, lane: Lane, play: Play) -> int:
    """Run a lane in a forked process. The parent closes the inherited files."""
    try:
        play(lane, line.tell, Told(line.stopping))
    except Interrupted:
        return STOPPED
    return FINISHED


class Watch(Protocol):
    """An object that is notified of the progress of lanes."""

    def begun(self, lane: Lane) -> None: ...

    def told(self, lane: Lane, record: Record) -> None:
        """A round has finished. For each lane in the order of its rounds."""

    def ended(self, lane: Lane) -> None: ...


@dataclass(kw_only=True)
class Shift:
    """The outcome of lanes that ran side by side.

    failed: the lanes that ended in an error. died: for each lane that was ended from outside, a sentence.
    """

    failed: list[Lane] = field(default_factory=list)
    died: dict[Lane, str] = field(default_factory=dict)


def side_by_side(lanes: Sequence[Lane], crew: Forks, watch: Watch, *, stop: Stop) -> Shift:
    """Run all lanes, `crew.most` of them at a time. The caller has entered the crew.

    After a request to `stop`, or if a lane fails or is ended from outside, every other lane finishes its
    round, and no new round begins.
    Any other interruption is raised at once. Raises Interrupted after a request to stop, and WorkerDied if no
    worker can be had.
    """
    waiting, stopping, most, shift = deque(lanes), False, crew.most, Shift()
    with stop.finishing("this round"):
        while crew.running or (waiting and not stopping):
            if not stopping and (shift.failed or shift.died or _asked(stop)):
                crew.stop()
                stopping = True
            while waiting and len(crew.running) < most and not stopping:
                if crew.start(waiting[0]):
                    watch.begun(waiting.popleft())
                else:
                    most = len(crew.running)
            if not most:
                raise WorkerDied(_NO_PROCESS)
            for lane, news in crew.hear():
                _hear(lane, news, shift, watch)
    stop.check()
    return shift


def _asked(stop: Stop) -> bool:
    try:
        stop.check()
    except Interrupted:
        return True
    return False


def _hear(lane: Lane, news: Any, shift: Shift, watch: Watch) -> None:
    """Pass on a record that came from a lane, or note how the lane ended."""
    if not isinstance(news, Ended):
        watch.told(lane, news)
        return
    watch.ended(lane)
    if news.code == FAILED:
        shift.failed.append(lane)
    # Without an exit code (None) the records show how far the lane came. This process runs what is left.
    elif news.code not in (None, FINISHED, STOPPED):
        shift.died[lane] = (
            f"The process of {lane} {ending(news.code)}. Finished rounds are kept: "
            "run the same command again, which continues the run. If memory ran out, add --workers 1."
        )
