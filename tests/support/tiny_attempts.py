"""Honest clients with one record, and a server that calls attempts as it likes and keeps all it ever
received.

What it can open is worked out by linear algebra, not by trying: every masked input is its value plus masks,
some of which the collected shares tell. A combination of inputs in which all other masks cancel is an opened
total.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Roster
from securefl.core.errors import RemoteProtocolError
from securefl.core.hiding import ComputeAndConceal
from securefl.core.keys import SecretKey
from securefl.core.machine import Step
from securefl.core.messages import client_name
from securefl.core.release import SERVER, Release, ReleaseKey
from securefl.core.wire import Header
from securefl.secagg import Agreement, Channels, Client, Policy, Vector, centred
from securefl.secagg.agreement import ClosedRoster
from securefl.secagg.dealing import SALT_BYTES, Published, published
from securefl.secagg.messages import (
    Advertise,
    Consistent,
    Dealt,
    MaskedInput,
    Quorum,
    RosterClosed,
    Shares,
    Survivors,
    Unmask,
)
from securefl.secagg.packing import unpack
from securefl.secagg.unmasking import Unmasking
from securefl.storage.journal import Journal
from support import linear_guess
from support.linear_guess import Unknown
from support.tiny_secagg import CHARGE, PLAN, entropy, identity, told

SESSION = hashlib.sha256(b"attempts").digest()
Shown = tuple[bytes, tuple[int, ...], tuple[int, ...]]
"""Context of a closed roster, dealers and survivors: what a signature is on."""


class Clients:
    """Honest clients 0 .. n - 1 and their journal, which survives restarts; the last `corrupt` collude."""

    def __init__(self, clients: int, policy: Policy, *, corrupt: int = 0, journal: Path | str = ":memory:"):
        self.count, self.policy = clients, policy
        self.corrupt = frozenset(range(clients - corrupt, clients))
        self.random = entropy("journal", clients)
        self.journal = Journal(journal, random=self.random)

    def answer(self, client: int, order: Begin | RecordAct) -> Any:
        """From the record; corrupt clients have none, and do whatever the server likes."""
        if client in self.corrupt:
            return SecretKey(order.context[-32:]) if isinstance(order, Begin) else True
        return self.journal.record([order])[0]

    def forget(self, really: bool = True) -> None:
        """From here on nobody knows what it did before."""
        if really:
            self.journal = Journal(random=self.random)

    def value(self, client: int, vector: Vector, number: int) -> int:
        """The same whenever the same question is asked; of a value that cannot change, in every round.

        Put anew it is another number: the noise on it is fresh.
        """
        asked = (0, 0) if vector.once else (0 if vector.ask else number, vector.ask)
        label = f"{client}|{vector.name}|{asked[0]}|{asked[1]}|{vector.again}"
        return int.from_bytes(hashlib.sha256(label.encode()).digest()[:2], "little")


@lru_cache(maxsize=1024)
def channels(client: int, roster: Roster) -> Channels:
    """A client agrees on its secrets with a cohort once a session."""
    return Channels(identity(client), roster, SESSION)


@lru_cache(maxsize=1024)
def cohort(members: tuple[int, ...]) -> Roster:
    return Roster(tuple(identity(k).member() for k in members))


@dataclass
class View:
    """All that came under one closed roster; shares as dealer -> point -> share."""

    closed: ClosedRoster
    dealings: dict[int, Published] = field(default_factory=dict)
    seeds: dict[int, dict[int, bytes]] = field(default_factory=dict)
    keys: dict[int, dict[int, bytes]] = field(default_factory=dict)
    inputs: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)
    """Members whose masked input came, each with the dealers among whose masks it stands."""

    def told(self, shares: Mapping[int, Mapping[int, bytes]]) -> set[int]:
        """The members whose secret so many shares tell."""
        threshold = self.closed.agreement.parameters.threshold
        return {dealer for dealer, of in shares.items() if len(of) >= threshold}


@dataclass
class Seat:
    """One client in one attempt: its machine and state, None where it is out."""

    machine: Client
    state: Any


@dataclass
class Attempt:
    """An attempt as the server drives it, with everything it has received of it."""

    clients: Clients
    members: tuple[int, ...]
    header: Header
    vector: Vector
    ordered: int
    tasks: Mapping[int, bytes] = field(default_factory=dict)
    backend: dict[int, Seat] = field(default_factory=dict)
    entries: dict[int, Advertise] = field(default_factory=dict)
    views: dict[bytes, View] = field(default_factory=dict)
    inputs: dict[int, tuple[MaskedInput, tuple[int, ...]]] = field(default_factory=dict)
    signatures: dict[Shown, dict[int, Any]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)

    @property
    def view(self) -> View | None:
        """What came under the newest closed roster."""
        return next(reversed(self.views.values())) if self.views else None

    def agreement(self, client: int) -> Agreement:
        return Agreement(
            header=self.header,
            roster=cohort(self.members),
            vectors=(self.vector,),
            plan=PLAN,
            task=self.tasks.get(client, told("the task")),
            parameters=self.clients.policy.parameters(len(self.members), self.ordered),
        )

    def place(self, client: int) -> int:
        return self.members.index(client)

    # What the server makes the clients do -----------------------------------------------------------

    def begin(self, only: Iterable[int] | None = None) -> Attempt:
        """Each of them enters, or refuses; one that was restarted enters again."""
        for k in only if only is not None else self.members:
            agreed = self.agreement(k)
            machine = Client(
                agreement=agreed, channels=channels(k, agreed.roster), policy=self.clients.policy
            )
            self.backend[k] = Seat(machine, None)
            self._take(k, machine.begin())
        return self

    def close(self, members: Iterable[int] | None = None, only: Iterable[int] | None = None) -> Attempt:
        """Show them a closed roster."""
        chosen = sorted(self.place(k) for k in (members or self.entries) if k in self.entries)
        said = [self.entries[self.members[number]] for number in chosen]
        roster = RosterClosed(
            members=tuple(chosen),
            keys=tuple(one.key for one in said),
            nonces=tuple(one.nonce for one in said),
            signatures=tuple(one.signature for one in said),
        )
        return self._show(roster, only)

    def deal(
        self, only: Iterable[int] | None = None, dealers: Iterable[int] | None = None, mixed: bool = False
    ) -> Attempt:
        """Hand out the shares of all who dealt under each client's roster, or of some of them.

        mixed: those of all rosters together.
        """
        for k in self._called(only) if self.view else ():
            closed = getattr(self._holds(k), "closed", None)
            if closed is None or closed.context not in self.views:
                closed = self.view.closed
            views = self.views.values() if mixed else [self.views[closed.context]]
            dealings = {member: of for view in views for member, of in view.dealings.items()}
            chosen = sorted(dealings if dealers is None else {self.place(m) for m in dealers} & set(dealings))
            holder = self.place(k)
            near = [dealings[m] for m in closed.graph.get(holder, ()) if m in chosen]
            dealt = Dealt(
                dealers=tuple(chosen),
                sealed=tuple(of.boxes[holder] for of in near),
                marks=tuple(of.marks(holder) for of in near),
                evidence=tuple(of.evidence(holder) for of in near),
            )
            self._show(dealt, [k])
        return self

    def survive(self, survivors: Sequence[int], only: Iterable[int] | None = None) -> Attempt:
        """Show them a set of survivors, of the dealers that each was shown."""
        alive = tuple(sorted(self.place(k) for k in survivors))
        for k in self._called(only):
            held = self._held_of(k)
            dealers = held.dealers if held else sorted(self.view.dealings if self.view else ())
            dropped = tuple(m for m in dealers if m not in alive)
            self._show(Survivors(survivors=alive, dropped=dropped), [k])
        return self

    def quorum(self, only: Iterable[int] | None = None) -> Attempt:
        """Show each the signatures on its own set, or on the one that has most; corrupt clients sign all."""
        for k in self._called(only):
            held = self._held_of(k)
            survivors = getattr(self.backend[k].state, "survivors", None) if k in self.backend else None
            shown = held and survivors and (held.closed.context, held.dealers, survivors)
            if shown not in self.signatures:
                if not self.signatures:
                    continue
                shown = max(self.signatures, key=lambda one: len(self.signatures[one]))
            self._show(self._quorum(shown), [k])
        return self

    def _quorum(self, shown: Shown) -> Quorum:
        context, dealers, survivors = shown
        found = dict(self.signatures[shown])
        for k in self.clients.corrupt & set(self.members):
            if self.place(k) in survivors:
                text = self.views[context].closed.survival(dealers, survivors)
                found.setdefault(self.place(k), identity(k).signing.sign(text))
        signers = tuple(sorted(found))
        others = [m for m in survivors if m not in found and self.members[m] in self.inputs]
        return Quorum(
            signers=signers,
            signatures=tuple(found[m] for m in signers),
            others=tuple(others),
            inputs=tuple(self.inputs[self.members[m]][0].signature for m in others),
        )

    def _called(self, only: Iterable[int] | None) -> list[int]:
        return list(self.backend if only is None else only)

    def _held_of(self, k: int) -> Any:
        """What a client that was shown its dealers holds; None before."""
        held = self._holds(k)
        return held if hasattr(held, "dealers") else None

    def _holds(self, k: int) -> Any:
        state = self.backend[k].state if k in self.backend else None
        return getattr(state, "held", state)

    def whole(self, survivors: Sequence[int] | None = None) -> Attempt:
        """The honest course, with all who enter."""
        self.begin().close()
        if self.view is None:
            return self
        self.deal()
        alive = sorted(self.inputs) if survivors is None else survivors
        return self.survive(alive).quorum() if alive else self

    def _show(self, message: Any, only: Iterable[int] | None) -> Attempt:
        for k in self._called(only):
            seat = self.backend.get(k)
            if seat is None or seat.state is None:
                continue
            try:
                self._take(k, seat.machine.receive(seat.state, SERVER, message))
            except RemoteProtocolError as error:
                self.refusals.append(str(error))
        return self

    def _take(self, k: int, step: Step[Any]) -> None:
        seat = self.backend[k]
        seat.state = step.state
        for envelope in step.out:
            self._keep(k, envelope.message)
        if step.need is not None:
            self._take(k, seat.machine.provide(step.state, self._answer(k, step.need.order)))

    def _answer(self, k: int, order: Any) -> Any:
        if isinstance(order, Begin | RecordAct):
            return self.clients.answer(k, order)
        assert isinstance(order, ComputeAndConceal)
        value = self.clients.value(k, self.vector, self.header.round)
        at = self.header
        key = ReleaseKey(order.client, at.session, at.round, at.stage, at.attempt, self.vector.name)
        masked = order.conceal[self.vector.name](np.array([value]))
        return (Release(key=key, unit="record", form="masked", charge=CHARGE, _numbers=masked),)

    def _keep(self, k: int, message: Any) -> None:
        number, state = self.place(k), self.backend[k].state
        match message:
            case Advertise():
                self.entries[k] = message
            case Shares():
                closed = state.closed
                view = self.views.setdefault(closed.context, View(closed))
                view.dealings[number] = published(closed, number, message)
            case MaskedInput():
                self.inputs[k] = (message, state.dealers)
                self.views[state.closed.context].inputs.add((number, state.dealers))
            case Consistent():
                shown = (state.held.closed.context, state.held.dealers, state.survivors)
                self.signatures.setdefault(shown, {})[number] = message.signature
            case Unmask():
                view = self.views[state.held.closed.context]
                for dealer, share in zip(sorted(state.held.pairs), message.shares, strict=True):
                    opened = view.seeds if dealer in state.survivors else view.keys
                    opened.setdefault(dealer, {})[number + 1] = share.raw[SALT_BYTES:]
        if k in self.clients.corrupt and hasattr(state, "pairs"):
            self._collude(k, state)

    def _collude(self, k: int, state: Any) -> None:
        """A corrupt client hands all shares that it holds to the server."""
        view = self.views[state.closed.context]
        for dealer, pair in state.pairs.items():
            view.seeds.setdefault(dealer, {})[self.place(k) + 1] = pair.seed[SALT_BYTES:]
            view.keys.setdefault(dealer, {})[self.place(k) + 1] = pair.key[SALT_BYTES:]

    # What the server can work out -------------------------------------------------------------------

    def opened(self, survivors: Sequence[int]) -> int | None:
        """The total over these survivors, if the collected shares open it: through the product's own code."""
        alive = tuple(sorted(self.place(k) for k in survivors))
        view = self.view
        if view is None or any(k not in self.inputs for k in survivors):
            return None
        sums = [unpack(self.inputs[k][0].releases[0]._numbers, 1, self.vector.bits) for k in survivors]
        dealers = self.inputs[survivors[0]][1]
        shares = {d: (view.seeds if d in alive else view.keys).get(d, {}) for d in dealers}
        if any(len(of) < view.closed.agreement.parameters.threshold for of in shares.values()):
            return None
        work = Unmasking(
            closed=view.closed,
            dealers=dealers,
            survivors=alive,
            seeds={d: view.dealings[d].dealing.seed for d in dealers},
            shares=shares,
            sums=(np.sum(sums, axis=0, dtype=np.uint64).astype(sums[0].dtype),),
        )
        found = work.run()
        return int(centred(found.totals[self.vector.name], self.vector.bits)[0])

    def equations(self) -> list[dict[Unknown, int]]:
        """Each input as the sum of what the server does not know: values and masks."""
        corrupt = {self.place(k) for k in self.clients.corrupt if k in self.members}
        # A mask key is of an attempt, and a seed of one closed roster in it.
        keys = {
            view.closed.entries[m].key.raw
            for view in self.views.values()
            for m in view.told(view.keys) | (corrupt & set(view.closed.entries))
        }
        return [
            self._equation(view, own, dealers, keys)
            for view in self.views.values()
            for own, dealers in sorted(view.inputs)
            if own not in corrupt
        ]

    def _equation(
        self, view: View, own: int, dealers: tuple[int, ...], keys: set[bytes]
    ) -> dict[Unknown, int]:
        question, closed = self.vector.question(self.header), view.closed
        asked = ("once",) if self.vector.once else (question.round, question.ask)
        row: dict[Unknown, int] = {("x", self.members[own], question.name, question.again, *asked): 1}
        if own not in view.told(view.seeds):
            row["seed", closed.context, own] = 1
        for other in dealers:
            if other not in closed.graph[own]:
                continue
            if not {closed.entries[own].key.raw, closed.entries[other].key.raw} & keys:
                low, high = min(own, other), max(own, other)
                row["pair", closed.context, low, high] = 1 if own < other else -1
        return row


def call(
    clients: Clients,
    members: Sequence[int],
    *,
    attempt: int,
    number: int = 1,
    stage: int = 0,
    ordered: int | None = None,
    name: str = "update",
    ask: int = 0,
    again: int = 0,
    once: bool = False,
    tasks: Mapping[int, bytes] | None = None,
) -> Attempt:
    """An attempt over some clients, in the order of their names."""
    vector = Vector(name=name, length=1, bits=32, bound=2**16, ask=ask, again=again, once=once)
    header = Header(SESSION, number, attempt, stage)
    chosen = tuple(sorted(members, key=client_name))
    return Attempt(clients, chosen, header, vector, ordered or len(chosen), tasks or {})


def fewest(attempts: Iterable[Attempt]) -> int | None:
    """The fewest honest values in any combination of inputs that the server opens; None if it opens none."""
    # No mask is in the sums of two questions: each of them is worked out by itself.
    questions: dict[Unknown, list[dict[Unknown, int]]] = {}
    for row in [row for attempt in attempts for row in attempt.equations()]:
        [asked] = [name[2:] for name in row if name[0] == "x"]
        questions.setdefault(asked, []).append(row)
    found = [linear_guess.fewest(linear_guess.opened(own)) for own in questions.values()]
    return min((least for least in found if least is not None), default=None)
