"""How a client's value becomes a release under a plan: where summing, opening and noising meet."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Floats, Value, ValueSpec, undeclared
from securefl.core.abstaining import Abstains, Reason
from securefl.core.entropy import derived, fingerprint
from securefl.core.errors import DataError, LocalProtocolError
from securefl.core.hiding import Conceal, Concealed
from securefl.core.keys import SecretKey
from securefl.core.release import Release, ReleaseKey
from securefl.dp.gaussian import Integers
from securefl.dp.noise import Source
from securefl.mechanisms.charges import charge_of, sparse
from securefl.mechanisms.registry import mechanism_of

_EXACT = 2**52
"""A float64 holds integers up to it exactly, and the noise on them."""


def protect(
    plan: Plan,
    spec: ValueSpec,
    value: Value,
    *,
    key: ReleaseKey,
    weight: float,
    conceal: Conceal | None = None,
    trained: bool = True,
    secret: SecretKey | None = None,
    speaks: bool = False,
) -> Release:
    """Make a release of one value.

    Guarantees:
        - The charge follows from the plan and from the declarations, and not from the value.
        - A value that its client noises carries the noise that is charged. Floats are refused there: rounded
          afterwards, they would move by more than was declared.
        - A noised value beyond its grid is cut to it. To refuse it would tell of the records, uncharged.
        - A share of distributed noise has room on the grid beside its value.
        - A weight moves two noised values no further apart.
        - A sum that the plan hides leaves as concealed integers of its grid, or not at all.
        - A number that the plan hides leaves concealed, or not at all.
        - With a `secret`, the same place gives the same noise, and another place other noise.
        - With a `secret`, two contents of one place have two fingerprints, if they are noised or their sum is
          hidden. The ledger sends one of them.

    Args:
        weight: the weight in a sum, in (0, 1].
        conceal: hides the integers of a sum, or the hidden part of a number. Needed if the plan hides the
            value.
        trained: as for `charge_of`.
        speaks: whether silence would tell of the records what no charge is for. A finite value beyond its
            grid is then cut to it, noised or not.
        secret: the client's noise is drawn from it, under the release's key. Without one it is drawn from the
            operating system.

    Raises:
        DataError: the value is not finite or outside its declared bound. The client abstains, or sends what
            it would without records.
        LocalProtocolError: a value that must be noised has no integers of the grid, or the plan hides the
            value and there is nothing to hide it with. Or it answers linear queries, and declares no number
            of releases.
    """
    charge = charge_of(plan, spec, trained=trained)
    told: NDArray[Any]
    source = Source(None if secret is None else derived(secret, b"noise" + _place(key)))
    _require_integers(plan, spec, value)
    hidden = None
    if spec.reduction == "sum":
        told = _summand(plan, spec, value, weight, source, speaks)
        if plan.hidden:
            hidden = _concealed(spec, conceal, told.astype(np.int64))
    else:
        value = _number(plan, spec, value, source)
        if value.hidden.size and spec.max_releases is None:
            raise undeclared(spec.name)
        told = np.concatenate([value.hidden, value.clear])
        # a way that waits for a hidden part is not sent one in the clear: it refuses an empty one
        if plan.scores != "clear" and (value.hidden.size or conceal is not None):
            hidden = _concealed(spec, conceal, value.hidden)
            hidden = replace(hidden, numbers=np.concatenate([hidden.numbers, value.clear]))
    return Release(
        key=key,
        unit=plan.unit,
        form=hidden.form if hidden is not None else "sparse" if sparse(plan, spec) else "open",
        charge=charge,
        _numbers=told if hidden is None else hidden.numbers,
        _sealed=b"" if hidden is None else hidden.sealed,
        content=_content(plan, spec, secret, key, told),
    )


def _require_integers(plan: Plan, spec: ValueSpec, value: Value) -> None:
    """LocalProtocolError for floats where noise is charged."""
    if value.integers is None and mechanism_of(plan, spec).noised:
        raise LocalProtocolError(
            f"Expected integers of the grid for {spec.name!r}, which is charged as noised, got floats. "
            "Rounded afterwards, they would move by more than was declared. Send Value(integers=...), each "
            "record put on the grid by itself (`dp.clipping.to_grid`)."
        )


def _summand(
    plan: Plan, spec: ValueSpec, value: Value, weight: float, source: Source, speaks: bool
) -> NDArray[Any]:
    """What a client adds to a sum: its weighted value on the grid, with its part of the noise."""
    if not 0 < weight <= 1:
        raise LocalProtocolError(f"Expected a weight in (0, 1], got {weight}.")
    if value.integers is not None and mechanism_of(plan, spec).noised:
        return _noised_sum(plan, spec, value.integers, weight, source)
    floats = value.floats(spec.grid)
    if speaks:  # nan stays, and is refused: the client then sends what it would without records
        floats = np.clip(floats, -spec.grid.bound, spec.grid.bound)
    return spec.grid.quantise(floats, weight)


def _number(plan: Plan, spec: ValueSpec, value: Value, source: Source) -> Value:
    """The floats of a value that nobody sums, with its client's noise where the plan says so."""
    if value.integers is not None:
        sums = _with_noise(plan, spec, value.integers, source)
        try:
            value = Value(clear=sums) if value.after_noise is None else value.after_noise(sums)
        except DataError as error:
            if not mechanism_of(plan, spec).noised:
                raise
            raise Abstains(Reason.NOISED, str(error)) from None
    if not (np.isfinite(value.clear).all() and np.isfinite(value.hidden).all()):
        raise DataError(f"Expected a finite {spec.name}, got one that is not finite. Clean the records.")
    return value


def _concealed(spec: ValueSpec, conceal: Conceal | None, numbers: NDArray[Any]) -> Concealed:
    if conceal is None:
        raise LocalProtocolError(
            f"Expected something to hide {spec.name!r} with, as the plan says, got nothing: it is not sent."
        )
    return conceal(numbers)


def _place(key: ReleaseKey) -> bytes:
    numbers = (key.round, key.stage, key.attempt)
    return b"|".join([key.session, *(str(number).encode() for number in numbers), key.name.encode()])


def _content(
    plan: Plan, spec: ValueSpec, secret: SecretKey | None, key: ReleaseKey, numbers: NDArray[Any]
) -> bytes:
    """A fingerprint of a value that is noised, hidden or privately trained. Others have none."""
    # Two versions of such a value under one draw of noise, or under one mask, would show their difference.
    # The ledger compares fingerprints, and sends one version only.
    if secret is None or (not plan.hidden and not mechanism_of(plan, spec).noised and spec.training is None):
        return b""
    return fingerprint(secret, b"content" + _place(key), np.ascontiguousarray(numbers).tobytes())


def _noised_sum(
    plan: Plan, spec: ValueSpec, value: Integers, weight: float, source: Source
) -> NDArray[np.int32]:
    """Grid integers (d,) with this client's part of the noise, or without noise if another party adds it.

    A sum beyond the grid is clipped to it. To abstain would tell of the records, without a charge.
    """
    limit, mechanism = spec.grid.limit, mechanism_of(plan, spec)
    numbers = _weighted(np.clip(value, -limit, limit), weight)
    # A share that the grid cuts off would be missing in the sum.
    inside = limit - (mechanism.headroom().share or 0)
    numbers = np.clip(numbers, -inside, inside)
    drawn = mechanism.client_noise(len(numbers), source)
    if drawn is not None:
        numbers += drawn
    clipped: NDArray[np.int64] = np.clip(numbers, -limit, limit)
    return clipped.astype(np.int32)


def _weighted(numbers: Integers, weight: float) -> Integers:
    """Integers below 2^31 times a weight in (0, 1], truncated towards 0, since rounding could lengthen them.

    Two integers that are d apart are at most d apart afterwards, so any sensitivity stays as it is.
    """
    # Products of floats do not promise that. The weight has 30 bits, so products stay below 2^61.
    scaled = ceil(weight * 2**30)
    found: Integers = np.sign(numbers) * (np.abs(numbers) * scaled >> 30)
    return found


def _with_noise(plan: Plan, spec: ValueSpec, integers: Integers, source: Source) -> Floats:
    """Sums on the grid as floats, with a client's own noise on them if the plan says so."""
    drawn = mechanism_of(plan, spec).client_noise(len(integers), source)
    if drawn is not None:
        integers = np.clip(integers, -_EXACT, _EXACT) + drawn
    return integers.astype(np.float64) * spec.grid.step
