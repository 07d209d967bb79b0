"""The plan of a run, and how a client's value becomes a release under it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from math import ceil, floor, sqrt
from typing import Any, Literal, cast

import numpy as np
from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent
from numpy.typing import NDArray

from securefl.accounting.store import Terms
from securefl.dp.gaussian import TAIL, discrete, discrete_event, rounded, share
from securefl.dp.noise import Source
from securefl.errors import ConfigError, DataError, LocalProtocolError
from securefl.release import (
    NO_COST,
    PARTIES,
    SERVER,
    UNPROTECTED,
    Adjacency,
    Charge,
    Form,
    Release,
    ReleaseKey,
    Unit,
)
from securefl.rounds import Floats, Sends, Value


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a guarantee hangs on; its digest names the session.

    Attributes:
        sum: how sums are summed: "clear"; or "masked", by secure aggregation, or "ckks", encrypted under the
            key holder's key, of which the server learns the total alone.
        scores: how `each` numbers are opened: "clear", or "ckks" (encrypted; the server learns the
            numbers, the key holder nothing).
        noise: where noise is added to sums that declare a sensitivity: by each client ("local"), in shares of
            which the honest survivors' add up to enough ("distributed"), or once by the server that sums
            ("central", which trusts it); sigma is `noise_multiplier` times that. An `each` of declared
            sensitivity is noised by its client, whichever it is: nobody sums it.
        dropout, corrupt: of masked sums and distributed noise, the largest shares of a cohort that fall
            silent, and that collude with the server.
        secagg: against a server that may lie ("active"), or one that follows the protocol ("semi-honest").
        spare: how many aggregations that abort may be tried again, in the whole run.
        unit, adjacency, delta: what epsilon means.
        unprotected: names of values that may leave without noise; epsilon is then infinite.
        against: parties that the budget must hold against; the rest are trusted by name.
        budget: the most epsilon per holder; None is no limit.
        schedule: declared number of rounds; there is no release after it.
        releases: by name, the most releases of one holder that the noise was calibrated for.
    """

    sum: Literal["clear", "masked", "ckks"] = "clear"
    scores: Literal["clear", "ckks"] = "clear"
    noise: Literal["none", "local", "distributed", "central"] = "none"
    noise_multiplier: float = 0.0
    dropout: float = 0.0
    corrupt: float = 0.0
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

    def survivors(self, cohort: int) -> int:
        """The least number of contributions in a sum over this many clients; of fewer there is no sum."""
        return cohort - share_of(self.dropout, cohort)

    def terms(self) -> Terms:
        """Of the ledger that holds to this plan."""
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
        who = ",".join(clients)
        return hashlib.sha256(b"securefl session v1" + self.digest() + who.encode() + nonce).digest()

    def digest(self) -> bytes:
        """SHA-256 of the canonical plan: parties that agree on it agree on every charge."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()


def share_of(share: float, whole: int) -> int:
    """floor(share * whole), of the decimal number that was written and not its binary neighbour."""
    return floor(Fraction(str(share)) * whole)


def charge_of(plan: Plan, sends: Sends, *, trained: bool = True) -> Charge:
    """The charge of one release, from public inputs only.

    trained: whether a model was broadcast, so that the training before the release took place.

    Raises:
        ConfigError: the value is neither noised, nor public, nor named as unprotected; or the grid is too
            coarse for distributed noise.
    """
    own = _own_charge(plan, sends)
    if own is UNPROTECTED or sends.training is None or not trained or not _accounted(plan):
        return own
    return Charge(
        server=_both(own.server, sends.training),
        key_holder=own.key_holder,
        others=_both(own.others, sends.training),
    )


def events_of(plan: Plan, sent: Sequence[Sends], party: str, rounds: int) -> Counter[DpEvent]:
    """What a client that takes part in every round has released to a party after as many rounds.

    The exchanges that introduce it included.
    """
    events: Counter[DpEvent] = Counter()
    for sends in sent:
        events[charge_of(plan, sends).by_party()[party]] += sends.asked(rounds) - sends.extra
        events[charge_of(plan, sends, trained=False).by_party()[party]] += sends.extra
    return +events


def _both(own: DpEvent, training: DpEvent) -> DpEvent:
    return training if isinstance(own, NoOpDpEvent) else ComposedDpEvent((own, training))


def _own_charge(plan: Plan, sends: Sends) -> Charge:
    """Of the value alone, given what was trained before."""
    if sends.sensitivity.get((plan.unit, plan.adjacency)) == 0:
        return NO_COST
    if sends.reads == "nothing" and _accounted(plan):
        return NO_COST
    if noised(plan, sends) and not _voided(plan, sends):
        event = GaussianDpEvent(plan.noise_multiplier)
        match _placement(plan, sends):
            case "local":
                return Charge(server=event, key_holder=NoOpDpEvent(), others=event)
            case "distributed":
                _check_grid(plan, sends)
                seen = event if plan.sum != "clear" else _own_share(plan, sends)
                return Charge(server=seen, key_holder=NoOpDpEvent(), others=event)
            case "central" if SERVER not in plan.against:
                return Charge(server=NonPrivateDpEvent(), key_holder=NoOpDpEvent(), others=event)
    if sends.name not in plan.unprotected:
        raise ConfigError(
            f"{_why(plan, sends)}. {_remedy(plan, sends)}ame it in [privacy] "
            f'unprotected = ["{sends.name}"] to allow that (epsilon is then infinite, and reported so).'
        )
    return UNPROTECTED


def _accounted(plan: Plan) -> bool:
    """Whether the events of private training speak of what this plan protects."""
    return plan.unit == "record" and plan.adjacency == "add-remove"


def noised(plan: Plan, sends: Sends) -> bool:
    """Whether this plan adds noise to these values: those of declared sensitivity in the plan's unit."""
    return plan.noise != "none" and sends.sensitivity.get((plan.unit, plan.adjacency), 0.0) > 0


def least(plan: Plan, cohort: int, sends: Sequence[Sends]) -> int:
    """The fewest contributions that a sum of these values over so many clients may have.

    Shares of noise were sized for the declared cohorts: of fewer clients, more must answer; and of more, more
    may be corrupt.
    """
    declared = max((s.cohort for s in sends if noised(plan, s)), default=0)
    enough = plan.survivors(max(cohort, declared))
    if plan.noise != "distributed" or not declared:
        return enough
    honest = plan.survivors(declared) - share_of(plan.corrupt, declared)
    return max(enough, honest + share_of(plan.corrupt, cohort))


def _placement(plan: Plan, sends: Sends) -> str:
    """Where noise is added to these values; what nobody sums, its client noises."""
    return "local" if sends.how == "each" else plan.noise


def _voided(plan: Plan, sends: Sends) -> bool:
    """Whether the sensitivity is not one: trained state moves with every record, and is not bounded.

    A client's whole contribution is bounded, whatever was trained on.
    """
    if plan.unit == "client":
        return False
    return not _accounted(plan) if sends.training is not None else sends.reads == "trained"


def _check_grid(plan: Plan, sends: Sends) -> None:
    """ConfigError for a grid that is too coarse for the noise, or too fine or narrow for a share of it.

    A share that its grid's bound cuts off is no share any more: the sum would have less noise than it says.
    """
    discrete_event(_total(plan, sends), _reach(plan, sends))
    farthest = _reach(plan, sends) + TAIL * _share(plan, sends)
    if farthest > sends.grid.limit:
        raise ConfigError(
            f"Expected {sends.name!r} and its share of the noise within {sends.grid.limit} grid units, they "
            f"reach {farthest:.3g}: the bound would cut the noise off. Take a coarser grid, or less noise."
        )


def _own_share(plan: Plan, sends: Sends) -> DpEvent:
    """What a server that sums in the clear sees of one client: its value with its own share of the noise."""
    return GaussianDpEvent(sqrt(_share(plan, sends) ** 2 - 4) / _reach(plan, sends))


def _reach(plan: Plan, sends: Sends) -> float:
    """The sensitivity in grid units."""
    return sends.sensitivity[plan.unit, plan.adjacency] / sends.grid.step


def _total(plan: Plan, sends: Sends) -> float:
    """Sigma of the sum of the honest shares, in grid units: what discreteness costs is added beforehand."""
    return sqrt((plan.noise_multiplier * _reach(plan, sends)) ** 2 + 4)


def _share(plan: Plan, sends: Sends) -> float:
    if not sends.cohort:
        raise ConfigError(
            f"The cohorts of {sends.name!r} have no least size, from which shares could be sized."
        )
    corrupt = share_of(plan.corrupt, sends.cohort)
    return share(_total(plan, sends), plan.survivors(sends.cohort), corrupt)


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
    return f"{bare} for the server, which central noise trusts: leave it out of `against`"


def _remedy(plan: Plan, sends: Sends) -> str:
    if plan.noise == "none" or noised(plan, sends):
        return "N"
    option = "`update_bound` in [local]" if plan.unit == "client" else "an option such as `clip`"
    return f"Bound it, by {option}, where its protocol has one; or n"


def noise(plan: Plan, sends: Sends, size: int, source: Source) -> NDArray[np.int64]:
    """One draw of the plan's noise for `size` grid integers: all of it, or one client's share of it."""
    if _placement(plan, sends) == "distributed":
        return discrete(size, _share(plan, sends), source)
    return rounded(size, plan.noise_multiplier * _reach(plan, sends), source)


def protect(
    plan: Plan,
    sends: Sends,
    value: Value,
    *,
    key: ReleaseKey,
    weight: float,
    seal: Callable[[Floats], bytes] | None,
    mask: Callable[[NDArray[np.int64]], NDArray[np.uint8]] | None = None,
    encrypt: Callable[[NDArray[np.int64]], bytes] | None = None,
    trained: bool = True,
    source: Source | None = None,
) -> Release:
    """Make a release of one value: the one place where summing, opening and noising meet.

    Args:
        weight: public weight in a sum, in (0, 1].
        seal: encrypts the hidden part for the key holder; needed where `plan.scores` is "ckks".
        mask, encrypt: hide the integers of this sum; needed where `plan.sum` is "masked" or "ckks".
        trained: as for `charge_of`.
        source: of the client's noise; the operating system's outside of tests.

    Raises:
        DataError: the value is not finite or outside its declared bound; the client abstains.
        LocalProtocolError: there is something to encrypt and nothing to encrypt it with.
    """
    charge = charge_of(plan, sends, trained=trained)
    if sends.how == "each" and value.then is None and noised(plan, sends):
        raise LocalProtocolError(
            f"{sends.name!r} is charged as noised, so its value must come as sums on the grid, with `then` "
            "for what follows from them; as it is, there is nothing to noise."
        )
    if value.then is not None:
        value = value.then(_with_noise(plan, sends, value.clear, source or Source()))
    numbers: NDArray[Any]
    sealed, form = b"", "open"
    if sends.how == "sum":
        if not 0 < weight <= 1:
            raise LocalProtocolError(f"Expected a weight in (0, 1], got {weight}.")
        if noised(plan, sends):
            numbers = _noised_sum(plan, sends, value.clear, weight, source or Source())
        else:
            numbers = sends.grid.quantise(weight * value.clear)
        if plan.sum == "masked":
            if mask is None:
                raise LocalProtocolError(f"The plan masks {sends.name!r}, but there is no mask for it.")
            numbers, form = mask(numbers.astype(np.int64)), "masked"
        elif plan.sum == "ckks":
            if encrypt is None:
                raise LocalProtocolError(f"The plan encrypts {sends.name!r}, but there is no key for it.")
            numbers, sealed, form = np.zeros(0), encrypt(numbers.astype(np.int64)), "encrypted"
    elif not (np.isfinite(value.clear).all() and np.isfinite(value.hidden).all()):
        raise DataError(f"The {sends.name} is not finite; clean the records.")
    elif plan.scores == "ckks" and value.hidden.size:
        if seal is None:
            raise LocalProtocolError(f"The plan encrypts {sends.name!r}, but there is no key to do it with.")
        numbers, sealed, form = value.clear, seal(value.hidden), "encrypted"
    else:
        numbers = np.concatenate([value.hidden, value.clear])
    return Release(
        key=key, unit=plan.unit, form=cast(Form, form), charge=charge, _numbers=numbers, _sealed=sealed
    )


def _noised_sum(plan: Plan, sends: Sends, value: Floats, weight: float, source: Source) -> NDArray[np.int32]:
    """Grid integers (d,) with this client's part of the noise, which is none where the server adds it.

    Weighted ones are truncated towards 0: to round could lengthen them beyond the sensitivity. A sum beyond
    the grid is clipped to it, and what is not finite is 0: to abstain would tell of it, for nothing.
    """
    inside = np.clip(np.where(np.isnan(value), 0.0, value), -sends.grid.bound, sends.grid.bound)
    numbers = np.trunc(weight * sends.grid.quantise(inside)).astype(np.int64)
    room = sends.grid.limit
    if plan.noise == "distributed":  # a share that the grid cuts off would be missing in the sum
        room -= ceil(TAIL * _share(plan, sends))
    numbers = np.clip(numbers, -room, room)
    if plan.noise != "central":
        numbers += noise(plan, sends, len(numbers), source)
    clipped: NDArray[np.int64] = np.clip(numbers, -sends.grid.limit, sends.grid.limit)
    return clipped.astype(np.int32)


def _with_noise(plan: Plan, sends: Sends, sums: Floats, source: Source) -> Floats:
    """Sums on the grid with a client's own noise on them, where the plan says so."""
    if not noised(plan, sends):
        return sums
    integers = np.rint(sums / sends.grid.step).astype(np.int64)
    drawn = integers + noise(plan, sends, len(integers), source)
    return drawn.astype(np.float64) * sends.grid.step


def learns(plan: Plan, sends: Sequence[Sends], party: str) -> str:
    """What `party` sees of clients that send these values under this plan, for the privacy card."""
    encrypted = [s for s in sends if plan.scores == "ckks" and s.reveals_encrypted]
    match party:
        case "server":
            single = [s for s in sends if s.how == "each" or plan.sum == "clear"]
            seen = [_told(plan, s, s.reveals_encrypted if s in encrypted else s.reveals) for s in single]
            summed = [
                f"the total over the cohort of {_told(plan, s, s.reveals)}" for s in sends if s not in single
            ]
            return ", and ".join([*(["of each client " + ", ".join(seen)] if seen else []), *summed])
        case "key-holder":
            takes_part = encrypted or plan.sum == "ckks"
            return "blinded integers, uniform to it" if takes_part else "nothing: it takes no part"
        case _:
            return "the broadcast models, and each client whether it was selected itself"


def _told(plan: Plan, sends: Sends, reveals: str) -> str:
    """`reveals`, and what protects it."""
    if not noised(plan, sends):
        return reveals if sends.training is None else f"{reveals}, trained privately"
    match _placement(plan, sends):
        case "local":
            return f"{reveals}, with noise"
        case "distributed" if plan.sum != "clear":
            return f"{reveals}, noise of the honest clients' shares included"
        case "distributed":
            return (
                f"{reveals}, with its own share of the noise (a stand-in for secure "
                "aggregation: trusted to sum before it looks)"
            )
        case _:
            return f"{reveals} (trusted to sum them and add the noise before anybody sees the sum)"
