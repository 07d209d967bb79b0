"""full-literal: FedProf's full divergence under CKKS term by term, as published. A reference, not for use.

The client encrypts mean and variance, the baseline's owner likewise, and the evaluator computes

    1/2 (log s_B - log s + (s + (mu - mu_B)^2) / s_B - 1)                    (FedProf v2, equations 3 and 58)

for every element, with Chebyshev interpolants of the logarithm and of 1/x on a declared range of variances.
Measured on one core, 84 elements, range 1 to 10, degree 15 (keys not counted): client 37 ms and 2.7 MB,
evaluator 0.9 s, key holder 1.6 ms for 262 kB; evaluation keys of 11 MB go to every evaluator. Error 1.3e-5
on random profiles of divergence 1 (1.6e-3 at degree 7), up to 2.8e-4 where all variances sit at the ends;
it grows with s + (mu - mu_B)^2. At ratio 100 the error of 1/x is 0.4 at degree 15 and 2e-2 at degree 31,
where coefficients reach 4e7: wider ranges than 10 are refused.

**It shows the key holder the term of every element**, not only their mean: the sum over elements would need
rotations, whose partial sums tell at least as much, or the blinded opening of `evaluator`. The terms are
opened without flooding noise as well. It therefore serves for figures of accuracy and cost only.

It is not used because the client can take the logarithm itself: the same number is then one product with
plaintext weights (`securefl.profiles`): some hundred times cheaper, far more exact, and without such a bound
on the ratio of variances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import tenseal as ts
from numpy.polynomial import Chebyshev, Polynomial

from securefl.core.errors import ConfigError
from securefl.dp.moments import MeanVariance
from securefl.matching.profiles import VARIANCE_FLOOR, Floats

LARGEST_RATIO: Final = 10.0
LARGEST_DEGREE: Final = 15
# in units of (low * high)^(1/4): a term then stays below 2^12, of the 2^14 that the last level holds
LARGEST_MEAN: Final = 24.0

_DEGREE: Final = 16384
# the larger the scale, the closer SEAL's primes are to it, as TenSEAL takes them to be; 2^40 costs 3e-6
_SCALE: Final = 2.0**45
# a polynomial of degree 15 takes four levels, the product with 1 / s_B the fifth
_BITS: Final = [60, 45, 45, 45, 45, 45, 60]
# a coefficient that encodes to zero would make the product transparent, which SEAL refuses
_SMALLEST: Final = 2.0**-36
_Pair: TypeAlias = tuple[bytes, bytes]


@dataclass(frozen=True)
class _Range:
    """The declared range, middle +- half in units of sqrt(low * high); KL is the same in every unit."""

    unit: float
    middle: float
    half: float
    degree: int

    def prepare(self, profile: MeanVariance) -> tuple[Floats, Floats]:
        """Scaled mean and variance, the latter mapped onto [-1, 1]; (q,) each. Both maps are public."""
        mean = profile.mean / np.sqrt(self.unit)
        mapped = (profile.variance / self.unit - self.middle) / self.half
        if outside := int(np.sum(np.abs(mapped) > 1 + 1e-9)):
            raise ConfigError(
                f"Expected all variances in the declared range, got {outside} of {len(mapped)}, which "
                "lie outside, where the polynomials fail. Declare a range that holds them."
            )
        if (largest := float(np.abs(mean).max())) > LARGEST_MEAN:
            raise ConfigError(
                f"Expected means of at most {LARGEST_MEAN:g} sqrt(unit), unit = sqrt(low * high), got "
                f"{largest:g}: results may wrap around. Subtract a public centre."
            )
        return mean, mapped

    def fit(self, function: Callable[[Floats], Floats]) -> list[float]:
        """Coefficients, lowest first, of the Chebyshev interpolant of `function`, in t from [-1, 1]."""
        fitted = Chebyshev.interpolate(lambda t: function(self.middle + self.half * t), self.degree)
        coefficients = np.asarray(fitted.convert(kind=Polynomial).coef, dtype=np.float64)
        kept: list[float] = np.where(np.abs(coefficients) > _SMALLEST, coefficients, 0.0).tolist()
        return kept


def literal_divergence(
    profile: MeanVariance, baseline: MeanVariance, *, low: float, high: float, degree: int
) -> float:
    """The mean divergence of `profile` from `baseline`, all three parties played in this call.

    low, high: declared public range of all variances of both, low < high <= 10 low
    degree:    of both polynomials, 1 to 15

    Raises ConfigError for another range or degree, variances outside it, means beyond 24 (low * high)^(1/4),
    and profiles of different lengths.
    """
    if not (VARIANCE_FLOOR <= low < high < np.inf and high / low <= LARGEST_RATIO):
        raise ConfigError(
            f"Expected {VARIANCE_FLOOR:g} <= low < high <= {LARGEST_RATIO:g} low, got {low:g} and {high:g}: "
            "the polynomials fail on wider ranges. Use the encrypted inner product instead."
        )
    if not 1 <= degree <= LARGEST_DEGREE:
        raise ConfigError(
            f"Expected a degree from 1 to {LARGEST_DEGREE}, which the levels allow, got {degree}."
        )
    if len(profile) != len(baseline) or len(profile) > _DEGREE // 2:
        raise ConfigError(
            f"Expected profiles of one length up to {_DEGREE // 2}, got {len(profile)} and {len(baseline)}."
        )
    unit = float(np.sqrt(low * high))
    declared = _Range(unit, (high + low) / (2 * unit), (high - low) / (2 * unit), degree)
    plain, plain_baseline = declared.prepare(profile), declared.prepare(baseline)

    secret: Any = _context()
    public = ts.context_from(secret.serialize(save_secret_key=False, save_galois_keys=False))
    terms = _evaluate(public, _encrypt(public, plain), _encrypt(public, plain_baseline), declared)
    return _open(secret, terms, len(profile))


def _context() -> Any:
    """The key holder's: secret key and relinearisation keys, no Galois keys."""
    context = ts.context(ts.SCHEME_TYPE.CKKS, _DEGREE, coeff_mod_bit_sizes=_BITS)
    context.global_scale = _SCALE
    return context


def _encrypt(context: Any, prepared: tuple[Floats, Floats]) -> _Pair:
    """Client and baseline's owner: one ciphertext of the means, one of the mapped variances."""
    mean, variance = (ts.ckks_vector(context, values.tolist()).serialize() for values in prepared)
    return mean, variance


def _evaluate(public: Any, client: _Pair, baseline: _Pair, declared: _Range) -> bytes:
    """Evaluator: every element's term in its own slot; nothing is rotated, nothing added across slots."""
    mean, mapped = (ts.ckks_vector_from(public, part) for part in client)
    mean_b, mapped_b = (ts.ckks_vector_from(public, part) for part in baseline)
    half_log = declared.fit(lambda x: np.log(x) / 2)
    half_inverse = declared.fit(lambda x: 0.5 / x)
    variance = mapped * declared.half + declared.middle
    quotient = (variance + (mean - mean_b).square()) * mapped_b.polyval(half_inverse)
    logs = mapped_b.polyval(half_log) - mapped.polyval(half_log)
    terms: bytes = (quotient + logs - 0.5).serialize()
    return terms


def _open(secret: Any, terms: bytes, length: int) -> float:
    """Key holder: decrypts every element's term (see above) and takes their mean."""
    opened: list[float] = ts.ckks_vector_from(secret, terms).decrypt()
    return float(np.mean(opened[:length]))
