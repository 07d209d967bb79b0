"""The plan of a run, and the charge of each release under it, from public inputs alone."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, inf, sqrt
from typing import Final, Literal

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent

from securefl.accounting.store import Terms
from securefl.core.cohort import colluding, dropping
from securefl.core.errors import ConfigError
from securefl.core.release import (
    EXPOSED,
    KEY_HOLDER,
    NO_COST,
    OTHERS,
    PARTIES,
    SERVER,
    UNPROTECTED,
    Adjacency,
    Charge,
    Unit,
    neighbours_missing,
)
from securefl.dp.calibration import require_delta
from securefl.dp.gaussian import TAIL, discrete_event, share
from securefl.rounds import Sends

CLEAR: Final = "clear"
"""The word for sums in which the server sees each contribution."""
_NOISES: Final = ("none", "local", "distributed", "central", "key-holder")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that a guarantee hangs on. Its digest names the session.

    Attributes:
        sum: how sums are summed: "clear", or a way by which the server learns the total alone, such as
            "masked", "ckks" or "two-server" (`sums`).
        scores: how `each` numbers are opened: "clear", or a way by which the server learns the numbers and
        the key
            holder nothing: "ckks", "batches" or "pads" (`scores`).
        noise: where noise is added to sums that declare a sensitivity. "local": by each client.
            "distributed": in shares, of which those of the honest survivors add up to enough. "central": once
            by the server that sums, which is trusted. "key-holder": once by the key holder of a two-server
            sum, which alone is trusted. Sigma is `noise_multiplier` times the sensitivity. An `each` of
            declared sensitivity is always noised by its client, since nobody sums it.
        dropout, corrupt: for hidden sums and distributed noise, the largest shares of a cohort that fall
            silent (rounded down), and that collude with the server (rounded up). `corrupt` has no default
            there.
        least_cohort: least number of clients that are asked for one sum. Each client of a hidden sum checks
        it.
        least_honest: least number of honest contributors that any combination of opened sums keeps. Each
            client of a hidden sum checks it.
        largest_share: largest share of a sum's weight that one client may have. Each client checks it.
        largest_count: a client that weighs its value by its number of records clips the number to this.
        public_count: the number that a client says in its place if its number of records is data. None if
            that is public.
        secagg: against a server that may lie ("active"), or one that follows the protocol ("semi-honest").
        spare: how many aborted aggregations may be tried again, in the whole run.
        unit, adjacency, delta: the meaning of epsilon.
        unprotected: names of values that may leave without noise. Epsilon is then infinite.
        against: parties that the budget must hold against. The others are trusted by name.
        budget: the largest epsilon of a holder. None is no limit.
        schedule: the declared number of rounds. Nothing is released after it.
        releases: for each name, the most releases of one holder that the noise was calibrated for.
    """

    sum: str = CLEAR
    scores: Literal["clear", "ckks", "batches", "pads"] = "clear"
    noise: Literal["none", "local", "distributed", "central", "key-holder"] = "none"
    noise_multiplier: float = 0.0
    dropout: float = 0.0
    corrupt: float | None = None
    least_cohort: int = 1
    least_honest: int = 1
    largest_share: float = 1.0
    largest_count: int = 2**31
    public_count: int | None = None
    secagg: Literal["active", "semi-honest"] = "active"
    spare: int = 0
    unit: Unit = "record"
    adjacency: Adjacency = "replace-one"
    delta: float
    unprotected: tuple[str, ...] = ()
    against: tuple[str, ...] = PARTIES
    budget: float | None = None
    schedule: int
    releases: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_delta(self.delta)
        if (said := neighbours_missing(self.unit, self.adjacency)) is not None:
            raise ConfigError(said)
        if self.corrupt is None and (self.hidden or self.noise == "distributed"):
            raise ConfigError(
                "Expected `corrupt`, the largest share of a cohort that may collude with the server, got "
                "none, though sums are hidden or noise is shared among clients. State it; 0 says that none "
                "may collude."
            )
        if not (0 <= self.dropout < 1 and 0 <= (self.corrupt or 0.0) <= 1):
            raise ConfigError(
                f"Expected dropout from 0 to below 1 and corrupt from 0 to 1, shares of a cohort, got "
                f"{self.dropout} and {self.corrupt}."
            )
        if self.noise not in _NOISES or not 0 <= self.noise_multiplier < inf:
            raise ConfigError(
                f"Expected noise among {', '.join(_NOISES)} and a finite noise_multiplier >= 0, got "
                f"{self.noise!r} and {self.noise_multiplier}."
            )
        if self.noise == "key-holder" and self.sum != "two-server":
            raise ConfigError(
                'Expected sum = "two-server" with noise = "key-holder", got '
                f"{self.sum!r}: only there does the key holder add what it can put noise on."
            )
        if not (self.least_cohort >= 1 and self.least_honest >= 1 and 0 < self.largest_share <= 1):
            raise ConfigError(
                "Expected least_cohort >= 1, least_honest >= 1 and 0 < largest_share <= 1, "
                f"got {self.least_cohort}, {self.least_honest} and {self.largest_share}."
            )

    @property
    def hidden(self) -> bool:
        """Whether the server learns the totals of sums alone."""
        return self.sum != CLEAR

    def survivors(self, cohort: int) -> int:
        """The least number of contributions in a sum over this many clients. With fewer there is no sum."""
        return cohort - dropping(self.dropout, cohort)

    def colluding(self, cohort: int) -> int:
        """The most clients of a cohort that collude with the server."""
        return colluding(self.corrupt or 0.0, cohort)

    def knowing(self, cohort: int) -> int:
        """The largest number of clients in a cohort whose shares of noise hide nothing.

        A colluding client knows its share. If the promise must hold against other clients, each of them knows
        its own share.
        """
        return max(self.colluding(cohort), 1 if OTHERS in self.against else 0)

    def count(self, records: int) -> int:
        """The number that a client with so many records may let others know, at least 1."""
        return max(1, min(records if self.public_count is None else self.public_count, self.largest_count))

    def terms(self) -> Terms:
        """The terms of a ledger under this plan."""
        return Terms(
            unit=self.unit,
            adjacency=self.adjacency,
            delta=self.delta,
            budget=self.budget,
            against=self.against,
            schedule=None if self.noise == "none" or not self.releases else self.releases,
        )

    def session(self, clients: Sequence[str], nonce: bytes) -> bytes:
        """32 bytes that bind every message to the plan, to these clients and to one run (`nonce`)."""
        # The nonce keeps runs of one study apart: a message of one run must not fit into another.
        who = ",".join(clients)
        return hashlib.sha256(b"securefl session v1" + self.digest() + who.encode() + nonce).digest()

    def digest(self) -> bytes:
        """SHA-256 of the canonical plan. Parties that agree on it agree on every charge."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()


def charge_of(plan: Plan, sends: Sends, *, trained: bool = True) -> Charge:
    """The charge of one release, from public inputs only.

    trained: whether a model was broadcast, so that the training before the release took place.

    Raises:
        ConfigError: the value is neither noised, nor public, nor named as unprotected; or the grid is too
            coarse for distributed noise.
    """
    own = _own_charge(plan, sends)
    if own in (UNPROTECTED, EXPOSED) or sends.training is None or not trained or not _accounted(plan):
        return own
    return Charge(
        server=_both(own.server, sends.training),
        key_holder=own.key_holder,
        others=_both(own.others, sends.training),
    )


def events_of(plan: Plan, sent: Sequence[Sends], party: str, rounds: int) -> Counter[DpEvent]:
    """The releases to a party of a client that takes part in all of so many rounds and introductions."""
    events: Counter[DpEvent] = Counter()
    for sends in sent:
        events[charge_of(plan, sends).by_party()[party]] += sends.asked(rounds) - sends.extra
        events[charge_of(plan, sends, trained=False).by_party()[party]] += sends.extra
    return +events  # a Counter's plus drops the events that occur 0 times


def _both(own: DpEvent, training: DpEvent) -> DpEvent:
    return training if isinstance(own, NoOpDpEvent) else ComposedDpEvent((own, training))


def _own_charge(plan: Plan, sends: Sends) -> Charge:
    """The charge of the value alone, given the model that was trained before."""
    # A declared 0 says that no neighbour changes the value, such as a count under replace-one.
    if sends.sensitivity.get((plan.unit, plan.adjacency)) == 0:
        return NO_COST
    if sends.reads == "nothing" and _accounted(plan):
        return NO_COST
    if noised(plan, sends) and not _voided(plan, sends):
        event = GaussianDpEvent(plan.noise_multiplier)
        match placement(plan, sends):
            case "local":
                return Charge(server=event, key_holder=NoOpDpEvent(), others=event)
            case "distributed":
                _check_grid(plan, sends)
                seen = event if plan.hidden else _own_share(plan, sends)
                return Charge(server=seen, key_holder=NoOpDpEvent(), others=_others(plan, sends))
            case "central" if SERVER not in plan.against:
                return Charge(server=NonPrivateDpEvent(), key_holder=NoOpDpEvent(), others=event)
            case "key-holder" if KEY_HOLDER not in plan.against:
                # The key holder sees no total. But it knows the noise, and can take it off a published total.
                return Charge(server=event, key_holder=NonPrivateDpEvent(), others=event)
    if sends.name not in plan.unprotected:
        raise ConfigError(
            f"{_why(plan, sends)}.{_remedy(plan, sends)} Name it in [privacy] "
            f'unprotected = ["{sends.name}"] to allow that (epsilon is then infinite, and reported so).'
        )
    return EXPOSED if noised(plan, sends) and placement(plan, sends) == "key-holder" else UNPROTECTED


def _accounted(plan: Plan) -> bool:
    """Whether the events of private training speak of what this plan protects."""
    return plan.unit == "record" and plan.adjacency == "add-remove"


def noised(plan: Plan, sends: Sends) -> bool:
    """Whether this plan adds noise to these values. It does if their sensitivity in its unit is declared."""
    return plan.noise != "none" and sends.sensitivity.get((plan.unit, plan.adjacency), 0.0) > 0


def fewest_contributions(plan: Plan, cohort: int, sends: Sequence[Sends]) -> int:
    """The least number of contributions that a sum of these values over so many clients may have.

    Shares of noise were sized for the declared cohorts. In a smaller cohort a larger part must answer. In a
    larger cohort more clients may be corrupt.
    """
    declared = max((s.cohort for s in sends if noised(plan, s)), default=0)
    if plan.noise != "distributed" or not declared:
        return plan.survivors(cohort)
    # The first bound is for smaller cohorts than declared, the second for larger ones.
    enough = plan.survivors(max(cohort, declared))
    honest = plan.survivors(declared) - plan.knowing(declared)
    return max(enough, honest + plan.knowing(cohort))


def placement(plan: Plan, sends: Sends) -> str:
    """Where noise is added to these values. A client noises a value that nobody sums."""
    return "local" if sends.how == "each" else plan.noise


def room(plan: Plan, sends: Sends) -> int:
    """How far the key holder's noise reaches beyond a sum, in grid units. 0 if it adds none."""
    if placement(plan, sends) != "key-holder" or not noised(plan, sends):
        return 0
    return ceil(TAIL * plan.noise_multiplier * reach(plan, sends)) + 1


def _voided(plan: Plan, sends: Sends) -> bool:
    """Whether the declared sensitivity does not hold, since trained state moves with every record."""
    # Per client the bound is on the whole contribution, so it holds whatever was trained on the records.
    if plan.unit == "client":
        return False
    return not _accounted(plan) if sends.training is not None else sends.reads == "trained"


def _check_grid(plan: Plan, sends: Sends) -> None:
    """Raises ConfigError for a grid that is too coarse for the noise, or too fine or narrow for a share of
    it.

    If the grid's bound cut shares off, the sum would have less noise than is charged.
    """
    discrete_event(_total(plan, sends), reach(plan, sends))
    farthest = reach(plan, sends) + TAIL * own_sigma(plan, sends)
    if farthest > sends.grid.limit:
        raise ConfigError(
            f"Expected {sends.name!r} and its share of the noise within {sends.grid.limit} grid units, got "
            f"{farthest:.3g}: the bound would cut the noise off. Take a coarser grid, or less noise."
        )


def _own_share(plan: Plan, sends: Sends) -> DpEvent:
    """The event against a server that sums in the clear, and sees values with one share of noise each."""
    return GaussianDpEvent(sqrt(own_sigma(plan, sends) ** 2 - 4) / reach(plan, sends))


def _others(plan: Plan, sends: Sends) -> DpEvent:
    """The event against another client, which knows its own share of the noise in the sum."""
    # If shares were sized with one known share to spare, the promised noise remains; otherwise one share
    # less.
    honest = plan.survivors(sends.cohort) - max(plan.colluding(sends.cohort), 1)
    if plan.knowing(sends.cohort) >= 1:
        return GaussianDpEvent(plan.noise_multiplier)
    if not honest:
        return NonPrivateDpEvent()
    return GaussianDpEvent(sqrt(honest * own_sigma(plan, sends) ** 2 - 4) / reach(plan, sends))


def reach(plan: Plan, sends: Sends) -> float:
    """The sensitivity in grid units."""
    return sends.sensitivity[plan.unit, plan.adjacency] / sends.grid.step


def _total(plan: Plan, sends: Sends) -> float:
    """Sigma of the sum of the honest shares, in grid units."""
    # `discrete_event` takes 4 off sigma^2 for discreteness; added here, the event has the plan's multiplier
    return sqrt((plan.noise_multiplier * reach(plan, sends)) ** 2 + 4)


def own_sigma(plan: Plan, sends: Sends) -> float:
    """Sigma of a client's share of the noise, in grid units. Raises ConfigError if no share can be sized."""
    if not sends.cohort:
        raise ConfigError(
            f"Expected a least size of the cohorts of {sends.name!r} to size shares of noise from, got none. "
            "Noise them otherwise."
        )
    return share(_total(plan, sends), plan.survivors(sends.cohort), plan.knowing(sends.cohort))


def _why(plan: Plan, sends: Sends) -> str:
    bare = f"{sends.name!r} would leave its client without noise"
    if sends.training is not None and not _accounted(plan):
        return (
            f"The private training before {sends.name!r} is accounted for adding or removing one record, not "
            f"for one {plan.unit} under {plan.adjacency}"
        )
    if plan.noise == "none":
        return bare
    if not noised(plan, sends):
        return f"{bare}: one {plan.unit} moves it without bound ({plan.adjacency})"
    if _voided(plan, sends):
        return (
            f"No noise bounds what {sends.name!r} tells of a record: it reads state that was trained on the "
            "records, which each of them moves without bound"
        )
    if placement(plan, sends) == "key-holder":
        return (
            f"{bare} for the key holder, which draws that noise and could take it off a published total: "
            "leave it out of `against`"
        )
    return f"{bare} for the server, which central noise trusts: leave it out of `against`"


def _remedy(plan: Plan, sends: Sends) -> str:
    if plan.noise == "none" or noised(plan, sends):
        return ""
    option = "`update_bound` in [local]" if plan.unit == "client" else "an option such as `clip`"
    return f" Bound it, by {option}, where its protocol has one."
