"""What clients have been charged, as far as it is public: it follows from what they were asked.

Charges follow from the plan. So the server knows without a word from anybody whose budget bears no further
round. It counts what it asked for: a client that an order did not reach has spent less, and is left out a
round or so too early, never too late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from securefl.accounting.alike import Counts, GroupedCounts
from securefl.accounting.budget import Budget
from securefl.accounting.events import dump_charge
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.mechanisms.charges import charge_of

Asked = tuple[str, bool, tuple[int, ...]]
"""A value by name, whether it was an introduction, and the clients that were asked for it."""


class Account:
    """Public charges of all clients under one plan."""

    def __init__(self, plan: Plan, contributions: Mapping[str, ValueSpec], clients: int) -> None:
        self._plan = plan
        self._contributions = contributions
        self._counts = GroupedCounts(range(clients))
        self._budget = Budget(self, plan.terms())
        self._new: list[Asked] = []
        self._refused: dict[tuple[tuple[str, ...], Counts], bool] = {}

    def counted(self, holder: str) -> Counts:
        """How often this client was asked, by name and charge."""
        return self._counts.of(int(holder))

    def histories(self) -> Iterable[Counts]:
        return self._counts.histories()

    def query(self, names: Sequence[str], clients: Sequence[int], *, initial: bool) -> None:
        """Count what these clients are about to be asked for."""
        # Before the call goes out: nobody can say whom it reached, and a count that is too large retires a
        # client early at worst.
        for name in names:
            self._count((name, initial, tuple(map(int, clients))))
            self._new.append((name, initial, tuple(map(int, clients))))

    def _count(self, asked: Asked) -> None:
        name, initial, clients = asked
        charge = dump_charge(charge_of(self._plan, self._contributions[name], trained=not initial))
        for client in clients:
            self._counts.add(client, (name, charge))

    @property
    def new(self) -> Sequence[Asked]:
        """What was counted since `news` was called last."""
        return self._new

    def news(self) -> list[Asked]:
        """What was counted since this was called last, for the record of a round."""
        new, self._new = self._new, []
        return new

    def restore(self, rounds: Iterable[Sequence[Asked]]) -> None:
        """Count what the records of earlier rounds say."""
        for asked in rounds:
            for one in asked:
                self._count(one)

    def retired(self, number: int) -> frozenset[int]:
        """The clients whose budget does not bear what a client can be asked for in round `number`."""
        # What cannot change is given once in a session, so it weighs on the first round only.
        wants = [
            (spec.name, charge_of(self._plan, spec))
            for spec in self._contributions.values()
            if spec.due(number) and not (spec.once and number > 1)
        ]
        names, retired, known = tuple(name for name, _ in wants), set[int](), self._refused
        self._refused = {}
        for counts, clients in self._counts.groups():  # clients that were asked alike retire alike
            refused = known.get((names, counts))
            if refused is None:  # a history that nobody had when this was asked last
                refused = self._spent(counts, names)
                refused = refused or self._budget.refusal(str(next(iter(clients))), wants) is not None
            self._refused[names, counts] = refused
            if refused:
                retired |= clients
        return frozenset(retired)

    def _spent(self, counts: Counts, names: Sequence[str]) -> bool:
        """Whether a client that was asked so lets no more out of one of these linear queries' values."""
        for name in names:
            most = self._contributions[name].most_releases(self._plan.max_rounds)
            if most is not None and sum(n for (own, _), n in counts if own == name) >= most:
                return True
        return False
