"""Protecting a client's value under a plan: weighting, noising, concealing and charging make it a release."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.queries import Floats, Value, ValueSpec, undeclared
from securefl.core.abstaining import Abstains, Reason
from securefl.core.entropy import derived, long_fingerprint
from securefl.core.errors import DataError, LocalProtocolError
from securefl.core.hiding import Conceal, ConcealVector
from securefl.core.keys import SecretKey
from securefl.core.release import Form, Release, ReleaseKey
from securefl.dp.gaussian import Integers
from securefl.dp.noise import Source
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.mechanism import Mechanism
from securefl.mechanisms.outside import Outside

Noise = Mechanism | Outside
_EXACT = 2**52
"""A float64 represents every integer up to this bound exactly, with its noise."""


def protect(
    protection: Protection,
    value: Value,
    *,
    key: ReleaseKey,
    weight: float,
    conceal: Conceal | ConcealVector | None = None,
    trained: bool = True,
    secret: SecretKey | None = None,
    must_answer: bool = False,
) -> Release:
    """Make a release of one value.

        >>> import numpy as np
        >>> from securefl.algorithm import Plan, ValueSpec, Value
        >>> from securefl.core.release import ReleaseKey
        >>> from securefl.mechanisms import Protection, protect
        >>> plan = Plan(delta=1e-5, max_rounds=1, non_private=("step",))
        >>> step = ValueSpec(name="step", reduction="sum", reveals="a step")
        >>> key = ReleaseKey("client-0", b"session", 1, 0, 0, "step")
        >>> protect(Protection(plan, step), Value(clear=np.ones(2)), key=key, weight=1.0)
        Release(client-0, 'step', open, <sealed>)

    Guarantees:
        - The charge depends on the plan and the declarations only, not on the value.
        - A value that its client noises carries the noise that is charged. Floats are refused there: if they
          were rounded afterwards, one record could change them by more than was declared.
        - A noised value beyond its grid is cut to it. A refusal would reveal something of the records,
          uncharged.
        - A share of distributed noise has room on the grid on top of its value.
        - A weight never increases the distance of two noised values.
        - A sum that the plan hides leaves as concealed integers of its grid, or not at all.
        - A number that the plan hides leaves concealed, or not at all.
        - With a `secret`, the same place gives the same noise, and another place gives independent noise.
        - Under a `sampling_rate` below 1, a draw decides whether the value or zeros are sent (`takes_part`).
        - With a `secret`, two contents of one place have two fingerprints if they are noised or their sum is
          hidden. The ledger then sends only one of them.

    Args:
        protection: the plan of the run, and the value's spec.
        value: the client's value before protection.
        key: the holder, session, round, stage, attempt and name of the release.
        weight: the weight in a sum, in (0, 1].
        conceal: masks the integers of a sum (the release is "masked") or encrypts them ("encrypted"). For
            the hidden part of a number it is a `ConcealVector`, which has the bounds of the query. Required
            if the plan hides the value.
        trained: as for `Protection.charge`.
        secret: the client's noise is derived from it and the release's key. Without one the noise comes from
            the operating system.
        must_answer: whether the client's silence would reveal something of the records without a charge. A
            finite value beyond its grid is then cut to it, noised or not.

    Returns:
        The sealed release. Only a ledger opens or sends it.

    Raises:
        DataError: the value is not finite, or outside its declared bound or the bounds of its query. The
            client abstains, or sends the value that it would send without records.
        Abstains: `after_noise` refused a noised value, or a noised vector is outside the bounds of its query.
        LocalProtocolError: a value that must be noised has no grid integers, or they are of another step
            than the spec's; the plan hides the value and `conceal` is not of its kind; or the value answers
            linear queries and declares no number of releases.
        ConfigError: as for `Protection`.
    """
    plan, spec, mechanism = protection.plan, protection.spec, protection.mechanism
    charge = protection.charge(trained=trained)
    form: Form = "sparse" if protection.sparse else "open"
    sealed = b""
    source = _source(b"noise", key, secret)
    _require_grid(mechanism, spec, value)
    if not takes_part(protection, key, secret):
        assert value.integers is not None, "`_require_grid` refuses floats"
        value = replace(value, integers=np.zeros_like(value.integers))
    if spec.reduction == "sum":
        sent = numbers = _summand(mechanism, spec, value, weight, source, must_answer)
        if plan.hidden:
            if conceal is None or isinstance(conceal, ConcealVector):
                raise _unconcealed(spec)
            concealed = conceal(sent.astype(np.int64))
            if isinstance(concealed, bytes):
                form, numbers, sealed = "encrypted", np.zeros(0), concealed
            else:
                form, numbers = "masked", concealed
    else:
        value = _number(mechanism, spec, value, source)
        if value.hidden.size and spec.schedule.max_releases is None:
            raise undeclared(spec.name)
        sent = numbers = np.concatenate([value.hidden, value.clear])
        # A query that conceals a part is not answered in the clear: its bounds refuse an empty one.
        if plan.scores != "clear" and (value.hidden.size or conceal is not None):
            if not isinstance(conceal, ConcealVector):
                raise _unconcealed(spec)
            form, numbers = "encrypted", value.clear.astype(np.float64)
            sealed = _concealed(mechanism, spec, conceal, value)
    return Release(
        key=key,
        unit=plan.unit,
        form=form,
        charge=charge,
        _numbers=numbers,
        _sealed=sealed,
        content=_content(protection, secret, key, sent),
    )


def takes_part(protection: Protection, key: ReleaseKey, secret: SecretKey | None) -> bool:
    """Whether the client's draw for this release lets its own value into it. Otherwise it sends zeros.

    It does with a probability of `Protection.sampling_rate`, rounded down to 64 bits. Like noise, the draw
    follows from the `secret`: a release that is made again has the same one, and another release its own.
    """
    if (rate := protection.sampling_rate) == 1:
        return True
    return int(_source(b"sampling", key, secret).words(1)[0]) < int(rate * 2**64)


def is_cut(protection: Protection, value: Value, weight: float, *, must_answer: bool) -> bool:
    """Whether `protect` cuts this value to its grid, before noise. Only the value's owner may read it."""
    spec, mechanism = protection.spec, protection.mechanism
    if spec.reduction != "sum":
        return False
    if value.integers is not None and mechanism.noised:
        integers, inside = value.integers, _inside(mechanism, spec)
        beyond = _largest(integers) > spec.grid.limit
        return beyond or _largest(_weighted(integers, weight)) > inside
    return must_answer and _largest(value.floats()) > spec.grid.bound


def _largest(numbers: NDArray[Any]) -> float:
    """The largest magnitude; 0 of no numbers, nan if one is."""
    return float(max(-numbers.min(initial=0), numbers.max(initial=0)))


def _inside(mechanism: Noise, spec: ValueSpec) -> int:
    """The largest magnitude on the grid that leaves room for a share of noise."""
    # If the grid cut a share off, the sum would lack that noise.
    return spec.grid.limit - (mechanism.headroom().share or 0)


def _require_grid(mechanism: Noise, spec: ValueSpec, value: Value) -> None:
    """Raises LocalProtocolError for integers of another grid, and for floats that are charged as noised."""
    if value.integers is None:
        if mechanism.noised:
            raise LocalProtocolError(
                f"Expected integers of the grid for {spec.name!r}, which is charged as noised, got floats. "
                "If floats are rounded afterwards, a record moves them by more than was declared. Put each "
                "record on the grid by itself: Value.summed(rows, spec.grid, bound)."
            )
    elif value.step != spec.grid.step:
        raise LocalProtocolError(
            f"Expected integers of step {spec.grid.step!r}, the grid for which the noise of {spec.name!r} is "
            f"sized, got integers of step {value.step!r}. Make them on that grid: Value.summed(rows, "
            "spec.grid, bound). `statistic_spec` and `profile_spec` of the protocols give a specification "
            "and its values together."
        )


def _summand(
    mechanism: Noise, spec: ValueSpec, value: Value, weight: float, source: Source, must_answer: bool
) -> NDArray[Any]:
    """The client's contribution to a sum: its weighted value on the grid, with its part of the noise."""
    if not 0 < weight <= 1:
        raise LocalProtocolError(f"Expected a weight in (0, 1], got {weight}.")
    if value.integers is not None and mechanism.noised:
        return _noised_sum(mechanism, spec, value.integers, weight, source)
    floats = value.floats()
    if must_answer:  # nan stays and is refused: the client then sends the value that it would without records
        floats = spec.grid.clipped(floats)
    return spec.grid.quantise(floats, weight)


def _number(mechanism: Noise, spec: ValueSpec, value: Value, source: Source) -> Value:
    """The floats of a value that no party sums, with its client's noise if the plan asks for noise."""
    if value.integers is not None:
        sums = _with_noise(mechanism, spec, value.integers, source)
        try:
            value = Value(clear=sums) if value.after_noise is None else value.after_noise(sums)
        except DataError as error:
            if not mechanism.noised:
                raise
            raise Abstains(Reason.NOISED, str(error)) from None
    if not (np.isfinite(value.clear).all() and np.isfinite(value.hidden).all()):
        raise DataError(f"Expected a finite {spec.name}, got one that is not finite. Clean the records.")
    return value


def _concealed(mechanism: Noise, spec: ValueSpec, conceal: ConcealVector, value: Value) -> bytes:
    """The hidden part of a vector, encrypted.

    Raises DataError if the vector is outside the bounds of its query, and Abstains(NOISED) after noise. It
    depends on the vector, so it is no public reason.
    """
    length = conceal.bounds.clear_length
    try:
        # Values beside those of the bounds would leave in the clear, and say more than the score.
        if value.clear.shape != (length,):
            raise DataError(
                f"Expected of {spec.name!r}, as its declared bounds have it, {length} values in the clear, "
                f"got {value.clear.size}: it is not sent."
            )
        # Files reach a cipher without `protect`, so each cipher asks too; one of somebody else's may not.
        conceal.bounds.require_hidden(value.hidden)
        return conceal.conceal(value.hidden)
    except DataError as error:
        if mechanism.noised:
            raise Abstains(Reason.NOISED, str(error)) from None
        raise


def _unconcealed(spec: ValueSpec) -> LocalProtocolError:
    return LocalProtocolError(
        f"Expected a function that conceals {spec.name!r}, as the plan says, got none: it is not sent."
    )


def _source(what: bytes, key: ReleaseKey, secret: SecretKey | None) -> Source:
    return Source(None if secret is None else derived(secret, what + _place(key)))


def _place(key: ReleaseKey) -> bytes:
    numbers = (key.round, key.stage, key.attempt)
    return b"|".join([key.session, *(str(number).encode() for number in numbers), key.name.encode()])


def _content(
    protection: Protection, secret: SecretKey | None, key: ReleaseKey, numbers: NDArray[Any]
) -> bytes:
    """A fingerprint of a value that is noised, hidden or privately trained. Other values have none."""
    # Two versions of such a value under one draw of noise, or under one mask, would reveal their difference.
    # The ledger compares fingerprints and sends one version only.
    plain = not (protection.plan.hidden or protection.noised or protection.spec.training is not None)
    if secret is None or plain:
        return b""
    flat = np.ascontiguousarray(numbers).reshape(-1).view(np.uint8)
    return long_fingerprint(secret, b"content" + _place(key), flat.data)


def _noised_sum(
    mechanism: Noise, spec: ValueSpec, value: Integers, weight: float, source: Source
) -> NDArray[np.int32]:
    """Grid integers (d,) with this client's part of the noise, or without noise if another party adds it.

    A sum beyond the grid is clipped to it. Abstaining would reveal something of the records without a charge.
    """
    limit, inside = spec.grid.limit, _inside(mechanism, spec)
    numbers = _weighted(np.clip(value, -limit, limit), weight)
    numbers = np.clip(numbers, -inside, inside)
    drawn = mechanism.client_noise(len(numbers), source)
    if drawn is not None:
        numbers += drawn
    clipped: NDArray[np.int64] = np.clip(numbers, -limit, limit)
    return clipped.astype(np.int32)


def _weighted(numbers: Integers, weight: float) -> Integers:
    """Integers below 2^31 times a weight in (0, 1], truncated towards 0, since rounding could lengthen them.

    Two integers at distance d are at most d apart afterwards, so every sensitivity still holds.
    """
    # Products of floats lack this property. The weight has 30 bits, so products stay below 2^61.
    scaled = ceil(weight * 2**30)
    found: Integers = np.sign(numbers) * (np.abs(numbers) * scaled >> 30)
    return found


def _with_noise(mechanism: Noise, spec: ValueSpec, integers: Integers, source: Source) -> Floats:
    """Sums on the grid as floats, with a client's own noise if the plan asks for it."""
    drawn = mechanism.client_noise(len(integers), source)
    if drawn is not None:
        integers = np.clip(integers, -_EXACT, _EXACT) + drawn
    return integers.astype(np.float64) * spec.grid.step
