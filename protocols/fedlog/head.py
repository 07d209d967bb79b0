"""The exact head of FedLog: the MAP of an exponential-family classifier from its sufficient statistic.

With R = chi + T (C, m) and N = nu + n, the objective

    L(eta) = <eta, R> - N log sum_y exp(|eta_y|^2 / 4)

is strictly concave and coercive for N > 0, so one maximiser exists for any R, noisy or with empty rows. Where
its gradient is zero, eta_y = 2 R_y / (N p_y) with p_y proportional to exp(|eta_y|^2 / 4). With
s_y = |R_y|^2 / N^2:

    log p_y = s_y / p_y^2 - c,   sum of p_y = 1

Every p_y falls as c rises, so this is one monotone equation in one unknown. By the Wright omega function,
W_y = omega(log(2 s_y) + 2 c), p_y = exp(W_y / 2 - c), and c is the root of logsumexp(W_y / 2) = c. (The naive
iteration p <- softmax(s / p^2) diverges.) Source: FedLog, Eq. 9 and the specification's page on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp, wrightomega

from securefl.core.errors import DataError

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Prior:
    """FedLog's conjugate prior (Eq. 10): chi is added to every entry of R, and nu to N, as records would be.

    It is public. The paper takes chi 0 and nu 1; its authors' code takes nu 0.
    """

    chi: float = 0.0
    nu: float = 1.0

    def __post_init__(self) -> None:
        # Sums of records lie on a grid within 2^20; a prior far beyond it would leave no digit of them.
        if not (-(2**20) <= self.chi <= 2**20 and 0 <= self.nu <= 2**40):
            raise ValueError(
                f"Expected -2^20 <= chi <= 2^20 and 0 <= nu <= 2^40, got {self.chi} and {self.nu}."
            )


PAPER = Prior()


def solve(statistic: Floats, prior: Prior = PAPER) -> Floats:
    """eta of shape (C, m), the head that maximises the posterior of a statistic (C, m).

    The first column counts records by class; N = nu + its sum, so a noisy statistic needs no count beside it.
    Raises DataError where the statistic is not finite, or N is not positive: then nothing was learned.
    """
    r = np.asarray(statistic, dtype=np.float64) + prior.chi
    if r.ndim != 2 or not r.size or not np.isfinite(r).all():
        raise DataError(f"Expected a finite statistic of shape (classes, features), got shape {r.shape}.")
    n = prior.nu + float(statistic[:, 0].sum())
    if not n > 0:
        raise DataError(
            f"Expected nu plus the noised counts above 0, got {n:.3g}: the noise outweighs the records."
        )
    p = probabilities(np.sum((r / n) ** 2, axis=1))
    eta: Floats = 2 * r / (n * np.where(r.any(axis=1), p, 1.0)[:, None])
    return eta


def probabilities(s: Floats) -> Floats:
    """p_y of the stationary point, shape (C,), from s_y = |R_y|^2 / N^2 >= 0."""
    there = s > 0
    log_twice = np.log(2 * np.where(there, s, 1.0))

    def w(c: float) -> Floats:
        return np.where(there, wrightomega(log_twice + 2 * c), 0.0)

    def excess(c: float) -> float:
        return float(logsumexp(w(c) / 2)) - c

    low = float(np.log(len(s)))
    high = low + 1.0
    # W grows like 2 c, and a little slower: the excess falls below 0 in the end
    while excess(high) > 0:
        high = 2 * high + 1.0
    c = low if excess(low) <= 0 else float(brentq(excess, low, high, xtol=1e-14, rtol=1e-15, maxiter=500))
    # W is 2 s / p^2: where c is large, the quotient keeps the digits that exp(W / 2 - c) would cancel
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(there, np.sqrt(2 * s / w(c)), np.exp(-c))


def objective(eta: Floats, statistic: Floats, prior: Prior = PAPER) -> float:
    """L(eta); what `solve` maximises."""
    n = prior.nu + float(statistic[:, 0].sum())
    return float(np.sum(eta * (statistic + prior.chi)) - n * logsumexp(np.sum(eta**2, axis=1) / 4))


def gradient(eta: Floats, statistic: Floats, prior: Prior = PAPER) -> Floats:
    """dL / d eta, shape (C, m)."""
    n = prior.nu + float(statistic[:, 0].sum())
    energy = np.sum(eta**2, axis=1) / 4
    p = np.exp(energy - logsumexp(energy))
    slope: Floats = statistic + prior.chi - n * p[:, None] * eta / 2
    return slope


def scores(eta: Floats, features: Floats) -> Floats:
    """Log-probability of each class up to a constant per record, (n, C): eta_y . phi (FedLog, Eq. 6)."""
    return np.asarray(features @ eta.T)
