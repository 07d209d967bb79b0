"""A study of folders that a server coordinates: its parties are in this process, and come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from securefl.core.release import SERVER
from securefl.deployment import folder as folders
from securefl.deployment.coordinator import run_deployed
from securefl.deployment.party_setup import OwnData
from securefl.deployment.transport import SendAndReceive
from securefl.study.results import Results
from support.party_folders import CLEAR, made, names


@dataclass
class Clock:
    """A clock that only waiting moves. `when` is called after each wait with the seconds so far."""

    now: float = 0.0
    when: Callable[[float], None] = lambda seconds: None

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.when(self.now)


@dataclass
class Federation:
    """The parties of enrolled folders below `root`.

    Attributes:
        up: the parties whose processes run, with the function that answers a request.
        before: called with each request before it is sent; it may start or end parties.
        said: the lines for the person who runs the server.
        records: of the rounds, in the order in which they were told.
        shown: what a command over Flower was told of rounds.
        change: changes the records of a party when it starts.
    """

    root: Path
    study: str = CLEAR
    up: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    before: Callable[[Mapping[str, bytes]], None] = lambda requests: None
    said: list[str] = field(default_factory=list)
    change: Mapping[str, Callable[[OwnData], OwnData]] = field(default_factory=dict)
    records: list[Mapping[str, Any]] = field(default_factory=list)
    shown: list[Mapping[str, Any]] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    _stacks: dict[str, ExitStack] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All parties but the server."""
        return sorted(set(names(made(self.study))) - {SERVER})

    def start(self, *which: str) -> None:
        """Start the processes of these parties, by default of all."""
        for name in which or self.names:
            stack = self._stacks[name] = ExitStack()
            party = stack.enter_context(folders.opened(self.root / name))
            if name in self.change and party.data is not None:
                party = replace(party, data=self.change[name](party.data))
            self.up[name] = party.session().answer

    def stop(self, *which: str) -> None:
        """End the processes of these parties, by default of all."""
        for name in which or list(self.up):
            del self.up[name]
            self._stacks.pop(name).close()

    def exchange(self, requests: Mapping[str, bytes], entering: bool = False) -> dict[str, bytes]:
        self.before(requests)
        return {name: self.up[name](data) for name, data in requests.items() if name in self.up}

    def coordinate(
        self, out: Path, wait: float = 0.0, exchange: SendAndReceive | None = None, **options: Any
    ) -> tuple[Results, Path]:
        """Run the study of the server's folder. exchange: by default this object's own."""

        def tell(arm: Any, seed: int, record: Mapping[str, Any]) -> None:
            self.records.append(record)

        return run_deployed(
            self.root / SERVER,
            out,
            exchange or self.exchange,
            tell=tell,
            say=self.said.append,
            wait=wait,
            clock=lambda: self.clock.now,
            pause=self.clock.pause,
            **options,
        )

    @property
    def rounds(self) -> list[tuple[int, list[int]]]:
        """Each round that was told, and who is in its sum."""
        return [(record["round"], record["answered"]) for record in self.records]


def after(acts: Mapping[int, Callable[[], object]]) -> Callable[[Any, int, Mapping[str, Any]], None]:
    """Calls the function of each round's number after that round."""

    def fresh(arm: Any, seed: int, record: Mapping[str, Any]) -> None:
        acts.get(record["round"], lambda: None)()

    return fresh


@contextmanager
def federation(root: Path, study: str = CLEAR, **options: Any) -> Iterator[Federation]:
    """All parties of enrolled folders, started."""
    own = Federation(root, study, **options)
    try:
        own.start()
        yield own
    finally:
        own.stop()
