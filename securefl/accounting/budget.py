"""Budgets: the epsilon that data holders have spent, and the refusal of charges beyond the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from dp_accounting import DpEvent

from securefl.accounting.alike import Counts
from securefl.accounting.composition import Filter, running_epsilon, within
from securefl.accounting.events import NO_COST, NON_PRIVATE, History, dump_charge, load_charge
from securefl.accounting.store import Terms
from securefl.core.errors import BudgetExceeded
from securefl.core.release import Charge

# A long run has a new history every round. A full cache is emptied, which costs only time.
_LARGEST_MEMORY = 4096
# A schedule counts the noised releases for which the noise was calibrated. These two charges have no noise.
_WITHOUT_NOISE = (dump_charge(NO_COST), dump_charge(NON_PRIVATE))


class Releases(Protocol):
    """A source of counts of releases: a ledger's file, or the public part of a run."""

    def counted(self, holder: str) -> Counts:
        """Return the number of releases of one holder, by name and charge."""
        ...

    def histories(self) -> Iterable[Counts]:
        """Return the different counts of all holders, each once."""
        ...


class Budget:
    """The spent and the remaining budget of data holders. Holders of equal history share one composition."""

    def __init__(self, releases: Releases, terms: Terms, allotted: Mapping[str, int] | None = None) -> None:
        """Start a budget.

        Args:
            releases: the counts of releases.
            terms: the delta, the budget and the schedule.
            allotted: for each charge, the largest number of times that it may be made of one holder. None is
                no limit.
        """
        self._releases = releases
        self._terms = terms
        self._allotted = allotted
        self._spent: dict[tuple[Counts, str], float] = {}
        self._room = _LARGEST_MEMORY

    def epsilon(self, holder: str, party: str) -> float:
        """Return the epsilon that this holder has spent against `party`, at the ledger's delta."""
        return self._epsilon(self._events(holder, party))

    def worst(self, party: str) -> float:
        """Return the largest epsilon over all holders against `party`; 0 for an empty ledger."""
        histories = list(self._releases.histories())
        # The cache must hold the histories of all parties: if a scan emptied it, it would be useless.
        self._room = max(_LARGEST_MEMORY, 4 * len(histories))
        return max((self._of(own, party) for own in histories), default=0.0)

    def _of(self, counts: Counts, party: str) -> float:
        if (counts, party) not in self._spent:
            if len(self._spent) > self._room:
                self._spent.clear()
            self._spent[counts, party] = self._epsilon(_events(counts, party))
        return self._spent[counts, party]

    def refusal(self, holder: str, wants: Sequence[tuple[str, Charge]]) -> BudgetExceeded | None:
        """Return why budget or schedule refuse these (name, charge) pairs, or None if they allow them."""
        overrun = self._overrun(holder, wants) or self._beyond(holder, wants)
        if overrun is not None or self._terms.budget is None:
            return overrun
        # Charges differ by party, so each party is checked on its own. The party with the largest epsilon so
        # far is not enough: this charge may cost more against another party.
        for party in self._terms.adversaries:
            spent = self._events(holder, party)
            asked = Counter(charge.by_party()[party] for _, charge in wants)
            if not self._bears(spent + asked):
                before, after = self._epsilon(spent), self._epsilon(spent + asked)
                left = round(self._terms.budget - before, 6)
                return BudgetExceeded(
                    f"{holder}: expected a round of at most epsilon {left:.4g} against the {party}, which is "
                    f"left of {self._terms.budget:.4g}, got {after - before:.4g}: 0 rounds like it remain. "
                    "Raise the budget, or add noise."
                )
        return None

    def rounds_left(self, holder: str, round_: Sequence[Charge], *, most: int = 10_000) -> int:
        """Return how many more rounds of these charges the holder's budget allows; at most `most`."""
        spent = {party: self._events(holder, party) for party in self._terms.adversaries}
        asked = {party: Counter(c.by_party()[party] for c in round_) for party in self._terms.adversaries}

        def bears(rounds: int) -> bool:
            return all(
                self._bears(spent[p] + Counter({e: n * rounds for e, n in asked[p].items()})) for p in spent
            )

        return most_rounds(bears, most)

    def _overrun(self, holder: str, wants: Sequence[tuple[str, Charge]]) -> BudgetExceeded | None:
        if self._terms.max_releases is None:
            return None
        asked = Counter(name for name, charge in wants if charge not in (NO_COST, NON_PRIVATE))
        counted = self._releases.counted(holder)
        for name, more in asked.items():
            done = sum(n for (own, charge), n in counted if own == name and charge not in _WITHOUT_NOISE)
            most = self._terms.max_releases.get(name, 0)
            if done + more > most:
                return BudgetExceeded(
                    f"{holder}: expected at most {most} scheduled releases of {name!r}, got {more} more "
                    f"after {done}. The noise was calibrated for the schedule: declare a longer one."
                )
        return None

    def _beyond(self, holder: str, wants: Sequence[tuple[str, Charge]]) -> BudgetExceeded | None:
        """Return why these charges exceed the shared ledger's reservation, or None if they do not."""
        if self._allotted is None:
            return None
        asked = Counter(dump_charge(charge) for _, charge in wants if charge != NO_COST)
        for charge, more in asked.items():
            done = sum(n for (_, own), n in self._releases.counted(holder) if own == charge)
            if done + more > (most := self._allotted.get(charge, 0)):
                return BudgetExceeded(
                    f"{holder}: expected at most {most} releases of this charge, which the shared ledger has "
                    f"reserved for this run, got {more} more after {done}. Begin a new run."
                )
        return None

    def _bears(self, events: Mapping[DpEvent, int]) -> bool:
        budget = self._terms.budget
        if budget is None:
            return True
        if self._terms.adaptive:
            return Filter(budget, self._terms.delta).allows(History.of(events))
        return within(events, self._terms.delta, budget)

    def _events(self, holder: str, party: str) -> Counter[DpEvent]:
        return _events(self._releases.counted(holder), party)

    def _epsilon(self, events: Mapping[DpEvent, int]) -> float:
        return running_epsilon(History.of(events), self._terms.delta)


def most_rounds(bears: Callable[[int], bool], most: int) -> int:
    """Return the largest number of rounds, up to `most`, that a budget allows.

    If `bears` allows a number of rounds, it must allow every smaller number: the search is a bisection.
    """
    # `low` rounds are allowed; `high` rounds are not, or exceed `most`
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bears(middle) else (low, middle)
    return low


def _events(counted: Counts, party: str) -> Counter[DpEvent]:
    events: Counter[DpEvent] = Counter()
    # sorted, because the order of a set differs between processes and would change an epsilon's last bits
    for (_, charge), count in sorted(counted):
        events[load_charge(charge).by_party()[party]] += count
    return events
