"""Lanes on a Ray cluster: each plays an arm under a seed from copies of its files, which it sends back.

The world of a seed is put into the cluster's memory once, and all lanes read it there. A lane's checkpoint,
ledger and journal are made here, before it begins, and are replaced by its own after each round. So a lane
that was lost with its node goes on from its last round that is on disk here, with the same ledger. A shared
ledger stays here: the caller reserves the lanes in it first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from securefl.core.errors import SecureFLError
from securefl.storage.cluster import ClusterCrew, Copied, RemoteLine
from securefl.storage.processes import FAILED, Ended
from securefl.study.arm import FILES, arm_folder, made_folder, opened
from securefl.study.composition import composition
from securefl.study.config import Brought, RuntimeSection, Study
from securefl.study.interruption import Interrupted, Told
from securefl.study.lanes import FINISHED, STOPPED, Lane, Record
from securefl.study.run import run_arm
from securefl.study.seeded import World
from securefl.study.world import fitted
from securefl.training import single_thread
from securefl.training.devices import Hardware


class OnCluster:
    """A crew whose lanes run on a Ray cluster (see `lanes.Crew`).

    Args:
        runtime: names the cluster, and the most lanes at a time.
        world_of: the world of a lane's data. Lanes for which it returns the same object share it in the
            cluster's memory.

    Raises the errors of `ClusterCrew` when it is entered.
    """

    def __init__(self, runtime: RuntimeSection, world_of: Callable[[Lane], World]) -> None:
        self._runtime, self._world_of = runtime, world_of
        self._crew = ClusterCrew[Lane](runtime.address)
        self._sent: WeakKeyDictionary[World, Any] = WeakKeyDictionary()
        self._news: deque[tuple[Lane, Any]] = deque()
        self.most = 0

    def __enter__(self) -> OnCluster:
        self._crew.__enter__()
        self.most = min(self._runtime.workers or self._crew.processors, self._crew.processors)
        return self

    def __exit__(self, *error: object) -> None:
        self._crew.__exit__(*error)

    @property
    def running(self) -> Sequence[Lane]:
        unbegun = [lane for lane, news in self._news if isinstance(news, Ended)]
        return [*self._crew.running, *unbegun]

    def start(self, lane: Lane) -> bool:
        try:
            world = self._world_of(lane)
            records = _begin(lane, fitted(world, lane.study))
        except SecureFLError:  # it stops no other lane; the caller does it again, and gets the error there
            self._news.append((lane, Ended(FAILED)))
            return True
        self._news.extend((lane, record) for record in records)
        home = arm_folder(lane.folder, lane.arm, lane.seed).relative_to(lane.folder)
        copied = Copied(folder=lane.folder, names=tuple(str(home / name) for name in FILES))
        if world not in self._sent:
            self._sent[world] = self._crew.share(_sendable(world))
        place = lane.study.arms.index(lane.arm)
        given = _alone(lane.study), place, len(records), self._sent[world]
        return self._crew.start(lane, _play, copied, *given)

    def stop(self) -> None:
        self._crew.stop()

    def hear(self) -> Iterator[tuple[Lane, Any]]:
        while self._news:
            yield self._news.popleft()
        if self._crew.running:
            yield from self._crew.hear()


def _begin(lane: Lane, world: World) -> Sequence[Record]:
    """Make the lane's files, or check those that there are. Returns the records of its finished rounds.

    A lost worker's first round must find the files bound to each other. They are closed at the end, so each
    is whole without a log.
    """
    _, plan = composition(lane.study, lane.arm, world)
    home = made_folder(lane.folder, lane.arm, lane.seed)
    with opened(lane.study, lane.arm, world, plan, home) as saved:
        saved.checkpoint.nonce()
        return saved.records


def _sendable(world: World) -> World:
    """The world without this machine's device, which writes into the run folder."""
    return replace(world, problem=replace(world.problem, hardware=Hardware()))


def _alone(study: Study) -> Study:
    """The study as a worker needs it: for one process, and without objects that are in the world already."""
    return replace(study, runtime=study.runtime.here, brought=Brought())


def _play(line: RemoteLine, folder: Path, study: Study, place: int, known: int, world: World) -> int:
    """Play a lane on a worker, in a folder of its own. known: the number of rounds that were told before."""
    single_thread()

    def tell(record: Record) -> None:
        if record["round"] > known:
            line.tell(record)

    stop = Told(line.stopping)
    try:
        run_arm(study, study.arms[place], fitted(world, study), folder, tell, stop=stop, reserved=True)
    except Interrupted:
        return STOPPED
    return FINISHED
