"""Calibration: the noise that an epsilon needs, and the epsilon of a noise.

exact   closed form of the Gaussian mechanism, composed exactly (Balle and Wang 2018): the default
paper   FedLog's Theorem 4: loose where it is valid, *wrong* at large epsilon, where it is refused
rdp, pld  by accountant, for checks
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import exp, inf, isfinite, log, sqrt
from typing import Literal

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, get_sigma_gaussian
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq

from securefl.accounting.composition import COARSE, compose, rdp_epsilon
from securefl.accounting.composition import epsilon as cost
from securefl.accounting.events import History
from securefl.accounting.store import require_delta
from securefl.core.errors import ConfigError
from securefl.core.release import Adjacency

_UPWARD = 1 + 1e-12
"""Extra noise against rounding. With it a budget of exactly this epsilon covers all calibrated releases.
Without it, a difference in the last bit made the ledger refuse the last release."""
_MOST_EXTRA = 8.0
"""The search for an accountant's sigma ends at this multiple of the exact sigma."""
Method = Literal["exact", "paper", "rdp", "pld"]


def check_delta(delta: float, records: int, *, force: bool = False) -> None:
    """Raises ConfigError for delta >= 1 / n, which would allow publishing a record without noise."""
    require_delta(delta)
    if records >= 1 and delta >= 1 / records and not force:
        raise ConfigError(
            f"Expected delta below 1 / n = {1 / records:g}, got {delta:g}: it would allow publishing a "
            "record without noise. Take a smaller one, or force it (in a study: force_delta = true)."
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
    match adjacency:
        case "add-remove" | "zero-out":
            return alone
        case "replace-one":
            return max(sqrt(2) * alone, 2 * bound)


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
    if not (epsilon > 0 and isfinite(epsilon)):
        raise ConfigError(f"Expected a finite epsilon > 0, got {epsilon}.")
    require_delta(delta)
    if releases < 1 or not (isfinite(sensitivity) and sensitivity > 0):
        raise ConfigError(f"Expected releases >= 1 and a sensitivity > 0, got {releases} and {sensitivity}.")
    # k Gaussians of sensitivity D are exactly one Gaussian of sensitivity sqrt(k) D. So the closed form
    # applies, without a search, and is fast at every epsilon.
    try:
        # at a huge epsilon the library's search begins at infinity, and numpy warns of that
        with np.errstate(divide="ignore"):
            one = float(get_sigma_gaussian(epsilon, delta))
        exact = one * sqrt(releases) * sensitivity * _UPWARD
    except (ValueError, OverflowError):
        raise ConfigError(
            f"Expected an epsilon for which noise can be computed, got {epsilon:g}. Take a smaller one."
        ) from None
    match method:
        case "exact":
            return exact
        case "paper":
            asked = paper_sigma(epsilon, delta, releases=releases, sensitivity=sensitivity)
            true = epsilon_of(asked, delta, releases=releases, sensitivity=sensitivity)
            if true > epsilon:
                raise ConfigError(
                    f"Expected an epsilon at which FedLog's Theorem 4 holds, got {epsilon:g}: its noise "
                    f'gives epsilon {true:.4g}. Calibrate with method "exact".'
                )
            return asked
        case "rdp" | "pld":
            return _searched(epsilon, delta, releases, sensitivity, method, exact)


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
        history = History.of({**spent, GaussianDpEvent(exp(log_multiplier)): releases})
        return cost(history, delta, interval=COARSE) - epsilon  # an upper bound: never too little noise

    # the noise that the releases need without `spent` is too little, so the root is above it
    high = log(sigma(epsilon, delta, releases=releases, sensitivity=1.0))
    low = high
    while excess(high) > 0:
        high += 1.0
    found = float(brentq(excess, low - 1e-3, high, xtol=1e-5))
    return exp(found + 1e-5)  # on the safe side of the root


def _searched(
    epsilon: float, delta: float, releases: int, sensitivity: float, method: Method, exact: float
) -> float:
    """Search, from the exact sigma upwards, for the sigma at which an accountant states epsilon."""

    def excess(scale: float) -> float:
        mu_squared = releases * (sensitivity / (exact * scale)) ** 2
        history = History(mu_squared=mu_squared)
        found = rdp_epsilon(history, delta) if method == "rdp" else _pld_epsilon(mu_squared, delta)
        return (found if found < inf else 1e6) - epsilon

    if excess(_MOST_EXTRA) > 0:
        raise ConfigError(
            f"Expected a pair that the accountant {method!r} can calibrate, got epsilon {epsilon:g} at delta "
            f'{delta:g}. Calibrate with method "exact".'
        )
    # accountants state upper bounds, so they need more noise, never less
    return exact * float(brentq(excess, 0.999, _MOST_EXTRA, xtol=1e-6))


def _pld_epsilon(mu_squared: float, delta: float) -> float:
    interval = min(1e-3, sqrt(mu_squared) / 500)
    found = pld.from_gaussian_mechanism(1 / sqrt(mu_squared), value_discretization_interval=interval)
    return float(found.get_epsilon_for_delta(delta))
