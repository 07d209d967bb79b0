"""The client party: one client, or all clients of a simulation, with a ledger in front of their messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import Contribution
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState, Sum
from securefl.core.abstaining import Reason
from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Directory, Identity, Member
from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError
from securefl.core.hiding import ComputeAndConceal, ConcealVector
from securefl.core.machine import Machine
from securefl.core.messages import Broadcast, Cohort, client_name, task
from securefl.core.wire import Header
from securefl.engine.calls import QueryCall, SumCall, by_server, decode_call, last_place
from securefl.engine.drive import Driver, Worker
from securefl.engine.exchange import MOST, Client, Contribute
from securefl.engine.observer import Log
from securefl.engine.party.computing import Computing, Records, Streams, of_size, one_by_one
from securefl.engine.party.contributing import Contributing
from securefl.linear.scheme import LinearScheme
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.registry import require_mechanism
from securefl.storage.journal import Journal
from securefl.sums.registry import scheme_of
from securefl.sums.scheme import Attempt
from securefl.training.jobs import Trainer


class ClientParty(Worker):
    """The clients on one machine: one client in a deployment, all clients in a simulation.

    Args:
        plan: its own copy. Charges, bounds and thresholds follow from it, and from no message.
        contributions: the contributions that it may be asked for.
        ledger: with the plan's terms; a schedule in it is optional. A charge is committed before any byte
            that depends on records leaves.
        journal: the durable record of its acts in hidden sums. It stops a client from acting twice, or with
            other content.
        records: x and y by client number.
        rng: a client's own stream, from (round, client, number of the query within the round).
        held: the x and y that are never trained on, by client number; None without a hold-out.
        scores: the plan's linear scheme, with the parameters that all parties have; None if numbers are open.
        kept: each client's state so far, by client number.
        enrolled: lasting keys of a roster, by client name. A client without them has new keys in every
            session.
        trainer: runs the clients' local training.
        holder_of: the name of a client in the ledger.
        count_session: called before the first hidden sum without noise in a session; it counts the session
            durably, or returns why the owner has agreed to no further one. In one process nothing is counted.

    Raises ConfigError if the ledger has another plan's terms, or the plan lacks an entry that its mechanism
    needs.
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
        enrolled: Mapping[str, Identity] | None = None,
        trainer: Trainer = one_by_one,
        count_session: Callable[[bytes], str] = lambda session: "",
        holder_of: Callable[[int], str] = client_name,
    ) -> None:
        require_mechanism(plan)
        if not ledger.terms.bears(plan.terms()):
            raise ConfigError(
                f"Expected a ledger of this plan's terms, {plan.terms()}, got one of {ledger.terms}. "
                "Use the ledger that this plan created, or a new one."
            )
        self.log = Log()
        self._plan = plan
        self._sends = {contribution.spec.name: contribution.spec for contribution in contributions}
        self._ledger = ledger
        self._journal = journal
        self._numbers = {client_name(k): k for k in sorted(records)}
        self._bare = {name for name, spec in self._sends.items() if Protection(plan, spec).bare}
        self._count_session = count_session
        self._scoring = scores
        named = {contribution.spec.name: contribution for contribution in contributions}
        values = Computing(
            plan, named, records, held=held, rng=rng, kept=kept or {}, log=self.log, trainer=trainer
        )
        self._contributing = Contributing(plan, named, values, ledger, journal, self.log, holder_of)
        self._orders: dict[int, Contribute] = {}
        self._sizes: dict[str, int] = {}
        self._enrolled = enrolled or {}
        self._identities: dict[tuple[bytes, str], Identity] = {}
        self._heard: dict[str, Identity] = {}
        self._directory: Directory | None = None
        self._after = last_place(0)
        self.drive: Driver | None = None

    @property
    def names(self) -> Sequence[str]:
        return tuple(self._numbers)

    @property
    def kept(self) -> Mapping[int, ClientState]:
        """The state of each client by its number."""
        return self._contributing.values.kept

    def members(self, session: bytes, names: Sequence[str]) -> list[Member]:
        """The public keys of some of its clients in a session, for the directory."""
        return [identity.member() for identity in self._of(session, names)]

    def _of(self, session: bytes, names: Sequence[str]) -> list[Identity]:
        """The keys of these clients, from a roster or the session's own. A restart does not change them."""
        # One durable write for all new names, because a study asks for hundreds at once.
        known = self._identities
        new = [name for name in names if (session, name) not in known and name not in self._enrolled]
        for name, secret in zip(new, self._journal.lasting(new, session) if new else [], strict=True):
            known[session, name] = Identity.of(name, secret)
        return [self._enrolled.get(name) or known[session, name] for name in names]

    # Places -------------------------------------------------------------------------------------------

    def enter(self, directory: Directory, *, after: int = 0) -> None:
        self._directory, self._after, self.drive = directory, last_place(after), None
        self._heard.clear()
        self._orders.clear()
        self._contributing.values.drop()
        scheme = scheme_of(self._plan)
        self._sums = None if scheme is None else scheme.clients(directory)
        own = partial(self._of, directory.session)
        self._scores = None if self._scoring is None else self._scoring.clients(directory, own)

    def call(self, to: Sequence[str], data: bytes) -> bytes:
        if self._directory is None:
            raise LocalProtocolError("Expected a session that was entered, got a call before any. Enter one.")
        header, call = decode_call(data, self._directory.session, self._after)
        own = [self._numbers[name] for name in to if name in self._numbers]
        machines = self._asked(header, call, own) if isinstance(call, QueryCall) else {}
        if isinstance(call, SumCall):
            machines = self._summed(header, call, own)
        # Only after the call was accepted: an invalid call must not end the current query.
        if header.place()[:2] != self._after[:2]:
            self.settle()
        elif isinstance(call, QueryCall):
            self._contributing.values.forget()
        self._after = header.place()
        self.drive = Driver(machines, header, self)
        return b""

    def prepare(self) -> bool:
        """Do a piece of work for a later answer, while the client waits. Returns whether more is to be done.

        A simulation has no use for it: its clients wait for nobody, and the work is the same.
        """
        return self._directory is not None and self._scores is not None and self._scores.prepare()

    def settle(self) -> None:
        """End the current query: the new states of clients that answered to its end count from here on.

        A masked sum that did not open was answered by nobody. Under other schemes a client cannot know.
        """
        ended = {} if self.drive is None else self.drive.results
        self._contributing.values.settle(
            frozenset(self._numbers[name] for name, end in ended.items() if end == "answered")
        )

    def _asked(self, header: Header, call: QueryCall, own: Sequence[int]) -> dict[str, Machine[Any]]:
        if call.most.bytes > MOST.bytes or call.most.elements > MOST.elements:
            raise by_server(
                f"Expected orders and broadcasts of at most {MOST.bytes} bytes, got a call for "
                f"{call.most.bytes}."
            )
        asked, conceal = call.asked, dict[str, Mapping[str, ConcealVector]]()
        if asked is not None and self._scores is None:
            raise by_server("Expected open numbers, as the plan says, got a call for others.")
        if asked is not None and self._scores is not None:
            try:
                names = [client_name(k) for k in own]
                conceal = dict(self._scores.conceal(asked, header, call.key, names))
            except (ConfigError, CryptoError) as error:
                raise by_server(
                    f"Expected a call with a key that fits this plan, got one that does not: {error}"
                ) from None
        cohort = self._hidden_cohort(call)
        self._orders.clear()
        return {
            client_name(k): Client(
                number=k,
                header=header,
                plan=self._plan,
                contributions=self._sends,
                most=call.most,
                cohort=cohort,
                conceal=conceal.get(client_name(k), {}),
            )
            for k in own
        }

    def _hidden_cohort(self, call: QueryCall) -> Cohort | None:
        """The cohort that the call tells, each of whose members is in the roster of this party."""
        cohort = call.hidden_cohort()
        if cohort is not None and self._directory is not None:
            try:
                self._directory.roster(map(client_name, cohort.members))
            except CryptoError as error:
                raise by_server(str(error)) from None
        return cohort

    def _summed(self, header: Header, call: SumCall, own: Sequence[int]) -> dict[str, Machine[Any]]:
        """Make the machines of the clients that have an order for these sums, each under its agreement."""
        if self._sums is None or self._directory is None:
            raise by_server("Expected open sums, as the plan says, got a call for others.")
        called = set(call.called)
        told = _by_order([self._orders[k] for k in own if k in self._orders and k in called])
        machines: dict[str, Machine[Any]] = {}
        for first, *others in told:
            attempt = self._attempt(header, call, first)
            names = [client_name(order.client) for order in (first, *others)]
            identities = self._of(header.session, names)
            self._require_own(identities)
            try:
                machines |= self._sums.machines(attempt, self._hearing(identities), call.key)
            except (ConfigError, CryptoError) as error:
                raise by_server(
                    f"Expected a call for a sum of this plan, got one that it refuses: {error}"
                ) from None
        return machines

    def _require_own(self, identities: Sequence[Identity]) -> None:
        """Raise ConfigError if the directory has other keys of these clients, as after a lost journal."""
        assert self._directory is not None
        names = [identity.name for identity in identities]
        pinned = {member.name: member for member in self._directory.roster(names).members}
        others = [own.name for own in identities if own.member() != pinned[own.name]]
        if others:
            raise ConfigError(
                f"Expected a directory with the keys of {', '.join(others)} as their journals have them, got "
                "others. Pin them again, or restore the journals."
            )

    def _hearing(self, identities: Sequence[Identity]) -> Sequence[Identity]:
        """The same keys, whose signatures the directory hears of if it asks for them."""
        assert self._directory is not None
        if (signed := self._directory.signed) is None:
            return identities
        for own in identities:
            if own.name not in self._heard:
                self._heard[own.name] = own.heard_by(signed)
        return [self._heard[own.name] for own in identities]

    def _attempt(self, header: Header, call: SumCall, order: Contribute) -> Attempt:
        """The attempt as order and plan state it. The call adds only the called clients and the lengths."""
        said, cohort = order.order, order.cohort
        ordered = () if cohort is None else cohort.members
        sizes = dict(zip(call.names, call.lengths, strict=False))
        same_ask = order.header.place()[:2] == header.place()[:2]
        fits = same_ask and set(call.called) <= set(ordered) and set(sizes) == set(said.sums)
        if cohort is None or not fits:
            raise by_server(
                f"Expected a call for {said.sums} among the {len(ordered)} clients of the order, got "
                f"one for {call.names} among {len(call.called)}."
            )
        call.sums(self._sends)
        self._sizes = sizes
        return Attempt.of(
            said,
            cohort,
            header=header,
            sums=tuple(Sum(self._sends[name], sizes[name]) for name in said.sums),
            called=call.called,
            task=task(order.header, said, order.broadcast),
        )

    # Beside the machines ------------------------------------------------------------------------------

    def work(self, needs: Sequence[tuple[str, Any]]) -> list[Any]:
        """Do one wave of slow work. All clients' charges and acts are first written in one transaction."""
        orders = [order for _, order in needs]
        acts = [order for order in orders if isinstance(order, Begin | RecordAct)]
        # Keyed by identity, since two clients may have equal orders, and not every order can be hashed.
        done: dict[int, Any] = dict(
            zip(map(id, acts), self._journal.record(acts) if acts else [], strict=True)
        )
        for refused in (self._uncounted, self._of_other_totals):
            asked = [order for order in orders if isinstance(order, Contribute) and id(order) not in done]
            done |= {id(order): None for order in refused([order for order in asked if order.order.sums])}
        tasks = {
            id(order): task
            for order in orders
            if id(order) not in done and (task := self._task(order)) is not None
        }
        contributions = self._contributing.contribute_many(list(tasks.values()))
        done |= {order: contributions[task.client] for order, task in tasks.items()}
        return [done[id(order)] if id(order) in done else order.run() for order in orders]

    def _uncounted(self, orders: Sequence[Contribute]) -> Sequence[Contribute]:
        """Those for sums without noise, in a session to which the owner did not agree. Their clients abstain.

        The session is on record before anything is computed: a crash counts too much, and never too little.
        """
        asking = [order for order in orders if not self._bare.isdisjoint(order.order.sums)]
        if not asking or not (why := self._count_session(asking[0].header.session)):
            return ()
        for order in asking:
            self.log.report(client_name(order.client), why, Reason.SESSION)
        return asking

    def _of_other_totals(self, orders: Sequence[Contribute]) -> Sequence[Contribute]:
        """Those with another n than the first n that the client got in this session. Their clients abstain.

        Under hidden sums only the server states n. If it could change, a large n in one round and a small n
        in another would weigh the same clients differently.
        """
        weighed = [order for order in orders if order.order.records]
        if not weighed:
            return ()
        names = [client_name(order.client) for order in weighed]
        told = [order.order.records for order in weighed]
        pinned = self._journal.totals(names, weighed[0].header.session, told)
        others = [(order, n) for order, n in zip(weighed, pinned, strict=True) if order.order.records != n]
        for order, n in others:
            self.log.report(
                client_name(order.client),
                f"Expected n = {n}, as it was told first in this session, got {order.order.records}: it "
                "abstains.",
                Reason.TOTAL,
            )
        return [order for order, _ in others]

    def encode(self, outbox: Sequence[tuple[Header, Any]]) -> list[bytes]:
        """Encode these messages. The charges of their releases are committed first."""
        return self._ledger.send(outbox)

    def _task(self, order: Any) -> Contribute | None:
        """The task of a client in the exchange. The order is kept for the hidden sums after it."""
        match order:
            case Contribute():
                self._orders[order.client] = order
                return order
            case ComputeAndConceal():
                first = self._orders[self._numbers[order.client]]
                conceal = {name: of_size(name, self._sizes[name], own) for name, own in order.conceal.items()}
                return replace(first, header=order.header, wants=first.order.sums, conceal=conceal)
        return None


def _by_order(orders: Sequence[Contribute]) -> list[list[Contribute]]:
    """Group clients by what they were shown: order and broadcast, byte for byte.

    Clients with different orders have different agreements. Their signatures do not verify together, and no
    sum opens. The digest in an agreement is computed once for a group, because equal bytes have one digest.
    """
    groups: list[list[Contribute]] = []
    for order in orders:
        same = next((group for group in groups if _same(group[0], order)), None)
        if same is None:
            groups.append([order])
        else:
            same.append(order)
    return groups


def _same(one: Contribute, other: Contribute) -> bool:
    if (one.header, one.order, one.broadcast.names) != (other.header, other.order, other.broadcast.names):
        return False
    mine, theirs = _arrays(one.broadcast), _arrays(other.broadcast)
    # Their bytes, not their numbers: 0 and -0 are equal, and a nan differs from itself.
    return len(mine) == len(theirs) and all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and (_at(a) == _at(b) or np.array_equal(_bytes(a), _bytes(b)))
        for a, b in zip(mine, theirs, strict=True)
    )


def _arrays(broadcast: Broadcast) -> list[NDArray[Any]]:
    return [broadcast.model, *broadcast.arrays]


def _at(array: NDArray[Any]) -> Any:
    """Where the numbers of an array are. In a simulation all clients have views of one message."""
    place = array.__array_interface__
    return place["data"], place["strides"]


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
