"""How much noise an epsilon needs.

exact   closed form of the Gaussian mechanism, composed exactly (Balle and Wang 2018): the default
paper   FedLog's Theorem 4, loose below its validity and *wrong* above it: there it is refused
rdp, pld  by accountant, for checks
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import exp, inf, isfinite, log, sqrt
from sys import float_info
from typing import Final, Literal

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, get_sigma_gaussian
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq

from securefl.accounting.composition import COARSE, compose, rdp_epsilon
from securefl.accounting.composition import epsilon as cost
from securefl.accounting.events import History
from securefl.core.errors import ConfigError
from securefl.core.release import Adjacency

_UPWARD = 1 + 1e-12
"""More noise by what rounding takes: a budget of this very epsilon must bear the whole schedule."""
_MOST_EXTRA = 8.0
"""Times the exact noise, the most that an accountant asks for."""
Method = Literal["exact", "paper", "rdp", "pld"]


SMALLEST_DELTA: Final = float_info.min
"""Below it floats lose digits, and 1 / delta is infinite. No delta that means anything is near it."""


def require_delta(delta: float) -> None:
    """ConfigError for what is no probability, or one that no accountant computes with."""
    if not 0 < delta < 1:
        raise ConfigError(f"Expected 0 < delta < 1, got {delta}.")
    if delta < SMALLEST_DELTA:
        raise ConfigError(f"Expected delta >= {SMALLEST_DELTA:.3g}, got {delta}; take 1e-300, or 1e-10.")


def check_delta(delta: float, records: int, *, force: bool = False) -> None:
    """Raises ConfigError for delta >= 1 / n, which would allow releasing a record as it is."""
    require_delta(delta)
    if records >= 1 and delta >= 1 / records and not force:
        raise ConfigError(
            f"delta = {delta:g} is at least 1 / n = {1 / records:g}: it would allow publishing a "
            "record as it is. Take a smaller one, or force it."
        )


def sensitivity(adjacency: Adjacency, bound: float) -> float:
    """Of a sum of vectors (1, x), one class each, with |x| <= bound, in L2 (specification, 1 and 2.3).

    Add or remove: sqrt(1 + bound^2). Replace one: two classes change, or one by at most 2 bound.
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
    """Standard deviation of each of `releases` Gaussian releases, together (epsilon, delta)-private.

    Raises ConfigError for values out of range, and where the paper's theorem does not hold.
    """
    if not (epsilon > 0 and isfinite(epsilon)):
        raise ConfigError(f"Expected a finite epsilon > 0, got {epsilon}.")
    require_delta(delta)
    if releases < 1 or not (isfinite(sensitivity) and sensitivity > 0):
        raise ConfigError(f"Expected releases >= 1 and a sensitivity > 0, got {releases} and {sensitivity}.")
    try:
        exact = float(get_sigma_gaussian(epsilon, delta)) * sqrt(releases) * sensitivity * _UPWARD
    except (ValueError, OverflowError):
        raise ConfigError(
            f"No noise can be worked out for epsilon {epsilon:g}: take a smaller one."
        ) from None
    match method:
        case "exact":
            return exact
        case "paper":
            asked = paper_sigma(epsilon, delta, releases=releases, sensitivity=sensitivity)
            true = epsilon_of(asked, delta, releases=releases, sensitivity=sensitivity)
            if true > epsilon:
                raise ConfigError(
                    f"FedLog's Theorem 4 does not hold at epsilon {epsilon:g}: its noise really gives "
                    f"{true:.4g}. Calibrate exactly."
                )
            return asked
        case "rdp" | "pld":
            return _searched(epsilon, delta, releases, sensitivity, method, exact)


def paper_sigma(epsilon: float, delta: float, *, releases: int, sensitivity: float) -> float:
    """FedLog, Theorem 4: sqrt(8 k D^2 ln(e + epsilon / delta)) / epsilon."""
    logarithm = float(np.logaddexp(1, log(epsilon) - log(delta)))  # epsilon / delta can be infinite
    return sqrt(8 * releases * logarithm) * sensitivity / epsilon


def epsilon_of(sigma: float, delta: float, *, releases: int, sensitivity: float) -> float:
    """Epsilon that `releases` releases with this sigma really have, exactly."""
    return compose({GaussianDpEvent(sigma / sensitivity): releases}, delta)


def check_training(epsilon: float, delta: float, spent: Mapping[DpEvent, int]) -> None:
    """Raises ConfigError where training alone costs epsilon, and leaves nothing for a release."""
    alone = compose(spent, delta)
    if not alone < epsilon:
        raise ConfigError(
            f"Training alone costs epsilon {alone:.4g}, and {epsilon:g} was asked for in all: train fewer "
            "steps or with more noise, or ask for a larger epsilon."
        )


def multiplier_beside(epsilon: float, delta: float, *, releases: int, spent: Mapping[DpEvent, int]) -> float:
    """The noise multiplier at which `releases` Gaussians, beside what is spent otherwise, cost epsilon.

    Raises ConfigError where what is spent otherwise leaves nothing.
    """
    check_training(epsilon, delta, spent)
    return _beside(epsilon, delta, releases, frozenset(spent.items()))


@lru_cache(maxsize=64)
def _beside(epsilon: float, delta: float, releases: int, other: frozenset[tuple[DpEvent, int]]) -> float:
    """The search takes seconds, and the arms and seeds of a study ask for the same."""
    spent = dict(other)

    def excess(log_multiplier: float) -> float:
        history = History.of({**spent, GaussianDpEvent(exp(log_multiplier)): releases})
        return cost(history, delta, interval=COARSE) - epsilon  # from above: never less noise than it takes

    high = log(sigma(epsilon, delta, releases=releases, sensitivity=1.0))
    low = high
    while excess(high) > 0:
        high += 1.0
    found = float(brentq(excess, low - 1e-3, high, xtol=1e-5))
    return exp(found + 1e-5)  # on the safe side of the root


def _searched(
    epsilon: float, delta: float, releases: int, sensitivity: float, method: Method, exact: float
) -> float:
    """The sigma at which an accountant says epsilon, searched around the exact one."""

    def excess(scale: float) -> float:
        mu_squared = releases * (sensitivity / (exact * scale)) ** 2
        history = History(mu_squared=mu_squared)
        found = rdp_epsilon(history, delta) if method == "rdp" else _pld_epsilon(mu_squared, delta)
        return (found if found < inf else 1e6) - epsilon

    if excess(_MOST_EXTRA) > 0:
        raise ConfigError(
            f"The accountant {method!r} cannot tell what epsilon {epsilon:g} takes at delta {delta:g}: "
            "calibrate exactly."
        )
    # the accountants are upper bounds, so they ask for more noise, never for less
    return exact * float(brentq(excess, 0.999, _MOST_EXTRA, xtol=1e-6))


def _pld_epsilon(mu_squared: float, delta: float) -> float:
    interval = min(1e-3, sqrt(mu_squared) / 500)
    found = pld.from_gaussian_mechanism(1 / sqrt(mu_squared), value_discretization_interval=interval)
    return float(found.get_epsilon_for_delta(delta))
