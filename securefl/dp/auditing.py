"""Privacy audit: statistical tests that a mechanism keeps its claims (specification, section 6).

Each mechanism gets three checks with stated false-alarm rates. Together they fail an honest mechanism once in
10^5 runs.

1. Sensitivity search: adversarial records move the integer sums by at most the claimed sensitivity.
2. Noise conformance: residuals have the claimed variance and law, and are independent between releases.
3. A lower bound on epsilon from releases of two neighbouring data sets, as a Gaussian-DP estimate. It must
   not exceed the claim. Its ratio to the claim (0.95 with 20,000 releases a side) says how tight the claim
   is.

The fourth check, canaries through DP-SGD's optimiser, is `securefl.training.canaries`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Final

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from numpy.typing import NDArray
from scipy import stats

from securefl.accounting.composition import compose
from securefl.dp import clipping, gaussian
from securefl.dp.moments import STEP, Losses, Moments
from securefl.dp.noise import Source

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
ALARM: Final = 1e-6
"""The false-alarm rate of each single test."""
SAMPLES: Final = 20_000
"""Releases of each neighbour. With this number the lower bound is 0.94 to 1.0 of the claim."""
RESIDUALS: Final = 30_000
"""Coordinates of noise. 10,500 of them detect 5 % less noise than claimed; 1 % less takes 253,000."""


@dataclass(frozen=True, kw_only=True)
class Audited:
    """A mechanism under audit: sums of records, noised releases of them, and the claims.

    Attributes:
        name: the name in reports.
        sums: integer sums (m,) of records (n, ...), int64.
        release: the sums with noise, from records and a source.
        sigma, sensitivity: the claims, in grid units.
        event: the claimed event.
        records: the base data set, (n, ...).
        odd: adversarial records that are added to it, one at a time.
    """

    name: str
    sums: Callable[[Floats], Integers]
    release: Callable[[Floats, Source], Integers]
    sigma: float
    sensitivity: float
    event: GaussianDpEvent
    records: Floats
    odd: Sequence[Floats]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Epsilon at one delta: the claimed one, and the lower bound that releases prove.

    event: the claim, from which `claimed` follows.
    """

    delta: float
    event: DpEvent
    lower: float

    @property
    def claimed(self) -> float:
        """The epsilon of the claim."""
        return compose({self.event: 1}, self.delta)

    @property
    def passed(self) -> bool:
        """Whether the lower bound does not exceed the claim."""
        return self.lower <= self.claimed


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The audit's result on one mechanism. `failed` names the failed checks; an empty tuple is a pass.

    bound: the claim, and the epsilon that was proved.
    """

    name: str
    bound: Bound
    failed: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """ "pass", or "FAIL" with the failed checks."""
        return "pass" if not self.failed else "FAIL: " + ", ".join(self.failed)


def audit(
    mechanism: Audited,
    *,
    delta: float = 1e-5,
    source: Callable[[], Source] = Source,
    samples: int = SAMPLES,
) -> Finding:
    """Run all checks on one mechanism.

        >>> from securefl.dp import audit
        >>> from securefl.dp.auditing import mechanisms
        >>> audit(mechanisms()[1], samples=500).failed
        ()

    Args:
        mechanism: the mechanism and its claims.
        delta: the delta of the lower bound.
        source: makes the noise source of a release, as the mechanism's owner would.
        samples: the number of releases of each neighbour for the lower bound.

    Returns:
        The claim, the proved lower bound, and the names of failed checks.

    Raises nothing.
    """
    worst, moved = _largest_move(mechanism)
    residuals = _residuals(mechanism, source)
    standard = residuals / mechanism.sigma
    low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], standard.size)
    lower = _lower_bound(mechanism, worst, delta, source, samples)
    found = Bound(delta=delta, event=mechanism.event, lower=lower)
    checks = {
        "sensitivity": moved <= mechanism.sensitivity,
        "variance of the noise": bool(low < np.sum(standard**2) < high),
        "law of the noise": bool(stats.kstest(standard.ravel(), "norm").pvalue > ALARM),
        "independence": _independent(residuals),
        "claimed event": mechanism.event.noise_multiplier <= mechanism.sigma / mechanism.sensitivity,
        "epsilon": found.passed,
    }
    failed = tuple(name for name, holds in checks.items() if not holds)
    return Finding(name=mechanism.name, bound=found, failed=failed)


def _with(mechanism: Audited, record: Floats) -> Floats:
    return np.concatenate([mechanism.records, record[None]])


def _largest_move(mechanism: Audited) -> tuple[Floats, float]:
    """The odd record that moves the sums most, and the L2 distance."""
    base = mechanism.sums(mechanism.records)
    moves = [
        float(np.linalg.norm((mechanism.sums(_with(mechanism, record)) - base).astype(np.float64)))
        for record in mechanism.odd
    ]
    return mechanism.odd[int(np.argmax(moves))], max(moves)


def _residuals(mechanism: Audited, source: Callable[[], Source]) -> Floats:
    """The noise of enough releases, (releases, coordinates). Each release has its own source."""
    base = mechanism.sums(mechanism.records)
    # One source per release, as its owner would make it: `_independent` detects a source that repeats.
    releases = max(2, RESIDUALS // len(base))
    made = [mechanism.release(mechanism.records, source()) - base for _ in range(releases)]
    return np.array(made, dtype=np.float64)


def _independent(residuals: Floats) -> bool:
    """Whether consecutive releases, and the two halves of the releases, are uncorrelated."""
    releases = len(residuals)
    half = releases // 2
    pairs = ((residuals[:-1], residuals[1:]), (residuals[:half], residuals[half : 2 * half]))
    limit = stats.norm.isf(ALARM / 4)
    for one, other in pairs:
        with np.errstate(all="ignore"):  # constant noise has correlation nan, which fails
            correlation = float(np.corrcoef(one.ravel(), other.ravel())[0, 1])
        if not abs(correlation) * sqrt(one.size) < limit:
            return False
    return True


def _lower_bound(
    mechanism: Audited, record: Floats, delta: float, source: Callable[[], Source], samples: int
) -> float:
    """The epsilon that the neighbours' releases prove, at confidence 1 - 10^-6.

    It is a Gaussian-DP estimate (Dong, Roth and Su 2019). mu is the distance of the releases along the line
    between the neighbours, in standard deviations, less a margin for chance. The estimate assumes normal
    noise, which another check tests. Constant noise proves an infinite epsilon.
    """
    there, base = _with(mechanism, record), mechanism.records
    direction = (mechanism.sums(there) - mechanism.sums(base)).astype(np.float64)
    length = float(np.linalg.norm(direction))
    if length == 0:
        return 0.0
    noise = source()
    null, other = (
        np.array([mechanism.release(data, noise) @ direction for _ in range(samples)]) / length
        for data in (base, there)
    )
    return proved(null, other, delta)


def proved(null: Floats, other: Floats, delta: float) -> float:
    """The epsilon proved by samples (n,) of a statistic under two neighbours, at confidence 1 - 10^-6."""
    samples = len(null)
    deviation = sqrt((null.var(ddof=1) + other.var(ddof=1)) / 2)
    if deviation == 0:
        return inf
    estimate = (other.mean() - null.mean()) / deviation
    # The variance of a difference of means over a common deviation is about (2 + d^2 / 4) / n.
    mu = estimate - stats.norm.isf(ALARM) * sqrt((2 + estimate**2 / 4) / samples)
    return float(get_epsilon_gaussian(1 / mu, delta)) if mu > 1e-6 else 0.0


# The audited mechanisms ---------------------------------------------------------------------------


def mechanisms() -> list[Audited]:
    """Every mechanism of the package, at a noise multiplier of 1, at which a lower bound is informative."""
    rng = np.random.default_rng(0)
    moments, losses, limit = Moments(bound=2.0, square_bound=4.0), Losses(bound=5.0), 2**10
    return [
        _noised(
            "profile (means, variances, count)",
            moments.sums,
            moments.sensitivity("add-remove") / STEP,
            rng.normal(size=(10, 3)),
            _odd(3, 2.0),
        ),
        _noised(
            "loss (mean, count)",
            lambda x: losses.sums(x[:, 0]),
            losses.sensitivity("add-remove") / STEP,
            rng.uniform(0, 5, (10, 1)),
            _odd(1, 5.0),
        ),
        _noised(
            "rounded Gaussian on a sum of norm-1 records",
            lambda x: _summed(x, limit),
            float(limit),
            rng.normal(size=(10, 4)),
            _odd(4, 1.0),
        ),
        _discrete_sum(rng.normal(size=(10, 4)), limit),
    ]


def _odd(width: int, bound: float) -> list[Floats]:
    """Adversarial records: at the corners of the bound, huge, subnormal and non-finite."""
    values = (bound, -bound, 0.0, 1e300, -1e300, 5e-324, np.nan, np.inf)
    alike = [np.full(width, value) for value in values]
    single = [np.eye(1, width, k)[0] * value for k in range(width) for value in (bound, 1e300)]
    return [*alike, *single]


def _summed(records: Floats, limit: int) -> Integers:
    kept = records[clipping.finite(records)]
    total: Integers = clipping.to_grid(kept, 2.0**-10, limit).sum(axis=0)
    return total


def _noised(
    name: str, sums: Callable[[Floats], Integers], sensitivity: float, records: Floats, odd: list[Floats]
) -> Audited:
    """A mechanism that adds a rounded Gaussian to these sums, at a noise multiplier of 1."""

    def release(x: Floats, source: Source) -> Integers:
        exact = sums(x)
        return exact + gaussian.rounded(len(exact), sensitivity, source)

    return Audited(
        name=name,
        sums=sums,
        release=release,
        sigma=sensitivity,
        sensitivity=sensitivity,
        event=GaussianDpEvent(1.0),
        records=records,
        odd=odd,
    )


def _discrete_sum(records: Floats, limit: int) -> Audited:
    # Only the honest clients' noise counts: the 2 corrupt ones of 6 survivors may leave theirs out.
    honest, share = 4, gaussian.share(float(limit), 6, 2)

    def release(x: Floats, source: Source) -> Integers:
        shares = gaussian.discrete(honest * x.shape[1], share, source)
        noised: Integers = _summed(x, limit) + shares.reshape(honest, -1).sum(axis=0)
        return noised

    return replace(
        _noised(
            f"discrete Gaussian shares of {honest} honest clients",
            lambda x: _summed(x, limit),
            float(limit),
            records,
            _odd(4, 1.0),
        ),
        release=release,
        event=GaussianDpEvent(sqrt(limit**2 - 4) / limit),
    )
