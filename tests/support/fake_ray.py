"""A double of the package ray: its actors are objects of this process, and their calls are threads.

It has what `storage/cluster` calls, so that tests can have a cluster, and lose parts of it, without starting
one. `tests/e2e/test_ray.py` holds the same behaviour against Ray itself.
"""

from __future__ import annotations

import copy
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from securefl.storage import cluster


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class ActorDiedError(RayError):
    pass


class Ref:
    """A result that is there, or will be."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def give(self, value: Any = None, error: BaseException | None = None) -> None:
        if not self._done.is_set():
            self._value, self._error = value, error
            self._done.set()

    @property
    def ready(self) -> bool:
        return self._done.is_set()

    def get(self, timeout: float | None) -> Any:
        assert self._done.wait(60 if timeout is None else timeout), "no answer came"
        if self._error is not None:
            raise self._error
        return self._value


class Actor:
    """An object whose methods run in threads: `actor.method.remote(...)`."""

    def __init__(self, made: Callable[[], Any]) -> None:
        self.lost, self._why = False, ""
        self.doing: Sequence[Any] = ()
        self.own = made()
        self._pending: list[Ref] = []
        self._thread: threading.Thread | None = None

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self._call(name, given))

    def _call(self, name: str, given: Sequence[Any]) -> Ref:
        ref = Ref()
        self._pending.append(ref)
        if self.lost:
            ref.give(error=ActorDiedError(self._why))
            return ref
        # A worker reads its own copy, as a process does: lanes must not load values into one model at a time.
        known = [copy.deepcopy(one.get(None)) if isinstance(one, Ref) else one for one in given]

        def run() -> None:
            if name == "run":
                self.doing = given
                self._thread = threading.current_thread()
            try:
                ref.give(getattr(self.own, name)(*known))
            except Exception as error:
                ref.give(error=RayTaskError(str(error)))

        threading.Thread(target=run, daemon=True, name=f"worker {name}").start()
        return ref

    def busy_here(self) -> bool:
        """Whether this thread runs the actor's work."""
        return not self.lost and self._thread is threading.current_thread()

    def lose(self, why: str = "The actor died unexpectedly before finishing this task.") -> None:
        """What Ray tells of an actor whose process or node has ended."""
        if self.lost:
            return
        self.lost, self._why = True, why
        for ref in self._pending:
            ref.give(error=ActorDiedError(why))
        # Its thread lives on, as no process does: let it come to its end, unheard.
        self.own.stop()
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self) -> None:
        if any(thread.name == "worker run" for thread in threading.enumerate()):
            while self.own.hear()[1] is not None:
                pass


class FakeRay(ModuleType):
    """The module `ray` with a cluster of these nodes. answers: what a node says of its packages."""

    RayError = RayError

    def __init__(self, nodes: int = 2) -> None:
        super().__init__("ray")
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self.alive = [f"{place:04d}" + "f" * 20 for place in range(nodes)]
        self.answers: dict[str, Any] = {}
        self.actors: list[Actor] = []
        self.begun: Mapping[str, Any] | None = None
        self.refused: Exception | None = None
        self.puts = 0
        self.on_init: Callable[[], None] = lambda: None

    def is_initialized(self) -> bool:
        return self.begun is not None

    def init(self, **options: Any) -> None:
        self.on_init()
        if self.refused is not None:
            raise self.refused
        self.begun = options

    def shutdown(self) -> None:
        self.begun = None

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "NodeID": node, "NodeManagerAddress": "10.0.0.9", "Resources": {"CPU": 1.0}}
            for node in self.alive
        ]

    def put(self, thing: Any) -> Ref:
        self.puts += 1
        ref = Ref()
        ref.give(thing)
        return ref

    def get(self, ref: Ref, timeout: float | None = None) -> Any:
        return ref.get(timeout)

    def wait(self, refs: Sequence[Ref], timeout: float) -> tuple[list[Ref], list[Ref]]:
        end = time.monotonic() + timeout
        while not (ready := [ref for ref in refs if ref.ready]) and time.monotonic() < end:
            time.sleep(0.002)
        return ready[:1], [ref for ref in refs if ref not in ready[:1]]

    def kill(self, actor: Actor) -> None:
        actor.lose()

    def remote(self, **options: Any) -> Callable[[Any], Any]:
        def made(thing: Any) -> Any:
            if isinstance(thing, type):
                return SimpleNamespace(remote=lambda *given: self._actor(lambda: thing(*given)))
            node = options["scheduling_strategy"].node_id
            answer = self.answers.get(node, thing)
            return SimpleNamespace(remote=lambda: _told(answer))

        return made

    def _actor(self, made: Callable[[], Any]) -> Actor:
        self.actors.append(Actor(made))
        return self.actors[-1]


def _told(answer: Any) -> Ref:
    ref = Ref()
    if isinstance(answer, Exception):
        ref.give(error=answer)
    else:
        ref.give(answer() if callable(answer) else answer)
    return ref


def installed(monkeypatch: pytest.MonkeyPatch, nodes: int = 2) -> FakeRay:
    """A cluster of so many nodes with a processor each, which `import ray` gives from now on."""
    ray = FakeRay(nodes)
    strategies = ModuleType("ray.util.scheduling_strategies")
    strategies.NodeAffinitySchedulingStrategy = SimpleNamespace  # type: ignore[attr-defined]
    util = ModuleType("ray.util")
    util.scheduling_strategies = strategies  # type: ignore[attr-defined]
    ray.util = util  # type: ignore[attr-defined]
    for name, module in (("ray", ray), ("ray.util", util), ("ray.util.scheduling_strategies", strategies)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "stamp", cache(cluster.stamp))  # every worker reads all sources for it
    return ray
