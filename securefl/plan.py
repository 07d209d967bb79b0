"""The plan of a run, and how a client's value becomes a release under it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent
from numpy.typing import NDArray

from securefl.dp.gaussian import rounded
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
        sum: how sums are summed.
        scores: how `each` numbers are opened: "clear", or "ckks" (encrypted; the server learns the
            numbers, the key holder nothing).
        noise: where noise is added to sums that declare a sensitivity: by each client ("local"), or once by
            the server that sums ("central", which trusts it); sigma is `noise_multiplier` times that.
        unit, adjacency, delta: what epsilon means.
        unprotected: names of values that may leave without noise; epsilon is then infinite.
        against: parties that the budget must hold against; the rest are trusted by name.
        budget: the most epsilon per holder; None is no limit.
        schedule: declared number of rounds; there is no release after it.
    """

    sum: Literal["clear"] = "clear"
    scores: Literal["clear", "ckks"] = "clear"
    noise: Literal["none", "local", "central"] = "none"
    noise_multiplier: float = 0.0
    unit: Unit = "record"
    adjacency: Adjacency = "replace-one"
    delta: float
    unprotected: tuple[str, ...] = ()
    against: tuple[str, ...] = PARTIES
    budget: float | None = None
    schedule: int

    def digest(self) -> bytes:
        """SHA-256 of the canonical plan: parties that agree on it agree on every charge."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).digest()


def charge_of(plan: Plan, sends: Sends) -> Charge:
    """The charge of one release, from public inputs only.

    Raises:
        ConfigError: the value is neither noised, nor public, nor named as unprotected.
    """
    if sends.sensitivity.get((plan.unit, plan.adjacency)) == 0:
        return NO_COST
    if noised(plan, sends) and plan.noise == "local":
        event = GaussianDpEvent(plan.noise_multiplier)
        return Charge(server=event, key_holder=NoOpDpEvent(), others=event)
    if noised(plan, sends) and SERVER not in plan.against:
        event = GaussianDpEvent(plan.noise_multiplier)
        return Charge(server=NonPrivateDpEvent(), key_holder=NoOpDpEvent(), others=event)
    if sends.name not in plan.unprotected:
        raise ConfigError(
            f"{sends.name!r} would leave its client without noise{_why(plan, sends)}. Name it in [privacy] "
            f'unprotected = ["{sends.name}"] to allow that (epsilon is then infinite, and reported so).'
        )
    return UNPROTECTED


def noised(plan: Plan, sends: Sends) -> bool:
    """Whether this plan adds noise to these values: a sum of bounded sensitivity in the plan's unit."""
    return plan.noise != "none" and sends.how == "sum" and (plan.unit, plan.adjacency) in sends.sensitivity


def _why(plan: Plan, sends: Sends) -> str:
    if plan.noise == "none":
        return ""
    if noised(plan, sends):
        return " for the server, which central noise trusts: leave it out of `against`"
    return f": one {plan.unit} moves it without bound ({plan.adjacency})"


def noise(plan: Plan, sends: Sends, size: int, source: Source) -> NDArray[np.int64]:
    """Noise for a sum of `size` grid integers, sigma the multiplier times the sensitivity in grid units."""
    sensitivity = sends.sensitivity[plan.unit, plan.adjacency] / sends.grid.step
    return rounded(size, plan.noise_multiplier * sensitivity, source)


def protect(
    plan: Plan,
    sends: Sends,
    value: Value,
    *,
    key: ReleaseKey,
    weight: float,
    seal: Callable[[Floats], bytes] | None,
    source: Source | None = None,
) -> Release:
    """Make a release of one value: the one place where summing, opening and noising meet.

    Args:
        weight: public weight in a sum, in (0, 1].
        seal: encrypts the hidden part for the key holder; needed where `plan.scores` is "ckks".
        source: of local noise; the operating system's outside of tests.

    Raises:
        DataError: the value is not finite or outside its declared bound, or noise is asked for on a weighted
            sum; the client abstains.
        LocalProtocolError: there is something to encrypt and nothing to encrypt it with.
    """
    charge = charge_of(plan, sends)
    numbers: NDArray[Any]
    sealed, form = b"", "open"
    if sends.how == "sum":
        if not 0 < weight <= 1:
            raise LocalProtocolError(f"Expected a weight in (0, 1], got {weight}.")
        numbers = sends.grid.quantise(weight * value.clear)
        if noised(plan, sends) and plan.noise == "local":
            if weight != 1:
                raise DataError("The server weighs a noised sum, which changes what the noise is worth.")
            total = numbers + noise(plan, sends, len(numbers), source or Source())
            numbers = np.clip(total, -sends.grid.limit, sends.grid.limit).astype(np.int32)
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


def learns(plan: Plan, sends: Sequence[Sends], party: str) -> str:
    """What `party` sees of clients that send these values under this plan, for the privacy card."""
    encrypted = [s for s in sends if plan.scores == "ckks" and s.reveals_encrypted]
    match party:
        case "server":
            seen = [s.reveals_encrypted if s in encrypted else s.reveals for s in sends]
            return "of each client " + ", ".join(seen)
        case "key-holder":
            return "blinded integers, uniform to it" if encrypted else "nothing: it takes no part"
        case _:
            return "the broadcast models, and each client whether it was selected itself"
