"""The server's account of clients' privacy charges, from public inputs alone.

A charge follows from the plan and from the values that were asked for. So the server knows, without any
message, which clients' budgets bear no further round. It counts every query before its orders leave. If an
order is lost, the server counts a charge that the client's ledger does not have. The client then retires
early, never late.

The account is the one count that the server keeps. In a deployment it also stands on file: the server's
*books* are a ledger, on which a query is written before its orders leave. So it survives a kill, and the
round that is run again counts the orders that had left. What each client spent is read from the records of
the rounds, which hold what the account counted (`deployment.spending`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from securefl.accounting.budget import Budget
from securefl.accounting.events import dump_charge
from securefl.accounting.grouped_counts import Counts, GroupedCounts
from securefl.accounting.ledger import DeclaredQuery, Ledger
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.messages import client_name
from securefl.core.release import Charge, ReleaseKey
from securefl.core.wire import Header
from securefl.mechanisms.charges import Protection

CountedQuery = tuple[str, bool, tuple[int, ...]]
"""A value's name, whether the query was an initial one, and the clients that were asked for the value."""


class Account:
    """Public charges of all clients under one plan.

    books: the server's ledger in a deployment. None if the clients' ledger is in this process. counts: of
    the queries to each client, by value and charge.
    """

    def __init__(
        self,
        plan: Plan,
        contributions: Mapping[str, ValueSpec],
        clients: int,
        books: Ledger | None = None,
    ) -> None:
        self._plan, self._books, self._booked = plan, books, 0
        self._protected = {name: Protection(plan, spec) for name, spec in contributions.items()}
        self.counts = GroupedCounts(range(clients))
        self._budget = Budget(self.counts, plan.terms())
        self._new: list[CountedQuery] = []
        self._asked_in: dict[str, dict[int, int]] = {}
        self._refused: dict[tuple[tuple[str, ...], Counts], bool] = {}

    def query(self, names: Sequence[str], clients: Sequence[int], at: Header, *, initial: bool) -> None:
        """Count a query for these values, before it is sent to these clients."""
        # Before the call goes out, since the server cannot know which clients it reached. A count that is too
        # large retires a client early at worst.
        asked = [(name, initial, tuple(map(int, clients))) for name in names]
        for one in asked if self._books is None else self._book(self._books, asked, at):
            self._count(one, at.round)
            self._new.append(one)

    def _book(self, books: Ledger, asked: Sequence[CountedQuery], at: Header) -> Iterator[CountedQuery]:
        """Write orders on the books under their clients' own keys. Yields what is new on them in this round:
        also the orders of a server that was killed in it, and no order that stood already."""
        books.book(
            (
                ReleaseKey(client_name(k), at.session, at.round, at.stage, at.attempt, name),
                self.charge(name, initial=initial),
                DeclaredQuery(initial=int(initial)),
            )
            for name, initial, clients in asked
            for k in clients
        )
        rows = books.orders(at.session, at.round, self._booked)
        for (_, _, name, initial), own in groupby(rows, lambda row: row[2:]):
            *_, (self._booked, _, *_) = orders = list(own)
            yield name, bool(initial), tuple(int(row[1].removeprefix("client-")) for row in orders)

    def _count(self, asked: CountedQuery, number: int) -> None:
        name, initial, clients = asked
        if self._plan.apart(self._protected[name].spec) > 1:
            self._asked_in.setdefault(name, {}).update(dict.fromkeys(clients, number))
        charge = dump_charge(self.charge(name, initial=initial))
        for client in clients:
            self.counts.add(client, (name, charge))

    def charge(self, name: str, *, initial: bool) -> Charge:
        """The charge of one query for this value."""
        return self._protected[name].charge(trained=not initial)

    def epsilon(self, client: int) -> float:
        """The largest epsilon of this client against an adversary of the plan."""
        parties = self._plan.adversaries
        return max((self._budget.epsilon(client, party) for party in parties), default=0.0)

    def news(self) -> list[CountedQuery]:
        """The queries that were counted since the last call of this method, for the record of a round."""
        new, self._new = self._new, []
        return new

    def restore(self, rounds: Iterable[Sequence[CountedQuery]]) -> None:
        """Count the queries in the records of earlier rounds, from the first on."""
        for number, asked in enumerate(rounds, 1):
            for one in asked:
                self._count(one, number)

    def resting(self, number: int, *names: str) -> frozenset[int]:
        """The clients whose last contribution is fewer rounds before round `number` than `separation`.

        They would refuse. Cohorts are drawn from the others, so equal cohorts take turns.

        names: of the values that one cohort is asked for. Without any: of all values.
        """
        since = number - self._plan.separation
        asked = [self._asked_in.get(name, {}) for name in names or self._asked_in]
        return frozenset(k for own in asked for k, last in own.items() if since < last < number)

    def retired(self, number: int) -> frozenset[int]:
        """The clients whose budget does not bear the queries of round `number`."""
        # A constant value is sent once in a session, so only the first round is charged for it.
        wants = [
            (name, own.charge())
            for name, own in self._protected.items()
            if own.spec.schedule.due(number) and not (own.spec.schedule.once and number > 1)
        ]
        names, retired, known = tuple(name for name, _ in wants), set[int](), self._refused
        limits = {
            name: most
            for name, own in self._protected.items()
            if (most := own.spec.schedule.most_releases(self._plan.max_rounds)) is not None
        }
        self._refused = {}
        for counts, clients in self.counts.groups():  # clients with the same queries retire together
            refused = known.get((names, counts))
            if refused is None:  # a history that is new since the last call
                refused = self._budget.refusal(next(iter(clients)), wants, limits) is not None
            self._refused[names, counts] = refused
            if refused:
                retired |= clients
        return frozenset(retired)
