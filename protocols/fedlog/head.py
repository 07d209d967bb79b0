"""FedLog's exact head: the maximum a posteriori of an exponential-family classifier.

It follows from the sufficient statistic alone.

With R = chi + T (C, m) and N = nu + n, the objective

    L(eta) = <eta, R> - N log sum_y exp(|eta_y|^2 / 4)

is strictly concave and coercive for N > 0, so one maximiser exists for any R, noisy or with empty rows. Where
its gradient is zero, eta_y = 2 R_y / (N p_y) with p_y proportional to exp(|eta_y|^2 / 4). With
s_y = |R_y|^2 / N^2:

    log p_y = s_y / p_y^2 - c,   sum of p_y = 1

Every p_y falls as c rises, so this is one monotone equation in one unknown. By the Wright omega function,
W_y = omega(log(2 s_y) + 2 c), p_y = exp(W_y / 2 - c), and c is the root of logsumexp(W_y / 2) = c. (The naive
iteration p <- softmax(s / p^2) diverges.) Source: FedLog, Eqs. 11 and 14, and the specification's page on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp, wrightomega

from securefl.core.ranges import Range, Ranged
from securefl.errors import DataError

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Prior(Ranged):
    """FedLog's conjugate prior (Eq. 9).

    chi: added to every entry of R, as the features of records would be.
    nu: added to N, as that number of records would be.

    It is public. The paper takes chi 0 and nu 1; its authors' code takes nu 0: the preset "authors".

    Raises ValueError unless -2^20 <= chi <= 2^20 and 0 <= nu <= 2^40.

    >>> from securefl.protocols.fedlog import Prior
    >>> Prior(nu=0.0)
    Prior(chi=0.0, nu=0.0)
    """

    chi: Annotated[float, Range("[-1048576, 2^20]")] = 0.0
    nu: Annotated[float, Range("[0, 2^40]")] = 1.0


PAPER = Prior()


def solve(statistic: Floats, prior: Prior = PAPER) -> Floats:
    """The head that maximises the posterior of a statistic (FedLog, Eq. 14).

    N is nu plus the sum of column 0, so a noised statistic needs no count beside it. A class whose row is 0
    after chi was added gets a row of 0.

    Args:
        statistic: float64 (C, m), as `statistic` sums it, with or without noise. Column 0 counts the records
            of each class.
        prior: the conjugate prior of the posterior.

    Returns:
        eta, float64 (C, m). The score of a class for a record is eta_y . (1, phi).

    Raises:
        DataError: the statistic is not finite or not of two dimensions, or N is not above 0.

    >>> import numpy as np
    >>> from securefl.protocols.fedlog import solve
    >>> eta = solve(np.array([[3.0, 2.0], [1.0, -1.0]]))
    >>> (eta @ [1.0, 0.9]).argmax(), (eta @ [1.0, -0.9]).argmax()
    (np.int64(0), np.int64(1))
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
    """The class probabilities p_y of the stationary point (see the head of this module).

    Args:
        s: s_y = |R_y|^2 / N^2, float64 (C,), finite and at least 0.

    Returns:
        p, float64 (C,). It sums to 1.

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.protocols.fedlog import probabilities
    >>> probabilities(np.array([0.0, 0.0]))
    array([0.5, 0.5])
    """
    there = s > 0
    log_twice = np.log(2 * np.where(there, s, 1.0))

    def w(c: float) -> Floats:
        return np.where(there, wrightomega(log_twice + 2 * c), 0.0)

    def excess(c: float) -> float:
        return float(np.logaddexp.reduce(w(c) / 2)) - c  # a fifth of the time of scipy's `logsumexp`

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
    """L(eta), the log posterior up to a constant. `solve` maximises it (FedLog, Eq. 14).

    Args:
        eta: a head, float64 (C, m).
        statistic: float64 (C, m), as in `solve`.
        prior: as in `solve`.

    Returns:
        L(eta).

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.protocols.fedlog import objective, solve
    >>> total = np.array([[3.0, 2.0], [1.0, -1.0]])
    >>> objective(solve(total), total) > objective(total, total)
    True
    """
    n = prior.nu + float(statistic[:, 0].sum())
    return float(np.sum(eta * (statistic + prior.chi)) - n * logsumexp(np.sum(eta**2, axis=1) / 4))


def gradient(eta: Floats, statistic: Floats, prior: Prior = PAPER) -> Floats:
    """dL / d eta of the objective. It is 0 at the head that `solve` returns.

    Args:
        eta: a head, float64 (C, m).
        statistic: float64 (C, m), as in `solve`.
        prior: as in `solve`.

    Returns:
        float64 (C, m).

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.protocols.fedlog import gradient, solve
    >>> total = np.array([[3.0, 2.0], [1.0, -1.0]])
    >>> bool(np.abs(gradient(solve(total), total)).max() < 1e-12)
    True
    """
    n = prior.nu + float(statistic[:, 0].sum())
    energy = np.sum(eta**2, axis=1) / 4
    p = np.exp(energy - logsumexp(energy))
    slope: Floats = statistic + prior.chi - n * p[:, None] * eta / 2
    return slope
