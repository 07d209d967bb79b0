"""How a client's value becomes a release under a plan: where summing, opening and noising meet."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from securefl.dp.gaussian import TAIL, discrete, rounded
from securefl.dp.noise import Source
from securefl.entropy import derived, fingerprint
from securefl.errors import DataError, LocalProtocolError
from securefl.keys import SecretKey
from securefl.plan import Plan, charge_of, noised, own_sigma, placement, reach
from securefl.release import Form, Release, ReleaseKey
from securefl.rounds import Floats, Sends, Value


def noise(plan: Plan, sends: Sends, size: int, source: Source) -> NDArray[np.int64]:
    """One draw of the plan's noise for `size` grid integers: all of it, or one client's share of it."""
    if placement(plan, sends) == "distributed":
        return discrete(size, own_sigma(plan, sends), source)
    return rounded(size, plan.noise_multiplier * reach(plan, sends), source)


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
    secret: SecretKey | None = None,
) -> Release:
    """Make a release of one value.

    Guarantees: what is noised in the ledger is noised here; what is hidden leaves as masked or encrypted
    integers of its public grid; with a `secret`, the same value at the same place becomes the same release.

    Args:
        weight: in a sum, in (0, 1].
        seal: encrypts the hidden part for the key holder; needed where `plan.scores` is "ckks".
        mask, encrypt: hide the integers of this sum; needed where `plan.sum` is "masked" or "ckks".
        trained: as for `charge_of`.
        secret: what the client's noise is drawn from, under the release's key; the operating system's
            without.

    Raises:
        DataError: the value is not finite or outside its declared bound; the client abstains.
        LocalProtocolError: there is something to encrypt and nothing to encrypt it with.
    """
    charge = charge_of(plan, sends, trained=trained)
    source = Source(None if secret is None else derived(secret, b"noise" + _place(key)))
    if sends.how == "each" and value.then is None and noised(plan, sends):
        raise LocalProtocolError(
            f"{sends.name!r} is charged as noised, so its value must come as sums on the grid, with `then` "
            "for what follows from them; as it is, there is nothing to noise."
        )
    if value.then is not None:
        value = value.then(_with_noise(plan, sends, value.clear, source))
    numbers: NDArray[Any]
    sealed, form = b"", "open"
    if sends.how == "sum":
        if not 0 < weight <= 1:
            raise LocalProtocolError(f"Expected a weight in (0, 1], got {weight}.")
        if noised(plan, sends):
            numbers = _noised_sum(plan, sends, value.clear, weight, source)
        else:
            numbers = sends.grid.quantise(weight * value.clear)
        content = _content(plan, sends, secret, key, numbers)
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
    else:
        numbers = np.concatenate([value.hidden, value.clear])
        content = _content(plan, sends, secret, key, numbers)
        if plan.scores == "ckks" and value.hidden.size:
            if seal is None:
                raise LocalProtocolError(
                    f"The plan encrypts {sends.name!r}, but there is no key to do it with."
                )
            numbers, sealed, form = value.clear, seal(value.hidden), "encrypted"
    return Release(
        key=key,
        unit=plan.unit,
        form=cast(Form, form),
        charge=charge,
        _numbers=numbers,
        _sealed=sealed,
        content=content,
    )


def _place(key: ReleaseKey) -> bytes:
    numbers = (key.round, key.stage, key.attempt)
    return b"|".join([key.session, *(str(number).encode() for number in numbers), key.name.encode()])


def _content(
    plan: Plan, sends: Sends, secret: SecretKey | None, key: ReleaseKey, numbers: NDArray[Any]
) -> bytes:
    """A fingerprint of a value that must not be told twice in two versions: it is noised, or it is masked.

    Two versions under one draw of noise, or under one mask, would show their difference.
    """
    if secret is None or (plan.sum == "clear" and not noised(plan, sends) and sends.training is None):
        return b""
    return fingerprint(secret, b"content" + _place(key), np.ascontiguousarray(numbers).tobytes())


def _noised_sum(plan: Plan, sends: Sends, value: Floats, weight: float, source: Source) -> NDArray[np.int32]:
    """Grid integers (d,) with this client's part of the noise, which is none where the server adds it.

    Weighted ones are truncated towards 0: to round could lengthen them beyond the sensitivity. A sum beyond
    the grid is clipped to it, and nan is 0: to abstain would tell of it, for nothing.
    """
    inside = np.clip(np.where(np.isnan(value), 0.0, value), -sends.grid.bound, sends.grid.bound)
    numbers = np.trunc(weight * sends.grid.quantise(inside)).astype(np.int64)
    room = sends.grid.limit
    if plan.noise == "distributed":  # a share that the grid cuts off would be missing in the sum
        room -= ceil(TAIL * own_sigma(plan, sends))
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
