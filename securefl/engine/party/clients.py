"""Clients as a party: one on its own, or all of a study's at once, with a ledger in front of their bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import Contribution
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState, Sum
from securefl.algorithm.weighing import Weights
from securefl.core.abstaining import Reason
from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Directory, Identity, Member
from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError, RemoteProtocolError
from securefl.core.hiding import ComputeAndConceal
from securefl.core.machine import Machine
from securefl.core.messages import client_name, task
from securefl.core.release import SERVER
from securefl.core.wire import Header, Limit
from securefl.engine.calls import QueryCall, SumCall, decode_call, last_place
from securefl.engine.drive import Driver
from securefl.engine.exchange import Client, Contribute
from securefl.engine.observer import Log
from securefl.engine.party.computing import Computing, Records, Streams, Task, of_kind, of_size
from securefl.engine.party.contributing import Contributing
from securefl.linear.scheme import LinearScheme
from securefl.mechanisms.registry import require_mechanism
from securefl.storage.journal import Journal
from securefl.sums.registry import scheme_of
from securefl.sums.scheme import Attempt
from securefl.training.fit import Trainer, one_by_one

MOST = Limit(2**30, 2**22)
"""Of one order or broadcast, unless the party says otherwise."""

_REFUSED = object()
"""In place of work that a client does not do. It abstains."""


class ClientParty:
    """The clients that one machine stands for: one each in a deployment, all of them in a simulation.

    Args:
        plan: its own copy; charges, bounds and thresholds follow from it, and from no message.
        offers: what it may be asked for.
        ledger: of the plan's terms, with a schedule or without. It is in front of every byte that depends on
            records.
        journal: where it notes what it must not do twice, or otherwise, in a hidden sum.
        records: x and y by client number.
        rng: a client's own stream, from (round, client, number of the Ask within the round).
        held: by client number, the x and y that are never trained on; None without a hold-out.
        scores: the plan's way of scoring, with parameters as everybody has them; None in the clear.
        kept: by client number, what each has kept on its device so far.
        most: the largest order or broadcast that it takes.
        enrolled: by name, lasting keys that a roster has; others have keys of their own for every session.
        trainer: runs the local training of the clients at hand.

    ConfigError for a ledger of another plan, and for a plan without what its mechanism needs.
    """

    def __init__(
        self,
        plan: Plan,
        contributions: Sequence[Contribution],
        ledger: Ledger,
        journal: Journal,
        records: Mapping[int, Records],
        *,
        rng: Streams,
        held: Mapping[int, Records] | None = None,
        scores: LinearScheme | None = None,
        kept: Mapping[int, ClientState] | None = None,
        most: Limit = MOST,
        enrolled: Mapping[str, Identity] | None = None,
        trainer: Trainer = one_by_one,
    ) -> None:
        require_mechanism(plan)
        if not ledger.terms.bears(plan.terms()):
            raise ConfigError(
                f"Expected a ledger of this plan's terms, {plan.terms()}, got one of {ledger.terms}. "
                "Take the ledger that this plan began, or a new one."
            )
        self.log = Log()
        self._plan = plan
        self._sends = {contribution.spec.name: contribution.spec for contribution in contributions}
        self._ledger = ledger
        self._journal = journal
        self._numbers = {client_name(k): k for k in sorted(records)}
        self._scoring = scores
        self._most = most
        named = {contribution.spec.name: contribution for contribution in contributions}
        values = Computing(
            plan, named, records, held=held, rng=rng, kept=kept or {}, log=self.log, trainer=trainer
        )
        self._contributing = Contributing(plan, named, values, ledger, journal, self.log)
        self._orders: dict[int, Contribute] = {}
        self._sizes: dict[str, int] = {}
        self._enrolled = enrolled or {}
        self._identities: dict[tuple[bytes, str], Identity] = {}
        self._directory: Directory | None = None
        self._after = (0, 0, -1)
        self.drive: Driver | None = None

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._numbers)

    @property
    def kept(self) -> Mapping[int, ClientState]:
        """What each client has kept on its device so far."""
        return self._contributing.values.kept

    def members(self, session: bytes, names: Sequence[str]) -> list[Member]:
        """The public keys of some of its clients in a session, for the directory."""
        return [identity.member() for identity in self._of(session, names)]

    def _of(self, session: bytes, names: Sequence[str]) -> list[Identity]:
        """Lasting keys, the same after a restart: those of a roster, or a session's own."""
        # One durable write for all new names: a study asks for hundreds at once.
        known = self._identities
        new = [name for name in names if (session, name) not in known and name not in self._enrolled]
        for name, secret in zip(new, self._journal.lasting(new, session) if new else [], strict=True):
            known[session, name] = Identity.of(name, secret)
        return [self._enrolled.get(name) or known[session, name] for name in names]

    # Places -------------------------------------------------------------------------------------------

    def enter(self, directory: Directory, *, after: int = 0) -> None:
        self._directory, self._after, self.drive = directory, last_place(after), None
        self._orders.clear()
        self._contributing.values.drop()
        scheme = scheme_of(self._plan)
        self._sums = None if scheme is None else scheme.clients(directory)
        self._scores = None if self._scoring is None else self._scoring.clients(directory)

    def call(self, to: Sequence[str], data: bytes) -> bytes:
        if self._directory is None:
            raise LocalProtocolError("Expected a session that was entered, got a call before any. Enter one.")
        header, call = decode_call(data, self._directory.session, self._after)
        own = [self._numbers[name] for name in to if name in self._numbers]
        machines = self._asked(header, call, own) if isinstance(call, QueryCall) else {}
        if isinstance(call, SumCall):
            machines = self._summed(header, call, own)
        # After the call was found good: a bad one would end the Ask at hand, whose values and records stand.
        if header.place()[:2] != self._after[:2]:
            self.settle()
        self._after = header.place()
        self.drive = Driver(machines, header, self)
        return b""

    def settle(self) -> None:
        """The Ask is over: clients keep what they made of it."""
        self._contributing.values.settle()

    def _asked(self, header: Header, call: QueryCall, own: Sequence[int]) -> dict[str, Machine[Any]]:
        if call.most_bytes > self._most.bytes or call.most_elements > self._most.elements:
            raise RemoteProtocolError(
                f"Expected orders and broadcasts of at most {self._most.bytes} bytes, got a call for "
                f"{call.most_bytes}.",
                sender=SERVER,
            )
        asked, conceal = call.questions(), {}
        if asked is not None and self._scores is None:
            raise RemoteProtocolError(
                "Expected open numbers, as the plan says, got a call for others.", sender=SERVER
            )
        if asked is not None and self._scores is not None:
            try:
                conceal = dict(self._scores.conceal(asked, header, call.key))
            except (ConfigError, CryptoError) as error:
                raise RemoteProtocolError(
                    f"Expected a key of this plan, got another: {error}", sender=SERVER
                ) from None
        self._orders.clear()
        return {
            client_name(k): Client(
                number=k,
                header=header,
                plan=self._plan,
                contributions=self._sends,
                most=Limit(call.most_bytes, call.most_elements),
                conceal=conceal,
            )
            for k in own
        }

    def _summed(self, header: Header, call: SumCall, own: Sequence[int]) -> dict[str, Machine[Any]]:
        """Who was given an order for these sums takes part, under the agreement that follows from it."""
        if self._sums is None or self._directory is None:
            raise RemoteProtocolError(
                "Expected open sums, as the plan says, got a call for others.", sender=SERVER
            )
        # Who was told something else stands under another agreement. Their signatures do not fit together,
        # and nothing is opened.
        told: dict[bytes, list[int]] = {}
        called = set(call.members)
        for k in own:
            if k in self._orders and k in called:
                told.setdefault(_task(self._orders[k]), []).append(k)
        machines: dict[str, Machine[Any]] = {}
        for digest, numbers in told.items():
            attempt = self._attempt(header, call, self._orders[numbers[0]], digest)
            identities = self._of(header.session, [client_name(k) for k in numbers])
            self._require_own(identities)
            try:
                machines |= self._sums.machines(attempt, identities, call.key)
            except (ConfigError, CryptoError) as error:
                raise RemoteProtocolError(
                    f"Expected a call for a sum of this plan, got another: {error}", sender=SERVER
                ) from None
        return machines

    def _require_own(self, identities: Sequence[Identity]) -> None:
        """ConfigError where the directory has other keys of these clients, such as after a lost journal."""
        assert self._directory is not None
        names = [identity.name for identity in identities]
        pinned = {member.name: member for member in self._directory.roster(names).members}
        others = [own.name for own in identities if own.member() != pinned[own.name]]
        if others:
            raise ConfigError(
                f"Expected a directory with the keys of {', '.join(others)} as their journals have them, got "
                "others. Pin them again, or restore the journals."
            )

    def _attempt(self, header: Header, call: SumCall, order: Contribute, digest: bytes) -> Attempt:
        """The attempt by order and plan. The call adds only who is called, and the lengths."""
        said = order.order
        sizes = dict(zip(call.names, call.lengths, strict=False))
        same_ask = order.header.place()[:2] == header.place()[:2]
        if not same_ask or not set(call.members) <= set(said.members) or set(sizes) != set(said.sums):
            raise RemoteProtocolError(
                f"Expected a call for {said.sums} among the {len(said.members)} clients of the order, got "
                f"one for {call.names} among {len(call.members)}.",
                sender=SERVER,
            )
        call.sums(self._sends)
        self._sizes = sizes
        return Attempt(
            header=header,
            sums=tuple(Sum(self._sends[name], sizes[name]) for name in said.sums),
            initial=said.initial,
            number=said.number,
            again=said.again,
            cohort=tuple(sorted(map(client_name, call.members))),
            weights=Weights.of(said),
            task=digest,
        )

    # Beside the machines ------------------------------------------------------------------------------

    def work(self, needs: Sequence[tuple[str, Any]]) -> list[Any]:
        """One wave of slow work; all clients' charges and acts are written in one transaction first."""
        orders = [order for _, order in needs]
        acts = [order for order in orders if isinstance(order, Begin | RecordAct)]
        # By identity: two clients may order the same, and not every order can be hashed.
        recorded = dict(zip(map(id, acts), self._journal.record(acts) if acts else [], strict=True))
        orders = self._with_one_total(orders)
        tasks = {id(order): found for order in orders if (found := self._task(order)) is not None}
        contributions = self._contributing.contribute_many(list(tasks.values()))
        return [
            recorded[id(order)]
            if id(order) in recorded
            else contributions[tasks[id(order)].client]
            if id(order) in tasks
            else None
            if order is _REFUSED
            else order.run()
            for order in orders
        ]

    def _with_one_total(self, orders: Sequence[Any]) -> list[Any]:
        """The work, without that of clients who are told another n than the first of this session.

        Under hidden sums n is the server's word. If it could change, a large n in one round and a small one
        in another would weigh the same clients differently.
        """
        weighed = [
            order
            for order in orders
            if isinstance(order, Contribute) and order.order.sums and order.order.records
        ]
        if not weighed:
            return list(orders)
        names = [client_name(order.client) for order in weighed]
        told = [order.order.records for order in weighed]
        pinned = self._journal.totals(names, weighed[0].header.session, told)
        others = {id(order) for order, n in zip(weighed, pinned, strict=True) if order.order.records != n}
        for order, n in zip(weighed, pinned, strict=True):
            if id(order) in others:
                self.log.tell(
                    client_name(order.client),
                    f"Expected n = {n}, as it was told first in this session, got {order.order.records}: it "
                    "abstains.",
                    Reason.TOTAL,
                )
        return [_REFUSED if id(order) in others else order for order in orders]

    def encode(self, outbox: Sequence[tuple[Header, Any]]) -> list[bytes]:
        """The bytes of these messages; the charges of what they carry are committed before."""
        return self._ledger.send(outbox)

    def _task(self, order: Any) -> Task | None:
        """What a client is asked to release now; an order is remembered for the sums after it."""
        match order:
            case Contribute():
                self._orders[order.client] = order
                return Task(
                    client=order.client,
                    header=order.header,
                    wants=order.order.wants,
                    order=order,
                    conceal={name: of_kind(own) for name, own in order.conceal.items()},
                )
            case ComputeAndConceal():
                number = self._numbers[order.client]
                first = self._orders[number]
                return Task(
                    client=number,
                    header=order.header,
                    wants=first.order.sums,
                    order=first,
                    conceal={
                        name: of_size(name, self._sizes[name], own) for name, own in order.conceal.items()
                    },
                )
        return None


def _task(order: Contribute) -> bytes:
    """The digest of what a client was told: its part of the signed agreement."""
    return task(order.header, order.order, order.broadcast)
