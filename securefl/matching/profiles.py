"""Representation profiles, their KL divergence, and the divergence as an inner product.

A profile is the mean and the population variance of every element of a layer's output over one data set. Two
profiles are compared by the mean KL divergence of their Gaussians (FedProf v2, section 3.2, equations 2 to 4,
with the -1/2 that equation 4 drops and appendix C has).

The same number is an inner product of the client's features with the server's weights:

    q * div = <f, w> + constant
    f = [mu, mu^2 + s, sum log s]                  w = [-mu_B / s_B, 1 / (2 s_B), -1/2]
    constant = sum(1/2 log s_B + mu_B^2 / (2 s_B) - 1/2)

So encryption needs only a product with plaintext weights: the client computes the logarithm. KL does not
change under x -> (x - c) / t. Features are computed relative to a *public* anchor (c, t). Without one, terms
of the expanded form cancel or overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from securefl.core.arguments import checked
from securefl.core.errors import ConfigError, DataError
from securefl.core.linear import LinearBounds, LinearQuery, Range
from securefl.dp.moments import MeanVariance, finite_vector, require_same_length

VARIANCE_FLOOR = 1e-6
_SMALLEST_BOUND, _LARGEST_BOUND = 1e-18, 1e18
Floats = NDArray[np.float64]
_WEIGHTS = 169
"""The hidden weights of 84 elements."""


class Variant(StrEnum):
    """The part of a profile that is hidden from the server.

        >>> from securefl.matching import Variant
        >>> Variant("mean-only") is Variant.MEAN_ONLY
        True

    Raises:
        ValueError: another word than "full" or "mean-only".
    """

    FULL = "full"
    MEAN_ONLY = "mean-only"


@dataclass(frozen=True, eq=False)
class Anchor:
    """The public affine map x -> (x - centre) / scale of every element.

        >>> from securefl.matching import Anchor
        >>> Anchor([1.0, 2.0], [1.0, 4.0]).scale.tolist()
        [1.0, 4.0]

    Attributes:
        centre, scale: float64 (q,), scale > 0. They must be computed from public values only: statistics of
            the broadcast model on public inputs, or a released global statistic. An anchor made from the
            baseline would publish the baseline.

    Raises:
        DataError: vectors of two lengths, non-finite values, or a scale that is not above 0.
    """

    centre: Floats
    scale: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "centre", finite_vector("centre", self.centre))
        object.__setattr__(self, "scale", finite_vector("scale", self.scale))
        require_same_length("centre", self.centre, "scale", self.scale)
        if not np.all(self.scale > 0):
            raise DataError(f"Expected scales above 0, got {int(np.sum(self.scale <= 0))} that are not.")

    def apply(self, outputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map outputs of records to standard deviations of the anchor.

        Args:
            outputs: float64 (n, q).

        Returns:
            float64 (n, q).

        Raises:
            DataError: outputs of another shape.
        """
        if outputs.ndim != 2 or outputs.shape[1] != len(self.centre):
            raise DataError(f"Expected outputs of {len(self.centre)} elements, got shape {outputs.shape}.")
        return np.asarray((outputs - self.centre) / self.scale)

    @classmethod
    @checked
    def of(cls, public: MeanVariance) -> Anchor:
        """The anchor that standardises a public profile. Raises ConfigError for what is no profile."""
        return cls(public.mean, np.sqrt(np.maximum(public.variance, VARIANCE_FLOOR)))


@checked
@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Declared public bounds on anchored values. Privacy guarantees and capacity follow from them.

        >>> from securefl.matching import Bounds, Variant
        >>> Bounds(weight=4.0).weight_norm(100), Bounds().linear(100, Variant.FULL).hidden_length
        (40.0, 201)

    Attributes:
        mean: the largest |mu| of a client's element, in standard deviations of the anchor.
        variance_low, variance_high: the range of s, of clients and of the baseline.
        weight: the largest root mean square weight of a baseline, ||w||_2 / sqrt(q).
        spread: the largest size of a hidden weight over the root mean square of all, so that no score is
            nearly the value of one element. Of more than 84 elements it grows with the root of their number:
            the largest weight keeps the same share of the norm. Below `spread`^2 weights it is no bound.

    Clients clip to these bounds. The evaluator refuses a baseline with larger weights. The defaults come from
    LeNet-5 on MNIST and the GasTurbine MLP, anchored with the broadcast model's statistics on uniform-random
    inputs. Over clients with one class, heavy noise or eight records these show |mu| up to 52, s from 1e-5 to
    280 and weights up to 6 (27 for inputs on [-1, 1]). 512 elements stay far inside the capacity of the
    strong parameters. The noise on a score grows in proportion to `weight`. Baselines of the packaged studies
    have a spread of up to 6.9, or 0.78 of the bound.

    Raises:
        ConfigError: no number, one outside of 1e-18 to 1e18, variance_low > variance_high, or spread < 1.
    """

    mean: float = 64.0
    variance_low: float = 2.0**-24
    variance_high: float = 512.0
    weight: float = 32.0
    spread: float = 8.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, float(value))  # 16 and 16.0 are one declaration
        values = tuple(vars(self).values())
        if not self.spread >= 1:
            raise ConfigError(f"Expected a spread from 1, that of weights of one size, got {self.spread}.")
        if not all(np.isfinite(values)) or min(values) <= 0 or self.variance_low > self.variance_high:
            raise ConfigError(
                f"Expected finite bounds above 0 with variance_low <= variance_high, got {self}."
            )
        if not _SMALLEST_BOUND <= min(values) <= max(values) <= _LARGEST_BOUND:
            raise ConfigError(
                f"Expected bounds from {_SMALLEST_BOUND:g} to {_LARGEST_BOUND:g}, got {self}: "
                "choose an anchor in whose units the values are near 1."
            )

    def linear(self, length: int, variant: Variant) -> LinearBounds:
        """Bounds of the linear query for profiles of `length` elements, with this part hidden.

        Of mean-only weights one half occurs twice, hidden and clear. Hence the factor of an encrypted row.
        """
        full = variant is Variant.FULL
        # The sum of logarithms is rounded, so its bound gets a margin of one billionth.
        logs = self.log_sum(length) * (1 + 1e-9)
        clear = (Range(length, self.variance_low, self.variance_high), Range(1, -logs, logs))
        weights = self.weight_norm(length)
        return LinearBounds(
            hidden_length=2 * length + full,
            clear=() if full else clear,
            norm=self.feature_norm(length),
            weight_norm=weights,
            row_norm=weights * (1.0 if full else float(np.sqrt(2))),
            product=self.largest_product(length),
            scale=length,
            least=0.0,
            weights=self._weights(length, full=full),
            spread=self.largest_spread(2 * length + full),
        )

    def largest_spread(self, weights: int) -> float:
        """The largest spread of a baseline with this many hidden weights."""
        return self.spread * max(1.0, float(np.sqrt(weights / _WEIGHTS)))

    def _weights(self, length: int, *, full: bool) -> tuple[Range, ...]:
        """The ranges of a baseline's hidden weights: of -mu_B / s_B, of 1 / (2 s_B), and -1/2."""
        largest = self.weight_norm(length)
        half = Range(length, 0.5 / self.variance_high, 0.5 / self.variance_low)
        return (Range(length, -largest, largest), half, *((Range(1, -0.5, -0.5),) if full else ()))

    def weight_norm(self, length: int) -> float:
        """W: the largest ||w||_2 of a baseline of `length` elements."""
        return self.weight * float(np.sqrt(length))

    def feature_norm(self, length: int) -> float:
        """The largest ||f||_2 of a client with `length` elements, in either variant."""
        return float(np.hypot(np.sqrt(length) * self._pair, self.log_sum(length)))

    def largest_product(self, length: int) -> float:
        """The largest |<f, w>| of the encrypted parts, in either variant (Cauchy-Schwarz)."""
        pairs = self.weight_norm(length) * float(np.sqrt(length)) * self._pair
        return pairs + self.log_sum(length) / 2

    @property
    def _pair(self) -> float:
        """The largest norm of one element's (mu, mu^2 + s)."""
        return float(np.hypot(self.mean, self.mean**2 + self.variance_high))

    def log_sum(self, length: int) -> float:
        """The largest |sum log s|."""
        return length * float(max(abs(np.log(self.variance_low)), abs(np.log(self.variance_high))))


@dataclass(frozen=True, eq=False)
class Split:
    """A vector of features or weights, split into its encrypted and its plaintext part."""

    hidden: Floats
    clear: Floats


@dataclass(frozen=True, eq=False)
class Features:
    """A client's anchored mean and variance, (q,) each, inside the bounds.

    clipped: the number of entries that were clipped into the bounds. floored: the number of variances that
    were below `VARIANCE_FLOOR`.
    """

    mean: Floats
    variance: Floats
    clipped: int
    floored: int = 0

    def split(self, variant: Variant) -> Split:
        """full: [mu, mu^2 + s, sum log s] | nothing; mean-only: [mu, mu^2] | [s, sum log s]."""
        square, logs = self.mean**2, np.sum(np.log(self.variance), keepdims=True)
        match variant:
            case Variant.FULL:
                return Split(np.concatenate([self.mean, square + self.variance, logs]), np.empty(0))
            case Variant.MEAN_ONLY:
                # the square stays hidden like the mean, since it reveals the mean up to its sign
                return Split(np.concatenate([self.mean, square]), np.concatenate([self.variance, logs]))


@dataclass(frozen=True, eq=False)
class ProfileQuery:
    """The baseline as weights: q * div = <hidden, w.hidden> + <clear, w.clear> + constant.

    clipped: the number of variances that were clipped into the bounds. If it is not 0, this is another
    baseline. floored: the number of variances below `VARIANCE_FLOOR`. The floor is part of the divergence, so
    flooring does not change the score.
    """

    mean: Floats
    variance: Floats
    clipped: int = 0
    floored: int = 0

    @property
    def constant(self) -> float:
        """The part of q * div that depends on the baseline only."""
        return 0.5 * float(np.sum(np.log(self.variance) + self.mean**2 / self.variance - 1.0))

    def linear(self, variant: Variant, bounds: Bounds) -> LinearQuery:
        """The linear query whose number is a client's divergence."""
        weights = self.split(variant)
        declared = bounds.linear(len(self.mean), variant)
        return LinearQuery(declared, weights.hidden, weights.clear, self.constant)

    def split(self, variant: Variant) -> Split:
        """The weights of the parts that `Features.split` makes."""
        linear, half = -self.mean / self.variance, 0.5 / self.variance
        logs = np.array([-0.5])
        match variant:
            case Variant.FULL:
                return Split(np.concatenate([linear, half, logs]), np.empty(0))
            case Variant.MEAN_ONLY:
                return Split(np.concatenate([linear, half]), np.concatenate([half, logs]))


@checked
def divergence(profile: MeanVariance, baseline: MeanVariance) -> float:
    """Mean over q of KL(N(mu, s) || N(mu_B, s_B)), both variances floored (FedProf v2, eqs. 3 and 58).

        >>> from securefl.dp import MeanVariance
        >>> from securefl.matching import divergence
        >>> divergence(MeanVariance([1.0, 0.0], [1.0, 1.0], 10), MeanVariance([0.0, 0.0], [1.0, 1.0], 10))
        0.25

    Args:
        profile: a client's profile of q elements.
        baseline: the baseline, of q elements too.

    Raises:
        ConfigError: what is no profile.
        DataError: profiles of two lengths.
    """
    require_same_length("profile", profile.mean, "baseline", baseline.mean)
    s = np.maximum(profile.variance, VARIANCE_FLOOR)
    s_b = np.maximum(baseline.variance, VARIANCE_FLOOR)
    # The logarithm of the ratio, since a difference of two large logarithms would lose digits.
    ratio = s / s_b
    return 0.5 * float(np.mean(ratio - np.log(ratio) - 1.0 + (profile.mean - baseline.mean) ** 2 / s_b))


def features(profile: MeanVariance, anchor: Anchor, bounds: Bounds) -> Features:
    """The values that a client encrypts: floored in original units, anchored, clipped to the bounds."""
    # Floored before anchoring, so that the floor is the same for client and baseline at every scale.
    mean, variance = _anchored(profile, anchor)
    inside_mean = np.clip(mean, -bounds.mean, bounds.mean)
    inside_variance = np.clip(variance, bounds.variance_low, bounds.variance_high)
    moved = np.count_nonzero(inside_mean != mean) + np.count_nonzero(inside_variance != variance)
    return Features(inside_mean, inside_variance, int(moved), _floored(profile))


def query(baseline: MeanVariance, anchor: Anchor, bounds: Bounds) -> ProfileQuery:
    """The baseline's anchored mean and variance, floored and clipped like those of the clients."""
    mean, variance = _anchored(baseline, anchor)
    inside = np.clip(variance, bounds.variance_low, bounds.variance_high)
    return ProfileQuery(mean, inside, int(np.count_nonzero(inside != variance)), _floored(baseline))


@checked
def linear_query(
    baseline: MeanVariance, anchor: Anchor, bounds: Bounds, variant: Variant = Variant.FULL
) -> LinearQuery:
    """The linear query whose number is a client's divergence from this baseline.

    `LinearQuery.row` refuses weights above the bounds when the query is encoded.

        >>> import numpy as np
        >>> from securefl.dp import MeanVariance
        >>> from securefl.matching import Anchor, Bounds, linear_query
        >>> query = linear_query(MeanVariance([0.0], [1.0], 10), Anchor([0.0], [1.0]), Bounds())
        >>> query.number(np.array([1.0, 2.0, 0.0]), np.zeros(0))  # mu = 1, mu^2 + s = 2, log s = 0
        0.5

    Args:
        baseline: the server's profile of q elements.
        anchor: public centre and scale, of q elements.
        bounds: the declared public bounds.
        variant: the part of a profile that is hidden.

    Raises:
        ConfigError: an argument of another type.
        DataError: an anchor of another length than the baseline.
    """
    return query(baseline, anchor, bounds).linear(variant, bounds)


def _floored(profile: MeanVariance) -> int:
    return int(np.count_nonzero(profile.variance < VARIANCE_FLOOR))


def _anchored(profile: MeanVariance, anchor: Anchor) -> tuple[Floats, Floats]:
    require_same_length("profile", profile.mean, "anchor", anchor.centre)
    variance = np.maximum(profile.variance, VARIANCE_FLOOR)
    # A value beyond all floats becomes infinite, and is clipped or refused like any other outside the bounds.
    with np.errstate(over="ignore"):
        return (profile.mean - anchor.centre) / anchor.scale, variance / anchor.scale**2
