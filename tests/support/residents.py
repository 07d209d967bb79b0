"""Four residents and a server that knows them by a roster: the whole of a deployment, in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import ClientFunction
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, ClientState, CohortQuery, ValueSpec
from securefl.core.agreement import Identity
from securefl.core.errors import RemoteProtocolError
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header
from securefl.deployment.messages import Enter, SignedTurn, Turn, decode_envelope, encode_envelope
from securefl.deployment.party import PartySession
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.session_store import SessionStore
from securefl.deployment.transport import RemoteTransport
from securefl.engine.party.clients import ClientParty
from securefl.engine.party.key_holder import KeyHolderParty
from securefl.engine.server import ServerParty
from securefl.linear.scheme import LinearScheme
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord
from support.four_clients import ASK, CLIENTS, SENDS, given, records

WORK = bytes(32)
NAMES = tuple(client_name(k) for k in range(CLIENTS))


def identities(*names: str) -> dict[str, Identity]:
    return {name: Identity.generate(name) for name in names or (*NAMES, SERVER, KEY_HOLDER)}


def turn_in(data: bytes) -> Turn:
    """The turn that a request carries; an empty one if it carries none."""
    try:
        return decode_envelope(decode_envelope(data, SignedTurn, sender=SERVER).turn, Turn, sender=SERVER)
    except RemoteProtocolError:
        return Turn()


@dataclass
class Files:
    """What one party has on its disk."""

    ledger: Ledger
    journal: Journal = field(default_factory=Journal)
    diary: SessionStore = field(default_factory=SessionStore)

    def started(self, name: str, plan: Plan, work: bytes, pinned: PinnedRoster, make: Any) -> PartySession:
        """A process of the party, which `make` makes for a session."""
        kept = self.ledger, self.journal
        return PartySession(
            name,
            plan,
            work,
            pinned,
            self.diary,
            make,
            newest=lambda session: max(own.newest(session) for own in kept),
        )

    def why(self) -> str:
        """The newest refusal in the diary; empty for none."""
        return next((one.text for one in self.diary.refusals()), "")


@dataclass
class Deployment:
    """Residents of a plan and their server. `lost` may change or drop what a party says in a wave.

    Attributes:
        compute: what a client computes, from its job.
        contribution: what clients offer, if it is more than a function of the job.
        scores: the scheme of linear queries.
        sends: what clients offer.
        said: the bytes of each wave that were sent to each party, the newest last.
    """

    plan: Plan
    keys: dict[str, Identity] = field(default_factory=identities)
    compute: Any = None
    contribution: Any = None
    scores: LinearScheme | None = None
    spec: ValueSpec = SENDS
    lost: Callable[[str, bytes], bytes | None] = lambda name, said: said
    residents: dict[str, PartySession] = field(default_factory=dict)
    files: dict[str, Files] = field(default_factory=dict)
    said: list[tuple[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pinned = PinnedRoster({name: own.member() for name, own in self.keys.items()})
        for name in self.keys:
            if name != SERVER:
                self.files[name] = Files(Ledger(None, self.plan.terms()))
                self.start(name)
        self.server_keys = self.keys[SERVER]
        self.begin()

    def begin(self) -> None:
        """A server's process, which enters sessions anew."""
        record = OwnRecord(SERVER, Journal(), self.server_keys)
        self.server = ServerParty(self.plan, {"own": self.spec}, record, clients=CLIENTS, scores=self.scores)

    def start(self, name: str) -> None:
        """Start a party's process, again, with the files that it has."""
        make = partial(self._made, name)
        self.residents[name] = self.files[name].started(name, self.plan, WORK, self.pinned, make)

    def _made(
        self, name: str, session: bytes, kept: Mapping[int, ClientState]
    ) -> ClientParty | KeyHolderParty:
        files, own = self.files[name], self.keys[name]
        if name == KEY_HOLDER:
            record = OwnRecord(name, files.journal, own)
            return KeyHolderParty(self.plan, {"own": self.spec}, record, scores=self.scores)
        number = NAMES.index(name)
        return ClientParty(
            self.plan,
            [self.contribution or ClientFunction(self.spec, self.compute or given().compute)],
            files.ledger,
            files.journal,
            {number: records()[number]},
            rng=lambda number, who, query: np.random.default_rng(0),
            scores=self.scores,
            kept=kept,
            enrolled={name: own},
        )

    def exchange(self, requests: Mapping[str, bytes], entering: bool = False) -> dict[str, bytes]:
        self.said += requests.items()
        said = {name: self.lost(name, self.residents[name].answer(data)) for name, data in requests.items()}
        return {name: reply for name, reply in said.items() if reply is not None}

    def request(self, nonce: bytes, plan: Plan | None = None) -> Enter:
        return Enter.of(plan or self.plan, "tiny", WORK, self.pinned, nonce, self.server_keys)

    def enter(self, nonce: bytes) -> tuple[str, ...]:
        """Enter a session; who did."""
        self.session = self.pinned.session(self.plan, nonce)
        self.server.enter(self.pinned.directory(self.session))
        request = self.request(nonce)
        self.transport = RemoteTransport(self.exchange, request, self.session, self.server_keys)
        self.rejected_from = self.transport.enter(tuple(self.residents))
        return tuple(name for name in self.residents if name in self.transport)

    def signed(self, name: str, turn: Turn, **changes: Any) -> bytes:
        """A turn that the server signs for this party, with the number that is due there."""
        visit, number = self.transport._visits[name]
        told = {"session": self.session, "party": name, "visit": visit, "number": number}
        own = SignedTurn.of(turn, **{**told, "server": self.server_keys, **changes})
        return encode_envelope(own)

    def query(self, number: int, query: CohortQuery = ASK) -> Answers:
        return self.server.query(query, Header(self.session, number, 0, 0), self.transport)

    def why(self, name: str) -> str:
        return self.files[name].why()
