"""Calibration: the noise that an epsilon needs, and the epsilon of a noise, of Gaussians and of DP-SGD.

exact   closed form of the Gaussian mechanism, composed exactly (Balle and Wang 2018): the default
paper   FedLog's Theorem 4: loose where it is valid, *wrong* at large epsilon, where it is refused
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import ceil, exp, floor, isfinite, log, log10, sqrt
from typing import Literal

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent
from scipy.optimize import brentq

from securefl.accounting.composition import compose, running_epsilon
from securefl.accounting.events import History, steps_event
from securefl.accounting.store import require_delta
from securefl.core.errors import ConfigError
from securefl.core.release import Adjacency

_UPWARD = 1 + 1e-12
"""Extra noise against rounding. With it a budget of exactly this epsilon covers all calibrated releases.
Without it, a difference in the last bit made the ledger refuse the last release."""
_LEAST_NOISE, _MOST_NOISE = 0.02, 1e7
"""The range of noise multipliers of DP-SGD. Below it, an accountant's epsilon is far above 1,000."""
Method = Literal["exact", "paper"]


def check_delta(delta: float, records: int, *, force: bool = False) -> None:
    """Raises ConfigError for delta >= 1 / n, which would allow publishing a record without noise."""
    require_delta(delta)
    if records >= 1 and delta >= 1 / records and not force:
        raise ConfigError(
            f"Expected delta below 1 / n = {1 / records:g}, got {delta:g}: it would allow publishing a "
            "record without noise. Take a smaller one (in a study, force_delta = true allows it)."
        )


def sensitivity(adjacency: Adjacency, bound: float) -> float:
    """L2 sensitivity of a sum, by class, of vectors (1, x) with |x| <= bound (specification, 1 and 2.3).

        >>> from securefl.dp import sensitivity
        >>> sensitivity("add-remove", 1.0), sensitivity("replace-one", 1.0)
        (1.4142135623730951, 2.0000000000000004)

    Adding or removing a record changes the sum by sqrt(1 + bound^2). Replacing a record changes two classes
    by that much, or one class by at most 2 bound.

    Raises:
        ConfigError: the bound is not finite and above 0.
    """
    if not (isfinite(bound) and bound > 0):
        raise ConfigError(f"Expected a finite bound > 0, got {bound}.")
    alone = sqrt(1 + bound**2)
    return max(sqrt(2) * alone, 2 * bound) if adjacency == "replace-one" else alone


def sigma(
    epsilon: float, delta: float, *, releases: int, sensitivity: float, method: Method = "exact"
) -> float:
    """Standard deviation of each of `releases` Gaussian releases that are together (epsilon, delta)-private.

        >>> from securefl.dp import sigma
        >>> round(sigma(1.0, 1e-5, releases=1, sensitivity=1.0), 3)
        3.731

    Args:
        epsilon, delta: the guarantee of all releases together.
        releases: the number of releases.
        sensitivity: L2, in the unit of sigma.
        method: the calibration, see the module.

    Raises:
        ConfigError: a value is out of range, or FedLog's theorem does not hold for these values.
    """
    _check_epsilon(epsilon)
    require_delta(delta)
    if releases < 1 or not (isfinite(sensitivity) and sensitivity > 0):
        raise ConfigError(f"Expected releases >= 1 and a sensitivity > 0, got {releases} and {sensitivity}.")
    # k Gaussians of sensitivity D are exactly one Gaussian of sensitivity sqrt(k) D. So the closed form
    # applies, without a search, and is fast at every epsilon.
    try:
        exact = _of_one(epsilon, delta) * sqrt(releases) * sensitivity * _UPWARD
    except (ValueError, OverflowError):
        raise ConfigError(
            f"Expected an epsilon for which noise can be computed, got {epsilon:g}. Take a smaller one."
        ) from None
    if method == "exact":
        return exact
    asked = paper_sigma(epsilon, delta, releases=releases, sensitivity=sensitivity)
    true = epsilon_of(asked, delta, releases=releases, sensitivity=sensitivity)
    if true > epsilon:
        raise ConfigError(
            f"Expected an epsilon at which FedLog's Theorem 4 holds, got {epsilon:g}: its noise gives "
            f'epsilon {true:.4g}. Calibrate with method "exact".'
        )
    return asked


@lru_cache(maxsize=1024)  # a study asks for the same guarantee again for each arm, round and figure
def _of_one(epsilon: float, delta: float) -> float:
    from dp_accounting.gaussian_mechanism import get_sigma_gaussian  # late: it loads scipy's statistics

    # at a huge epsilon the library's search begins at infinity or nan, and numpy warns of that
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(get_sigma_gaussian(epsilon, delta))


def paper_sigma(epsilon: float, delta: float, *, releases: int, sensitivity: float) -> float:
    """FedLog, Theorem 4: sqrt(8 k D^2 ln(e + epsilon / delta)) / epsilon."""
    logarithm = float(np.logaddexp(1, log(epsilon) - log(delta)))  # epsilon / delta can be infinite
    return sqrt(8 * releases * logarithm) * sensitivity / epsilon


def epsilon_of(sigma: float, delta: float, *, releases: int, sensitivity: float) -> float:
    """The exact epsilon of `releases` Gaussian releases with this sigma.

        >>> from securefl.dp import epsilon_of
        >>> round(epsilon_of(3.73, 1e-5, releases=1, sensitivity=1.0), 2)
        1.0

    Args:
        sigma, sensitivity: in the same unit, above 0.
        delta: in (0, 1).
        releases: the number of releases.

    Raises:
        UnsupportedEvent: sigma over the sensitivity is not above 0.
    """
    return compose({GaussianDpEvent(sigma / sensitivity): releases}, delta)


def training_epsilon(noise_multiplier: float, delta: float, *, sampling_rate: float, steps: int) -> float:
    """The epsilon of DP-SGD's steps, under add-or-remove adjacency.

        >>> from securefl.dp import training_epsilon
        >>> round(training_epsilon(1.1, 1e-5, sampling_rate=0.02, steps=5000), 2)
        7.86

    Args:
        noise_multiplier: z, the deviation of the noise on a sum of clipped gradients over the clipping norm.
        delta: in (0, 1).
        sampling_rate: q in (0, 1]; each record enters each step with this probability, independently.
        steps: the number of steps in all rounds together.

    Raises:
        ConfigError: a value is out of range.
    """
    _check_steps(delta, sampling_rate, steps)
    if not (isfinite(noise_multiplier) and noise_multiplier > 0):
        raise ConfigError(f"Expected a finite noise multiplier > 0, got {noise_multiplier}.")
    return compose({steps_event(sampling_rate, noise_multiplier, steps): 1}, delta)


def training_noise(epsilon: float, delta: float, *, sampling_rate: float, steps: int) -> float:
    """The noise multiplier at which DP-SGD's steps cost at most epsilon, and with 0.1 % less cost more.

        >>> from securefl.dp import training_noise
        >>> round(training_noise(7.861, 1e-5, sampling_rate=0.02, steps=5000), 3)
        1.1

    The cost is the one that a ledger states, whatever the rounds in which the steps come. The result is
    rounded up to five digits.

    Args:
        epsilon: of all steps together.
        delta, sampling_rate, steps: as for `training_epsilon`.

    Raises:
        ConfigError: a value is out of range, or no noise between 0.02 and 1e7 costs this epsilon.
    """
    _check_steps(delta, sampling_rate, steps)
    return shared_training_noise(epsilon, delta, {steps_event(sampling_rate, 1.0, steps): 1})


def shared_training_noise(
    epsilon: float, delta: float, training: Mapping[DpEvent, int], *, at: float = 1.0, releases: int = 0
) -> float:
    """The noise multiplier of private training that shares epsilon, half and half, with `releases` Gaussians.

    The training alone and the Gaussians alone cost the same, and all together epsilon. `multiplier_beside`
    gives the Gaussians' noise. The result is rounded up to five digits.

    Args:
        epsilon: of all together.
        delta: in (0, 1).
        training: the events of all training, with their counts. Their noise grows with the multiplier.
        at: the noise multiplier of these events.
        releases: the number of Gaussians.

    Raises:
        ConfigError: a value is out of range, or no noise between 0.02 and 1e7 costs this epsilon.
    """
    _check_epsilon(epsilon)
    unit = History.of(training).scaled(1 / at)
    alone = _training_noise(epsilon, delta, unit)
    return _shared(epsilon, delta, unit, releases, alone) if releases else alone


def check_training(epsilon: float, delta: float, spent: Mapping[DpEvent, int]) -> None:
    """Raises ConfigError if training costs epsilon or more, so that nothing is left for a release."""
    alone = compose(spent, delta)
    if not alone < epsilon:
        raise ConfigError(
            f"Expected training to cost less than epsilon {epsilon:g}, which was asked for in all, got "
            f"{alone:.4g} for training alone. Train fewer steps or with more noise, or ask for a larger "
            "epsilon."
        )


def multiplier_beside(epsilon: float, delta: float, *, releases: int, spent: Mapping[DpEvent, int]) -> float:
    """The noise multiplier at which `releases` Gaussians and the events in `spent` together cost epsilon.

    Raises:
        ConfigError: `spent` alone costs epsilon.
    """
    check_training(epsilon, delta, spent)
    return _beside(epsilon, delta, releases, frozenset(spent.items()))


@lru_cache(maxsize=64)
def _beside(epsilon: float, delta: float, releases: int, other: frozenset[tuple[DpEvent, int]]) -> float:
    """Search for the multiplier.

    Results are cached: a search takes seconds, and all arms and seeds of a study need the same one.
    """
    spent = dict(other)

    def excess(log_multiplier: float) -> float:
        events = {**spent, GaussianDpEvent(exp(log_multiplier)): releases}
        return running_epsilon(History.of(events), delta) - epsilon

    # the noise that the releases need without `spent` is too little, so the root is above it
    low = log(sigma(epsilon, delta, releases=releases, sensitivity=1.0)) - 1e-3
    high = low + 1.0
    while excess(high) > 0:
        high += 1.0
        if high > log(_MOST_NOISE):
            raise ConfigError(
                f"Expected more than epsilon {epsilon:g}, which training alone costs to within the accuracy "
                "of the ledger: no noise is large enough for the releases beside it. Ask for a larger one."
            )
    return _rounded_up(exp(_root(excess, low, high)))


@lru_cache(maxsize=256)
def _training_noise(epsilon: float, delta: float, unit: History) -> float:
    """Search for the noise multiplier of this history, which has a multiplier of 1."""
    steps = sum(unit.steps.values())
    schedule = f"{steps:,} steps at sampling rates up to {max([q for q, _ in unit.steps], default=1.0):g}"
    if not steps:
        schedule = "its steps on all records"

    def excess(log_multiplier: float) -> float:
        return running_epsilon(unit.scaled(exp(log_multiplier)), delta) - epsilon

    # without sampling the steps are one Gaussian, which needs more noise
    whole = unit.mu_squared + sum(count / z**2 for (_, z), count in unit.steps.items())
    try:
        high = min(sigma(epsilon, delta, releases=1, sensitivity=sqrt(whole)), _MOST_NOISE)
    except ConfigError:  # of an epsilon so large that its sigma is 0
        high = _LEAST_NOISE
    high = log(max(high, 2 * _LEAST_NOISE))
    while excess(high) > 0:
        if high >= log(_MOST_NOISE):
            raise ConfigError(
                f"Expected an epsilon that noise can reach, got {epsilon:g}: {schedule} cost "
                f"{excess(high) + epsilon:.2g} even at noise multiplier {_MOST_NOISE:g}. Ask for a larger "
                "epsilon, or train fewer steps."
            )
        high = min(high + 1.0, log(_MOST_NOISE))
    low = high
    while excess(low) <= 0:
        if low <= log(_LEAST_NOISE):
            raise ConfigError(
                f"Expected an epsilon that needs noise, got {epsilon:g}: {schedule} cost "
                f"{excess(low) + epsilon:.4g} even at noise multiplier {_LEAST_NOISE:g}. Ask for a smaller "
                "epsilon."
            )
        low = max(low - 0.7, log(_LEAST_NOISE))
    return _rounded_up(exp(_root(excess, low, high)))


@lru_cache(maxsize=64)
def _shared(epsilon: float, delta: float, unit: History, releases: int, alone: float) -> float:
    def excess(log_multiplier: float) -> float:
        noised = unit.scaled(exp(log_multiplier))
        cost = max(running_epsilon(noised, delta), 1e-6 * epsilon)  # below, half of the noise costs nothing
        beside = sigma(cost, delta, releases=1, sensitivity=1.0)
        both = History(noised.endless, noised.mu_squared + beside**-2, noised.steps)
        return running_epsilon(both, delta) - epsilon

    low = high = log(alone)
    while excess(high) > 0 and high < log(_MOST_NOISE):
        high += 0.7
    return _rounded_up(exp(float(brentq(excess, low, high, xtol=1e-3))))


def _rounded_up(multiplier: float) -> float:
    """The multiplier, rounded up to five digits.

    Parties on different machines compute it, each for itself. Their last bits may differ; five digits do not.
    """
    scale = 10.0 ** (4 - floor(log10(multiplier)))
    return ceil(multiplier * scale) / scale


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    """The point, on the safe side of the root, at which `excess` is 0 or below."""
    found = float(brentq(excess, low, high, xtol=1e-5)) + 1e-5
    while excess(found) > 0:  # loss distributions are discrete, so epsilon falls in steps
        found += 1e-5
    return found


def _check_epsilon(epsilon: float) -> None:
    if not (epsilon > 0 and isfinite(epsilon)):
        raise ConfigError(
            f"Expected a finite epsilon > 0, got {epsilon}. No noise gives 0, and inf needs none. Take "
            "a number such as 2."
        )


def _check_steps(delta: float, sampling_rate: float, steps: int) -> None:
    require_delta(delta)
    if not 0 < sampling_rate <= 1:
        raise ConfigError(f"Expected a sampling rate in (0, 1], got {sampling_rate}.")
    if steps < 1:
        raise ConfigError(f"Expected steps >= 1, got {steps}.")
