"""Budgets: the epsilon that data holders have spent, and the refusal of charges beyond the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf, isinf
from typing import Final, Generic, Protocol, TypeVar

from dp_accounting import DpEvent

from securefl.accounting.composition import filtered_epsilon, running_epsilon, within
from securefl.accounting.events import NO_COST, NON_PRIVATE, History, dump_charge, load_charge
from securefl.accounting.grouped_counts import NOTHING, Counts
from securefl.accounting.store import Terms
from securefl.core.errors import BudgetExceeded, ConfigError
from securefl.core.release import PARTIES, Charge

_FREE: Final = dump_charge(NO_COST)
# A schedule counts the noised releases for which the noise was calibrated. These two charges have no noise.
_WITHOUT_NOISE: Final = (_FREE, dump_charge(NON_PRIVATE))

_LESS: Final = (
    "A ledger keeps its budget: add noise, so that a round costs less, or take other people's records with a "
    "new ledger of another budget."
)
_WITHOUT_BUDGET: Final = (
    "Without noise no budget is enough, and a ledger keeps its budget: take other people's records with a "
    "new ledger that has none. Its epsilon is then infinite, and only `max_releases` limits the scores."
)


H = TypeVar("H")
H_contra = TypeVar("H_contra", contravariant=True)


class Releases(Protocol[H_contra]):
    """A source of counts of releases: a ledger's file, or the public part of a run."""

    def counted(self, holder: H_contra) -> Counts:
        """Return the number of releases of one holder, by name and charge."""
        ...

    def histories(self) -> Iterable[Counts]:
        """Return the different counts of all holders, each once."""
        ...


class Budget(Generic[H]):
    """The spent and the remaining budget of data holders. Holders of equal history share one composition."""

    def __init__(
        self, releases: Releases[H], terms: Terms, allotted: Mapping[str, int] | None = None
    ) -> None:
        """Start a budget.

        Args:
            releases: the counts of releases.
            terms: the delta, the budget and the schedule.
            allotted: for each charge, the largest number of times that it may be made of one holder. None is
                no limit.
        """
        self.terms = terms
        self._releases, self._allotted = releases, allotted

    def epsilon(self, holder: H, party: str) -> float:
        """Return the epsilon that this holder has spent against `party`, at the ledger's delta.

        It is 0 for a holder without a release, since nothing of it left. Simulations ask for clients that
        never answered, or that were refused. A ledger of ids that a person types knows its clients, and
        refuses others (`named_ledger.NamedLedger`).
        """
        return _epsilon(self._releases.counted(holder), party, self.terms.delta)

    def worst(self, party: str) -> float:
        """Return the largest epsilon over all holders against `party`; 0 for an empty ledger."""
        return max(_epsilon(own, party, self.terms.delta) for own in (NOTHING, *self._releases.histories()))

    def refusal(
        self, holder: H, wants: Sequence[tuple[str, Charge]], linear: Mapping[str, int] | None = None
    ) -> BudgetExceeded | None:
        """Return why budget or schedule refuse these (name, charge) pairs, or None if they allow them.

        linear: for each name of a vector that answers linear queries, the largest number of releases from one
        holder. All of them count, of every session, noised or not: a reserved release may have left.
        """
        overrun = self._overrun(holder, [(name, dump_charge(charge)) for name, charge in wants], linear)
        if overrun is not None:
            return overrun
        for party, spent, after in self._beyond(holder, [charge for _, charge in wants]):
            budget = self.terms.budget or 0.0
            before, more = (running_epsilon(History.of(e), self.terms.delta) for e in (spent, after))
            return BudgetExceeded(
                f"{holder}: expected a round of at most epsilon {round(budget - before, 6):.4g} against the "
                f"{party}, which is left of {budget:.4g}, got {more - before:.4g}: 0 rounds "
                f"like it remain. {_WITHOUT_BUDGET if isinf(more) else _LESS}"
            )
        return None

    def rounds_left(self, holder: H, round_: Sequence[Charge], *, most: int = 10_000) -> int:
        """Return how many more rounds of these charges the holder's budget allows; at most `most`."""
        return most_rounds(lambda rounds: not any(self._beyond(holder, round_, rounds)), most)

    def _overrun(
        self, holder: H, wants: Sequence[tuple[str, str]], linear: Mapping[str, int] | None
    ) -> BudgetExceeded | None:
        """Return why these releases are too many by one of the three agreed numbers, or None."""
        counted = self._releases.counted(holder)
        for column, limits, other, free, what, remedy in (
            (
                0,
                linear,
                inf,
                (),
                "releases of {!r} on this ledger",
                "Each release reveals one linear function of the same vector, and enough of them reveal the "
                "vector. Declare more (`max_releases`), or make no further query.",
            ),
            (
                0,
                self.terms.max_releases,
                0,
                _WITHOUT_NOISE,
                "scheduled releases of {!r}",
                "The noise was calibrated for the schedule: declare a longer one with a new ledger.",
            ),
            (
                1,
                self._allotted,
                0,
                (_FREE,),
                "releases of this charge, which the shared ledger has reserved for this run",
                "Begin a new run.",
            ),
        ):
            if limits is None:
                continue
            for own, more in Counter(item[column] for item in wants if item[1] not in free).items():
                done = sum(n for item, n in counted if item[column] == own and item[1] not in free)
                if done + more > (most := limits.get(own, other)):
                    return BudgetExceeded(
                        f"{holder}: expected at most {most} {what.format(own)}, got {more} more after "
                        f"{done}. {remedy}"
                    )
        return None

    def _beyond(
        self, holder: H, charges: Sequence[Charge], rounds: int = 1
    ) -> Iterator[tuple[str, Counter[DpEvent], Counter[DpEvent]]]:
        """Yield each adversary whose budget does not bear these charges, with the events before and after."""
        # Charges differ by party, so each party is checked on its own. The party with the largest epsilon so
        # far is not enough: this charge may cost more against another party.
        budget, counted = self.terms.budget, self._releases.counted(holder)
        if budget is None:
            return
        for party in self.terms.adversaries:
            asked = Counter(charge.by_party()[party] for charge in charges)
            spent = _events(counted, party)
            after = spent + Counter({event: n * rounds for event, n in asked.items()})
            if not self._bears(after, budget):
                yield party, spent, after

    def _bears(self, events: Mapping[DpEvent, int], budget: float) -> bool:
        if self.terms.adaptive:
            return filtered_epsilon(History.of(events), self.terms.delta, budget) <= budget
        return within(events, self.terms.delta, budget)


@lru_cache(maxsize=2**16)  # a scan over all holders must not empty it, and a long run has new histories
def _epsilon(counts: Counts, party: str, delta: float) -> float:
    if party not in PARTIES:
        raise ConfigError(f"Expected a party among {', '.join(PARTIES)}, got {party!r}.")
    return running_epsilon(History.of(_events(counts, party)), delta)


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
