"""A study's parties behind Flower messages: residents, relays and a Grid double, all of them in this process.

Their randomness is given, so that a run can be compared bit for bit with one in which messages are delivered
by the embedded engine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from flwr.app import Message

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import State, run_round
from securefl.algorithm.queries import Answers, ClientState
from securefl.core.agreement import Identity
from securefl.core.keys import SecretKey
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.streams import stream
from securefl.core.wire import Header
from securefl.deployment.engine import RemoteEngine, ServerSide
from securefl.deployment.messages import SignedTurn, Turn, decode_envelope, encode_envelope
from securefl.deployment.party import PartySession
from securefl.deployment.party_setup import data_of
from securefl.deployment.roster import PinnedRoster
from securefl.engine.engine import Engine
from securefl.engine.inprocess import InProcess
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.flower.exchange import GridExchange, relay
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord
from support.grid_double import GridDouble
from support.party_folders import made, server_of
from support.residents import Files

NONCE = bytes(32)


def constant(name: str) -> Callable[[int], bytes]:
    """A party's randomness."""
    return lambda count: hashlib.shake_256(name.encode()).digest(count)


@dataclass
class Parties:
    """All parties of a study's first arm, by its text, and what each has on its disk.

    Attributes:
        survivors: by round, whoever stayed to the end of its sums.
        relay: how a node answers a message; in place of `relay` in tests of other code on a node.
    """

    text: str
    deadline: float = 5.0
    relay: Callable[[Message, str, Callable[[bytes], bytes]], Message] = relay
    files: dict[str, Files] = field(default_factory=dict)
    residents: dict[str, PartySession] = field(default_factory=dict)
    survivors: dict[int, set[tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.made = made(self.text)
        clients = [client_name(k) for k in range(self.made.world.problem.clients)]
        self.others = [*clients, *(name for name in self.made.names if name != SERVER)]
        self.keys = {
            name: Identity.of(name, SecretKey(constant(f"key of {name}")(32)))
            for name in (*self.others, SERVER)
        }
        self.pinned = PinnedRoster({name: own.member() for name, own in self.keys.items()})
        self.session = self.pinned.session(self.made.plan, NONCE)
        for name in self.keys:
            self.files[name] = Files(Ledger(None, self.made.plan.terms()), Journal(random=constant(name)))
        self.nodes = {name: 10 + number for number, name in enumerate(self.others)}

    # Parties ------------------------------------------------------------------------------------------

    def party(
        self, name: str, session: bytes, kept: Mapping[int, ClientState]
    ) -> ClientParty | KeyHolderParty:
        files, own = self.files[name], self.keys[name]
        if name == KEY_HOLDER:
            return self.made.key_holder(OwnRecord(name, files.journal, own))
        number = self.others.index(name)
        has = data_of(self.made, number, ""), files.ledger, files.journal, own
        return self.made.client(number, *has, session, kept, lambda session: "")

    def start(self, name: str) -> None:
        """Start a party's process, again, with the files that it has."""
        of = self.made.plan, self.made.work, self.pinned
        self.residents[name] = self.files[name].started(name, *of, partial(self.party, name))

    def turned(
        self, name: str, frame: bytes, change: Callable[[Turn], Turn], *, signed: bool = True
    ) -> bytes:
        """A turn to this party, changed; by its server, which signs it, or by a relay, which cannot."""
        own = decode_envelope(frame, SignedTurn, sender=SERVER)
        turn = change(decode_envelope(own.turn, Turn, sender=SERVER))
        if not signed:
            return encode_envelope(replace(own, turn=encode_envelope(turn)))
        place = {"session": self.session, "party": name, "visit": own.visit, "number": own.number}
        return encode_envelope(SignedTurn.of(turn, **place, server=self.keys[SERVER]))  # type: ignore[arg-type]

    def why(self, name: str) -> str:
        return self.files[name].why()

    # Engines ------------------------------------------------------------------------------------------

    def together(self) -> InProcess:
        """The same parties, whose messages the embedded engine delivers."""
        clients = [self.party(name, self.session, {}) for name in self.others if name != KEY_HOLDER]
        holder = self.party(KEY_HOLDER, self.session, {}) if KEY_HOLDER in self.others else None
        return InProcess(server_of(self.made, self._record), clients, holder)  # type: ignore[arg-type]

    @property
    def _record(self) -> OwnRecord:
        return OwnRecord(SERVER, self.files[SERVER].journal, self.keys[SERVER])

    @cached_property
    def grid(self) -> GridDouble:
        for name in self.others:
            self.start(name)
        return GridDouble({node: partial(self._node, name) for name, node in self.nodes.items()})

    def _node(self, name: str, message: Message) -> Message:
        return self.relay(message, name, lambda request: self.residents[name].answer(request))

    def apart(self) -> RemoteEngine:
        """The server over the Grid double."""
        made, grid = self.made, self.grid
        exchange = GridExchange(grid, self.nodes, deadline=self.deadline, clock=grid.clock, pause=grid.pause)
        return RemoteEngine(
            ServerSide(plan=made.plan, pinned=self.pinned, record=self._record, study="tiny"),
            made.spec,
            made.work,
            exchange,
            server=server_of(made, self._record, self.files[SERVER].ledger),
            nonce=NONCE,
        )

    def played(self, engine: Engine, between: Callable[[int], Any] = lambda number: None) -> list[State]:
        """The state after every round. `between` is called before each."""
        made, states = self.made, []
        state = made.algorithm.start()
        for number in range(1, made.study.study.rounds + 1):
            between(number)

            def query(question: Any, stage: int, number: int = number) -> Answers:
                answers, _ = engine.query(question, Header(self.session, number, 0, stage))
                if question.sums:
                    self.survivors.setdefault(number, set()).add(answers.survivors)
                return answers

            rng = stream(made.world.seed, "selection", number)
            state = run_round(made.algorithm, state, made.world.population(), number, rng, query).state
            states.append(state)
        return states
