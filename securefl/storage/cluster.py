"""Supervision of workers on a Ray cluster: start, messages, files, stop, and lost nodes. Only it imports ray.

A worker runs in a temporary folder of its node, which holds copies of some files of a folder here. With each
message it sends the files that have changed, and the message is yielded after they are on disk here. So the
machines need no shared folder. If a node or a worker is lost, its work begins again from the files here: what
a lost worker computed since its last message has reached nobody.

Ray's workers read each other's objects by pickle, and whoever reaches a cluster's ports can run code on it. A
cluster is one person's, and no message of another party is ever given to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import queue
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from securefl.core.errors import ConfigError, WorkerDied
from securefl.storage.files import write
from securefl.storage.processes import FAILED, SIGNALS, Ended, processors
from securefl.storage.read_only import serialized

_BEAT: Final = 0.1
"""The most seconds that the crew waits for a message before it looks for signals."""
_LOSSES: Final = 3
"""A work that loses so many workers without a message between is given up: it may be what ends them."""
_PROBE: Final = 120.0
"""Seconds that a node may take to say what is installed on it."""
_KEPT: Final = ("numpy", "torch")
"""Packages whose versions decide the bits of results."""
Name = TypeVar("Name")
Work = Callable[..., int | None]
"""The function that a worker runs. It takes the worker's `RemoteLine`, its folder and further arguments, and
returns the exit code, or None for 0. A module that all nodes have defines it."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """Files of a folder that a worker gets copies of, and that its own replace after each message.

    names: relative paths, in the order in which they are written. If this process is killed between two of
    them, those before are newer.
    """

    folder: Path
    names: tuple[str, ...]


class ClusterCrew(Generic[Name]):
    """A context for named workers on a Ray cluster. When it ends, also after an error, it ends all of them.

    A cluster that the context started ends with it. Another one goes on without these workers.

    Args:
        address: the cluster's. If it is None, RAY_ADDRESS names it; without either, a cluster of this machine
            alone is started.

    Raises:
        ConfigError: ray is not installed, the cluster cannot be reached, or a node has no securefl or other
            versions of it, of Python, or of the packages that results depend on.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = address or os.environ.get("RAY_ADDRESS")
        self._seats: dict[Any, _Seat[Name]] = {}
        self._idle: list[Any] = []
        self._stopped = self._connected = False
        self._ray: Any = None
        self.processors = 0

    def __enter__(self) -> ClusterCrew[Name]:
        self._ray = _imported()
        if not self._ray.is_initialized():
            _connect(self._ray, self._address)
            self._connected = True
        try:
            self.processors = _checked(self._ray)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for actor in [*self._seats, *self._idle]:
            self._ray.kill(actor)
        self._seats.clear()
        self._idle.clear()
        if self._connected:
            with _own_handlers():
                self._ray.shutdown()

    @property
    def running(self) -> list[Name]:
        """The names of the workers that have not ended."""
        return [seat.name for seat in self._seats.values()]

    def share(self, thing: object) -> Any:
        """Put an object into the cluster's memory. Returns a reference, for which workers get the object."""
        return self._ray.put(thing)

    def start(self, name: Name, work: Work, copied: Copied, *given: Any) -> bool:
        """Start a worker that calls `work` with its line, its folder and the `given` arguments."""
        self._begin(_Seat(name, work, copied, given))
        return True

    def _begin(self, seat: _Seat[Name]) -> None:
        actor = self._idle.pop() if self._idle else self._hired()
        files = contents(seat.copied.folder, seat.copied.names)
        seat.end = actor.run.remote(seat.work, seat.copied.names, files, *seat.given)
        seat.news = actor.hear.remote()
        self._seats[actor] = seat
        if self._stopped:
            actor.stop.remote()

    def _hired(self) -> Any:
        # No restart by Ray: the new worker needs the files that are here by then.
        hire = self._ray.remote(num_cpus=1, max_restarts=0, max_concurrency=3)(_Worker)
        return hire.remote(stamp())

    def stop(self) -> None:
        """Ask all workers to stop. A second call does nothing."""
        if not self._stopped:
            self._stopped = True
            for actor in self._seats:
                actor.stop.remote()

    def hear(self) -> Iterator[tuple[Name, Any]]:
        """Yield messages, and `Ended` for each worker that has ended. Wait a tenth of a second at most.

        Raises WorkerDied if the cluster has no processor left.
        """
        while self._idle:  # no work was begun on them since the last call: others may wait for their place
            self._ray.kill(self._idle.pop())
        owners = {ref: actor for actor, seat in self._seats.items() for ref in seat.awaited}
        ready, _ = self._ray.wait(list(owners), timeout=_BEAT)
        if not ready and not _nodes(self._ray):
            raise WorkerDied(
                "The Ray cluster has no node with a processor left. Finished rounds are kept: run the same "
                "command again when it has."
            )
        for ref in ready:
            yield from self._heard(owners[ref], ref)

    def _heard(self, actor: Any, ref: Any) -> Iterator[tuple[Name, Any]]:
        seat = self._seats[actor]
        errors = self._ray.exceptions
        try:
            found = self._ray.get(ref)
        except errors.RayTaskError as error:
            # The work never began: an error in it comes as news.
            yield self._over(actor, Ended(1, f"could not begin: {_first_line(error)}"))
        except errors.RayError as error:
            yield from self._lost(actor, _first_line(error))
        else:
            if ref == seat.end:  # its last news may still be on the way
                seat.end = None
                return
            files, news = found
            if news is None:
                yield self._over(actor, Ended(files))
                return
            seat.news = actor.hear.remote()
            if files:  # a new worker tells old rounds again, which change none
                seat.losses = 0
            replace_files(seat.copied, files)
            yield seat.name, json.loads(news)

    def _over(self, actor: Any, ended: Ended) -> tuple[Name, Ended]:
        seat = self._seats.pop(actor)
        self._idle.append(actor)
        return seat.name, ended

    def _lost(self, actor: Any, why: str) -> Iterator[tuple[Name, Any]]:
        """Begin a lost worker's work again, unless it lost too many or was asked to stop."""
        seat = self._seats.pop(actor)
        self._ray.kill(actor)
        seat.losses += 1
        if self._stopped:
            yield seat.name, Ended(None)
        elif seat.losses >= _LOSSES:
            yield (
                seat.name,
                Ended(1, f"was lost {_LOSSES} times without a finished round between ({why})"),
            )
        else:
            self._begin(seat)


@dataclass(eq=False)
class _Seat(Generic[Name]):
    """A work on a worker. news, end: references to its next message and to its end, which are awaited."""

    name: Name
    work: Work
    copied: Copied
    given: tuple[Any, ...]
    news: Any = None
    end: Any = None
    losses: int = 0

    @property
    def awaited(self) -> list[Any]:
        return [ref for ref in (self.news, self.end) if ref is not None]


@dataclass(frozen=True)
class RemoteLine:
    """A worker's connection to the process that started it, as `processes.Line`."""

    tell: Callable[[Any], None]
    stopping: Callable[[], bool]


class _Worker:
    """The object of a worker process: one thread runs the work, another one waits for its next message."""

    def __init__(self, expected: Mapping[str, str]) -> None:
        if (told := _difference(expected, stamp())) is not None:  # a node that came after the check
            raise ConfigError(f"Expected {told[0]} on this node too, got {told[1]}.")
        # One message at most waits here, so that a work does not run ahead of what is on disk.
        self._news: queue.Queue[tuple[Any, str | None]] = queue.Queue(maxsize=1)
        self._stop = threading.Event()

    def run(self, work: Work, names: Sequence[str], files: Mapping[str, bytes], *given: Any) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="securefl-") as place:
                copied = Copied(folder=Path(place), names=tuple(names))
                replace_files(copied, files)
                line = RemoteLine(_Sender(copied, dict(files), self._news.put), self._stop.is_set)
                code = work(line, copied.folder, *given) or 0
        except Exception:  # the process that asked for the work does it again, and raises the error there
            code = FAILED
        self._news.put((code, None))

    def hear(self) -> tuple[Any, str | None]:
        """The next message with the files that have changed; (exit code, None) at the end."""
        return self._news.get()

    def stop(self) -> None:
        self._stop.set()


@dataclass
class _Sender:
    """Sends a message that JSON can hold, with the files that have changed since the last one."""

    copied: Copied
    sent: dict[str, bytes]
    put: Callable[[tuple[Any, str | None]], None] = field(repr=False)

    def __call__(self, news: Any) -> None:
        now = contents(self.copied.folder, self.copied.names)
        changed = {name: own for name, own in now.items() if self.sent.get(name) != own}
        self.sent |= changed
        self.put((changed, json.dumps(news)))


def contents(folder: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The contents of those files of a folder that exist. No other process may write into them."""
    there = [folder / name for name in names]
    return {
        name: serialized(path) if path.suffix == ".sqlite" else path.read_bytes()
        for name, path in zip(names, there, strict=True)
        if path.exists()
    }


def replace_files(copied: Copied, files: Mapping[str, bytes]) -> None:
    """Write these files in the order of `copied.names`, each durably and whole."""
    for name in copied.names:
        if name in files:
            (copied.folder / name).parent.mkdir(parents=True, exist_ok=True)
            write(copied.folder / name, files[name], secret=True)


# Nodes ---------------------------------------------------------------------------------------


def stamp() -> dict[str, str]:
    """The versions of this process that results depend on: Python's, securefl's, and of some packages.

    securefl's has a digest of its source, since two states of a working tree have the same number.
    """
    home = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder, inner, names in sorted(os.walk(home, followlinks=True)):
        inner.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                path = Path(folder) / name
                digest.update(str(path.relative_to(home)).encode() + b"\0" + path.read_bytes())
    own = f"{version('securefl')} (source {digest.hexdigest()[:12]})"
    versions = {name: version(name) for name in _KEPT}
    return {"securefl": own, "Python": platform.python_version(), **versions}


def _difference(expected: Mapping[str, str], found: Mapping[str, str]) -> tuple[str, str] | None:
    for name, own in expected.items():
        if found.get(name) != own:
            return f"{name} {own}", f"{name} {found.get(name)}"
    return None


def _asking() -> Callable[[], dict[str, str]]:
    """A function that a node without securefl can run too: it is sent by value, and not by its name."""

    def ask() -> dict[str, str]:
        try:
            from importlib import import_module

            found: dict[str, str] = import_module("securefl.storage.cluster").stamp()
        except Exception as error:  # an environment that is broken in any way
            return {"error": f"{type(error).__name__}: {error}"}
        return found

    return ask


def _nodes(ray: Any) -> list[Any]:
    """The nodes that have processors."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]


def _checked(ray: Any) -> int:
    """The number of processors of the cluster. Raises ConfigError if a node is not as this machine."""
    nodes = _nodes(ray)
    if not nodes:
        raise ConfigError("[runtime] Expected a Ray cluster with a processor, got one without. Add a node.")
    answers = {node["NodeID"]: _asked(ray, node["NodeID"]) for node in nodes}
    ours = stamp()
    for node in nodes:
        where = f"{node['NodeManagerAddress']} (Ray's node {node['NodeID'][:12]})"
        try:
            found = ray.get(answers[node["NodeID"]], timeout=_PROBE)
        except ray.exceptions.RayError as error:
            raise ConfigError(
                f"[runtime] Expected an answer of node {where} of the Ray cluster, got {_first_line(error)}. "
                "Mend the node, or take it out of the cluster."
            ) from None
        if "error" in found:
            raise ConfigError(
                f"[runtime] Expected securefl on every node of the Ray cluster, got none on node {where} "
                f"({found['error']}). Install the same version there: pip install 'securefl[ray]'"
            )
        if (told := _difference(ours, found)) is not None:
            raise ConfigError(
                f"[runtime] Expected {told[0]} on every node of the Ray cluster, as on this machine, got "
                f"{told[1]} on node {where}. Install the same version there: results and accounting follow "
                "from it."
            )
    return int(sum(node["Resources"]["CPU"] for node in nodes))


def _asked(ray: Any, node: str) -> Any:
    there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    return ray.remote(num_cpus=0, max_retries=1, scheduling_strategy=there)(_asking()).remote()


# The connection ------------------------------------------------------------------------------


def _imported() -> Any:
    """The package ray. Raises ConfigError if it is not installed."""
    # Before its import: otherwise Ray reports its use to its makers, and hides GPUs with a warning.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise ConfigError(
            f'[runtime] Expected the package ray with backend = "ray", got none ({error}). Install it: '
            "pip install 'securefl[ray]'"
        ) from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": "ERROR"}
    with _own_handlers():
        if address is None:
            ray.init(address="local", num_cpus=processors(), include_dashboard=False, **quiet)
            return
        try:
            ray.init(address=address, **quiet)
        # ConnectionError, RuntimeError for another version of Ray, ValueError for a text that is no address,
        # and errors that only Ray's own modules name.
        except Exception as error:
            raise ConfigError(
                f"[runtime] Expected a Ray cluster at {address!r}, got {_first_line(error)} Start one with "
                "`ray start --head`, or leave the address out (also RAY_ADDRESS) to use this machine alone."
            ) from None


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Keep this process's signal handlers: Ray sets its own when it connects."""
    here = threading.current_thread() is threading.main_thread()
    kept = {number: signal.getsignal(number) for number in SIGNALS} if here else {}
    try:
        yield
    finally:
        for number, handler in kept.items():
            if handler is not None:
                signal.signal(number, handler)


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].strip()[:300]
