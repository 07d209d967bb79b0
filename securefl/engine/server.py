"""The server party of a run: it sends cohort queries and collects answers.

The server holds no client's ledger, records or state. `query` runs one cohort query as an exchange. If sums
are hidden, the exchange carries only the orders and the per-client numbers, and attempts at the hidden sum
follow. The server itself counts the attempts, the clients that were proven to cheat and the clients' charges.

If numbers are encrypted, the server first calls the key holder for its public key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from securefl.accounting.ledger import Ledger
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Answers, CohortQuery, PerClient, ValueSpec
from securefl.algorithm.weighing import Weights, require_allowed, require_batches, require_weighed
from securefl.core.agreement import Directory
from securefl.core.errors import ConfigError, CryptoError, LocalProtocolError
from securefl.core.messages import Order, client_name, task
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header
from securefl.engine.account import Account
from securefl.engine.attendance import Absence, Seen
from securefl.engine.calls import QueryCall, SumCall, encode_call
from securefl.engine.drive import Driver
from securefl.engine.exchange import Server, limits
from securefl.engine.exchange.server import broadcast_of, cohort_of, order_of
from securefl.engine.party.recorded import RecordedParty
from securefl.linear.scheme import LinearScheme, LinearServer, Scoring
from securefl.mechanisms.charges import Protection, fewest_contributions
from securefl.mechanisms.registry import require_mechanism
from securefl.mechanisms.totals import with_noise
from securefl.storage.own_record import OwnRecord
from securefl.sums.registry import scheme_of
from securefl.sums.scheme import Attempt, Opened


class Transport(Protocol):
    """The transport between the server and the other parties. It moves bytes, and reads none."""

    def call(self, to: Sequence[str], data: bytes) -> Mapping[str, bytes]:
        """Give a call to these parties. Returns each party's reply, its own key or nothing.

        A party that did not reply is absent from the result.
        """
        ...

    def run(self, drive: Driver) -> None:
        """Move messages between this driver and the called parties, until the driver is finished."""
        ...

    @property
    def absent(self) -> Mapping[str, Absence]:
        """What the wire showed of a called party that gave no value. A party that is not named was silent."""
        ...


class ServerParty(RecordedParty):
    """The server of one run, from its own copy of the plan.

    Args:
        contributions: the specs of the values that clients may be asked for, by name.
        record: the durable record of its acts. It stops the server from repeating an act with other content.
        clients: the number of clients.
        scores: the plan's linear scheme, with the parameters that all parties have; None if numbers are open.
        proven_cheaters: clients that were proven to cheat. They are left out of every later hidden sum.
        retries_left: the retries of hidden sums that the run has left; by default the plan's.

    Attributes:
        account: the clients' charges, computed from public inputs.
        log: notes on the current query, for the person who runs the server.
        seen: who took part in the newest query, as the server saw it.
    """

    names = (SERVER,)

    def __init__(
        self,
        plan: Plan,
        contributions: Mapping[str, ValueSpec],
        record: OwnRecord,
        *,
        clients: int,
        scores: LinearScheme | None = None,
        proven_cheaters: Iterable[int] = (),
        retries_left: int | None = None,
        books: Ledger | None = None,
    ) -> None:
        super().__init__(record)
        require_mechanism(plan)
        self.account = Account(plan, contributions, clients, books)
        self.seen = Seen()
        self._called: set[str] = set()
        self._heard: frozenset[str] = frozenset()
        self.retries_left = plan.max_retries if retries_left is None else retries_left
        self._plan = plan
        self._contributions = dict(contributions)
        self._clients = clients
        self._culprits = set(proven_cheaters)
        self._scoring = scores
        # Set by `enter`. It stays None in a resumed run that enters no session because no client is left.
        self.scores: LinearServer | None = None
        self._scheme = scheme_of(plan)

    @property
    def proven_cheaters(self) -> frozenset[int]:
        """The clients that were proven to cheat."""
        return frozenset(self._culprits)

    @cached_property
    def fewest(self) -> int:
        """The least number of clients over which a sum can open if all of them answer."""
        sums = [spec for spec in self._contributions.values() if spec.reduction == "sum"]
        least = self._plan.min_cohort_size or 1
        if not sums:
            return least
        return next((n for n in range(least, self._clients) if self._opens(n, sums)), self._clients)

    def _opens(self, cohort: int, sums: Sequence[ValueSpec]) -> bool:
        """Whether sums over a cohort of this size open if all of it answers."""
        if fewest_contributions(self._plan, cohort, sums) > cohort:
            return False
        if self._scheme is None:
            return True
        try:
            for spec in sums:
                self._scheme.check(spec, cohort)
        except ConfigError:  # parties refuse it: after its drop-outs the noise would fall short
            return False
        return True

    def enter(self, directory: Directory) -> None:
        """Join the session of this directory. Raises ConfigError if it has another server's keys."""
        own = self.own(directory, directory.server)
        self._sums = None if self._scheme is None else self._scheme.server(own)
        self.scores = None if self._scoring is None else self._scoring.server(own)

    def query(self, query: CohortQuery, header: Header, transport: Transport) -> Answers:
        """Run one cohort query. The answers' survivors are the clients that answered validly and in time.

        Raises LocalProtocolError if the query describes a value otherwise than the clients do, or names a
        client that does not exist.
        """
        self._check(query)
        self._forget()
        answers = self._queried(query, header, transport)
        answers = replace(answers, error_bound=self.error_bound() or 0.0)
        self.seen = self._saw(query, answers, transport.absent)
        return answers

    def skip(self, query: CohortQuery, header: Header, why: str) -> Answers:
        """Count a query, and ask nobody: its orders left earlier, and parties take no order twice."""
        self._forget()
        self.log.report(SERVER, why)
        wants = [spec.name for spec in query.wants()]
        self.account.query(wants, query.cohort, header, initial=query.initial > 0)
        answers = no_answers(query)
        self.seen = self._saw(query, answers, {})
        return answers

    def _forget(self) -> None:
        """Forget what an earlier query noted."""
        self.log.take()
        self._called, self._heard = set(), frozenset()

    def _saw(self, query: CohortQuery, answers: Answers, absent: Mapping[str, Absence]) -> Seen:
        """Who took part, from the answers, the messages that the server accepted, and the wire."""
        # If no sum was opened there are no survivors, though clients may have done all that was theirs.
        lost = {name for name, why in absent.items() if why in (Absence.SILENT, Absence.REFUSED)}
        here = set(map(client_name, answers.survivors)) or self._heard - lost
        rejected_from = self.log.traffic.rejected_from
        cheaters = set(map(client_name, self._culprits))
        missing = {}
        for name in self._called - here - {KEY_HOLDER}:
            seen = Absence.INVALID if name in rejected_from else absent.get(name, Absence.SILENT)
            missing[name] = Absence.CHEATED if name in cheaters else seen
        if KEY_HOLDER in self._called and KEY_HOLDER in absent:
            missing[KEY_HOLDER] = absent[KEY_HOLDER]
        none = query.sums and not answers.survivors
        short = self.log.abstained.get(SERVER, "nobody answered") if none else ""
        return Seen(asked=frozenset(self._called), absent=missing, short=short)

    def _call(self, transport: Transport, to: Sequence[str], data: bytes) -> Mapping[str, bytes]:
        self._called |= set(to)
        return transport.call(to, data)

    def _queried(self, query: CohortQuery, header: Header, transport: Transport) -> Answers:
        enough = max(
            self._plan.min_cohort_size or 1,
            fewest_contributions(self._plan, len(query.cohort), [wanted.spec for wanted in query.sums]),
        )
        if query.sums and len(query.cohort) < enough:  # asking would spend budgets, and no sum could open
            self.log.report(SERVER, f"{len(query.cohort)} clients are left, a sum needs {enough}.")
            return no_answers(query)
        if query.sums:
            # An order that breaks the plan is refused by every client, so the per-client numbers in it would
            # be lost too.
            try:
                weights = Weights.of(order_of(query), cohort_of(query))
                specs = [wanted.spec for wanted in query.sums]
                if self._sums is None:
                    require_weighed(self._plan, specs, weights)
                else:
                    require_allowed(self._plan, specs, weights)
                    require_batches(self._plan, query.cohort, weights.draws)
            except ConfigError as error:
                self.log.report(SERVER, str(error))
                return no_answers(query)
        asked, scoring = self._concealed(query, header, transport)
        if self._sums is None or not query.sums:
            answers = self._exchange(asked, header, transport, scoring)
        else:
            answers = self._hidden(asked, header, transport, scoring)
        answers = replace(answers, per_client={**no_answers(query).per_client, **answers.per_client})
        answers = self._with_enough_noise(query, answers)
        noised = with_noise(self._plan, self._record, query, answers, header)
        if noised is None:
            self.log.report(
                SERVER, "Noise of this round was drawn for another total: the sum is thrown away."
            )
            return replace(no_answers(query), per_client=answers.per_client)
        return noised

    def _concealed(
        self, query: CohortQuery, header: Header, transport: Transport
    ) -> tuple[CohortQuery, Scoring | None]:
        """The query, and the scoring of its encrypted numbers. The key holder is called first, for its key.

        Without a valid key the query asks only for the numbers that travel unencrypted.
        """
        concealed = {one.spec.name: one.query for one in query.per_client if one.query is not None}
        if self.scores is None or not concealed:
            return query, None
        asked, (told, _) = self.scores.declare(concealed, len(query.cohort), header), limits(query, 0)
        call = encode_call(header, QueryCall.of(told, asked))
        key = self._call(transport, [KEY_HOLDER], call).get(KEY_HOLDER, b"")
        try:
            return query, self.scores.begin(asked, key, self.log.report)
        except CryptoError:  # asking clients would spend their budgets, and no number could be opened
            self.log.report(KEY_HOLDER, "It gave no key of its own, so no client was asked for a number.")
            return replace(query, per_client=tuple(o for o in query.per_client if o.query is None)), None

    def _check(self, query: CohortQuery) -> None:
        """Raise LocalProtocolError unless the query's specs are the clients' own, and its clients exist.

        Noise, thresholds and grid follow from the query's specs, charges from the clients' specs.
        """
        for reduction, part in (("sum", query.sums), ("none", query.per_client)):
            for wanted in part:
                spec = wanted.spec
                if self._contributions.get(spec.name) != spec or spec.reduction != reduction:
                    raise LocalProtocolError(
                        f"Expected a spec that clients contribute, got another of {spec.name!r} "
                        f"({spec.reduction!r}) in a query of reduction {reduction!r}. Take the `spec` of a "
                        "contribution."
                    )
        strange = [
            k for k in query.cohort if not isinstance(k, int | np.integer) or not 0 <= k < self._clients
        ]
        # A negative number would be a second name of a client, with a budget of its own.
        if strange:
            raise LocalProtocolError(
                f"Expected a cohort among the clients 0 to {self._clients - 1}, got {strange}."
            )

    # One exchange -------------------------------------------------------------------------------------

    def _exchange(
        self,
        query: CohortQuery,
        header: Header,
        transport: Transport,
        scoring: Scoring | None = None,
        *,
        hidden: bool = False,
        again: int = 0,
    ) -> Answers:
        told, contribution = limits(query, 0 if scoring is None else scoring.sealed_bytes)
        sums = [wanted.spec for wanted in query.sums]
        machine = Server(
            query=query,
            header=header,
            most=contribution,
            hidden=hidden,
            again=again,
            scoring=scoring,
            whole=frozenset(own.name for own in sums if not Protection(self._plan, own).sparse),
        )
        now = [s.spec.name for s in (() if hidden else query.sums)] + [e.spec.name for e in query.per_client]
        self.account.query(now, query.cohort, header, initial=query.initial > 0)
        asked, key = (None, b"") if scoring is None else (scoring.asked, scoring.reply)
        call = QueryCall.of(told, asked, key, cohort_of(query) if hidden else None)
        self._call(transport, [client_name(k) for k in query.cohort], encode_call(header, call))
        answers: Answers | None = self._run(machine, header, transport)
        return no_answers(query) if answers is None else answers

    def _run(self, machine: Any, header: Header, transport: Transport) -> Any:
        drive = Driver({SERVER: machine}, header, self)
        transport.run(drive)
        self.log.traffic.add(drive.traffic)
        self._heard = frozenset(drive.heard)
        return drive.results.get(SERVER)

    # Hidden sums --------------------------------------------------------------------------------------

    def _hidden(
        self, query: CohortQuery, header: Header, transport: Transport, scoring: Scoring | None
    ) -> Answers:
        """Run the exchange of orders and numbers, then attempts at the hidden sums.

        If an attempt ends before any client has signed, it is repeated while retries are left. If it ends
        later, only a query with noise is asked again, with fresh noise and a fresh charge. A query without
        noise then has no sum.
        """
        per_client, again = self._exchange(query, header, transport, scoring, hidden=True).per_client, 0
        while True:
            order = order_of(query, again=again)
            told = task(header, order, broadcast_of(query))
            found, header, final = self._attempts(query, header, order, told, transport)
            if found is not None:
                return replace(found, per_client=per_client)
            # A row of correlated noise has one total: the key holder may have opened it.
            anew = final and all(_again(Protection(self._plan, wanted.spec)) for wanted in query.sums)
            if not anew or not self.retries_left:
                return replace(no_answers(query), per_client=per_client)
            self.retries_left -= 1
            again, header = again + 1, _next(header)
            query = replace(query, per_client=())
            self._exchange(query, header, transport, hidden=True, again=again)

    def _attempts(
        self, query: CohortQuery, header: Header, order: Order, told: bytes, transport: Transport
    ) -> tuple[Answers | None, Header, bool]:
        """Attempts that leave out proven cheaters.

        Returns the opened sums or None, the header of the last attempt, and whether no other set may be
        opened after it.
        """
        assert self._sums is not None
        while True:
            header = _next(header)
            cohort = sorted(k for k in query.cohort if k not in self._culprits)
            try:
                machine = self._machine(query, header, cohort, order, told, transport)
            except (ConfigError, CryptoError) as error:  # the cohort is too small without the cheaters
                self.log.report(SERVER, str(error))
                return None, header, False
            found = self._sums.outcome(machine, self._run(machine, header, transport))
            self.log.traffic.rejected_from |= found.proven_cheaters
            self._culprits |= {k for k in cohort if client_name(k) in found.proven_cheaters}
            if isinstance(found, Opened):
                return _answers(query, found), header, True
            self.log.report(SERVER, found.reason)
            if found.final or not self.retries_left:
                return None, header, found.final
            self.retries_left -= 1

    def _machine(
        self,
        query: CohortQuery,
        header: Header,
        cohort: Sequence[int],
        order: Order,
        told: bytes,
        transport: Transport,
    ) -> Any:
        """Make the server's state machine for one attempt, and tell the other parties to start theirs."""
        assert self._sums is not None
        assert self._scheme is not None
        attempt = Attempt.of(
            order, cohort_of(query), header=header, sums=query.sums, called=cohort, task=told
        )
        call = SumCall.over(cohort, attempt)
        self._sums.check(attempt)
        if self._scheme.key_holder_learns:
            answered = self._call(transport, [KEY_HOLDER], encode_call(header, call))
            if KEY_HOLDER not in answered:
                raise CryptoError("Expected the key holder to answer its call, got silence: no sum opens.")
            call = replace(call, key=answered[KEY_HOLDER])
        machine = self._sums.machine(attempt, call.key)
        # Counted only after the key holder answered: an attempt that cannot be opened costs no client
        # anything.
        self.account.query(call.names, cohort, header, initial=query.initial > 0)
        self._call(transport, [client_name(k) for k in cohort], encode_call(header, call))
        return machine

    def _with_enough_noise(self, query: CohortQuery, answers: Answers) -> Answers:
        """The answers. If too few clients contributed their share of the noise, the sums are left out."""
        promised = (Protection(self._plan, wanted.spec).mechanism for wanted in query.sums)
        enough = max((one.min_contributions(len(query.cohort)) for one in promised), default=0)
        if len(answers.survivors) >= enough:
            return answers
        if SERVER not in self.log.abstained:  # an earlier reason is why so few contributed
            short = f"Expected at least {enough} contributions, got {len(answers.survivors)}"
            self.log.report(SERVER, f"{short}: the noise would fall short, so the sum is thrown away.")
        return replace(no_answers(query), per_client=answers.per_client)

    # Beside its machines ------------------------------------------------------------------------------

    def error_bound(self) -> float | None:
        """Largest error of an encrypted score (probability 1 - 1e-6); None if no score was encrypted."""
        return None if self.scores is None else self.scores.error_bound()

    def number_bytes(self, per_client: PerClient) -> int:
        """Bytes of one client's answer to one query for a number, without headers."""
        hidden, clear = per_client.lengths()
        sealed = None
        if self.scores is not None and per_client.query is not None:
            sealed = self.scores.sealed_bytes(per_client.query.bounds)
        return 8 * (hidden + clear) if sealed is None else sealed + 8 * clear


def _answers(query: CohortQuery, opened: Opened) -> Answers:
    """The answers of an opened hidden sum, without the query's numbers."""
    there = set(opened.survivors)
    survivors = tuple(k for k in query.cohort if client_name(k) in there)
    totals = {s.spec.name: query.total(s, opened.totals[s.spec.name], survivors) for s in query.sums}
    return Answers(survivors=survivors, totals=totals, per_client={})


def no_answers(query: CohortQuery) -> Answers:
    """The answers to a query of which no sum was opened."""
    return Answers(
        survivors=(), totals={}, per_client={per_client.spec.name: {} for per_client in query.per_client}
    )


def _again(protection: Protection) -> bool:
    """Whether a value may be asked for again after its total may have been opened."""
    return protection.noised and not protection.mechanism.correlation.correlated


def _next(header: Header) -> Header:
    """The place of the next attempt. Attempts are numbered upward."""
    return replace(header, attempt=header.attempt + 1)
