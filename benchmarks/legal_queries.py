"""What the best legal queries tell of one mean of a profile: a seeded search.

    python benchmarks/legal_queries.py [--write]

Prints which share of a mean's standard deviation stays open to a server that chooses the best queries that a
key holder answers, for both variants and k = 1, 2, 3, 4, 10 and 30 scores of one profile, by the best linear
guess from them. The search maximises what one score tells, by projected gradients from greedy, spectral and
random starts, and from pairs of weights that cancel what one element tells. Of several scores it takes
opposite pairs and repetitions of what it found. Readings of the low bits are no part of it: the key holder's
noise covers them, whatever the weights are (securefl/linear/pad_terms.py), and
tests/unit/linear/test_legal_queries.py tries them.

Populations: `usual` has 84 independent elements of deviation 1, as anchored; `digits` has the elements of
results/profiles_of_digits.csv: means and deviations over the 30 clients of the study fedprof_mean_only at its
introduction. Elements are independent in both. A server that knows how they depend on one another may cancel
more. `--write` keeps the figures in benchmarks/results/legal_queries.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
from kept import RESULTS, keep
from numpy.typing import NDArray

from securefl.core.linear import LinearBounds
from securefl.he.parameters import COMPACT, STRONG
from securefl.linear.pad_terms import COVER, PadTerms
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Bounds, Variant

Floats = NDArray[np.float64]
DIGITS = RESULTS / "profiles_of_digits.csv"
RELEASES = (1, 2, 3, 4, 10, 30)
TIGHT = Bounds(mean=16, variance_high=64, weight=16)
_PAIRS = 3
_INSIDE = 1 - 1e-6
"""So that rounding does not take a weight over its bound."""


@dataclass(frozen=True, eq=False)
class Population:
    """Profiles with independent elements.

    Attributes:
        mean, deviation: of each element's mean over clients.
        log_variance, log_deviation: the same of the logarithm of its variance.
    """

    mean: Floats
    deviation: Floats
    log_variance: Floats
    log_deviation: Floats

    @classmethod
    def usual(cls, length: int = 84) -> Population:
        return cls(np.zeros(length), np.ones(length), np.zeros(length), np.ones(length))

    @classmethod
    def digits(cls) -> Population:
        columns = np.loadtxt(DIGITS, delimiter=",", skiprows=1).T
        return cls(*columns)

    def drawn(self, count: int, variant: Variant, rng: np.random.Generator) -> Floats:
        """The hidden parts of `count` profiles, (count, h)."""
        shape = count, len(self.mean)
        means = self.mean + self.deviation * rng.normal(size=shape)
        logs = self.log_variance + self.log_deviation * rng.normal(size=shape)
        if variant is Variant.MEAN_ONLY:
            return np.hstack([means, means**2])
        return np.hstack([means, means**2 + np.exp(logs), logs.sum(axis=1, keepdims=True)])


@dataclass(frozen=True, eq=False)
class Search:
    """The server's search against one mean of the profiles of a population.

    Attributes:
        population: whose moments the server knows.
        variant: of the profiles.
        bounds: of the queries.
        seed: of the search.
        steps, starts: how long it searches.
    """

    population: Population
    variant: Variant
    bounds: LinearBounds
    seed: int = 60
    steps: int = 300
    starts: int = 6

    @cached_property
    def victim(self) -> int:
        """The element whose mean varies most, which is the easiest to read."""
        return int(np.argmax(self.population.deviation))

    @cached_property
    def covariance(self) -> Floats:
        rng = np.random.default_rng(self.seed)
        parts = [np.cov(self.population.drawn(2000, self.variant, rng).T) for _ in range(4)]
        return np.asarray(np.mean(parts, axis=0))

    @property
    def deviation(self) -> float:
        return float(np.sqrt(self.covariance[self.victim, self.victim]))

    @cached_property
    def limits(self) -> tuple[Floats, Floats]:
        """The ranges of the weights."""
        runs = self.bounds.weights
        low = np.repeat([run.low for run in runs], [run.count for run in runs])
        return low, np.repeat([run.high for run in runs], [run.count for run in runs])

    def legal(self, weights: Floats) -> Floats:
        """The nearest weights found that the rules let pass, with as much of the victim's as they do."""
        low, high = self.limits
        own, moves = weights.copy(), low < high
        others = moves & (np.arange(len(own)) != self.victim)
        for _ in range(100):
            own[moves] *= _INSIDE * self.bounds.weight_norm / np.linalg.norm(own)
            own = np.clip(own, low, high)
            largest = _INSIDE * self.bounds.spread * np.sqrt(np.mean(own**2))
            own[others] = own.clip(np.maximum(low, -largest), np.minimum(high, largest))[others]
            if abs(own[self.victim]) <= largest and np.linalg.norm(own) <= self.bounds.weight_norm:
                break
            # What the victim loses, others get.
            own[self.victim] = np.clip(own[self.victim], -largest, largest)
        return own

    def passes(self, weights: Floats) -> bool:
        sharp = np.abs(weights).max() > self.bounds.spread * np.sqrt(np.mean(weights**2))
        return not sharp and bool(np.linalg.norm(weights) <= self.bounds.weight_norm)

    def left_open(self, queries: Sequence[Floats], noise: Sequence[float]) -> float:
        """The share of the victim's deviation that the best linear guess from these scores leaves open.

        noise: the deviation of the noise of each, in units of its product.
        """
        rows = np.array(queries)
        told = rows @ self.covariance @ rows.T + np.diag(np.square(noise))
        with_victim = rows @ self.covariance[:, self.victim]
        # Scaled first: a pair of opposite scores is nearly singular.
        scale = np.sqrt(np.diag(told))
        found = np.linalg.lstsq(told / np.outer(scale, scale), with_victim / scale, rcond=1e-30)[0]
        return float(np.sqrt(max(0.0, 1 - found @ (with_victim / scale) / self.deviation**2)))

    def starting(self, rng: np.random.Generator) -> Iterator[Floats]:
        low, _ = self.limits
        rest = np.delete(np.arange(len(low)), self.victim)
        spike = np.zeros(len(low))
        spike[self.victim] = 1.0
        variances = np.diag(self.covariance)
        # As few others as the spread allows, or more, which vary least.
        needed = max(0.0, len(low) / self.bounds.spread**2 - 1)
        for count in (1, 2, 3, 4, 8, 16, 32, len(rest)):
            own = spike.copy()
            own[rest[np.argsort(variances[rest])[:count]]] = min(1.0, np.sqrt(needed / count))
            yield own
        values, vectors = np.linalg.eigh(self.covariance[np.ix_(rest, rest)])
        for count in (4, 16, 64):
            own = spike.copy()
            own[rest] = vectors[:, :count] @ rng.normal(size=min(count, len(values)))
            yield own
        yield from self._cancelling()
        for _ in range(self.starts):
            own = rng.normal(size=len(low)) / np.sqrt(variances + 1e-9)
            own[self.victim] = np.abs(own).max()
            yield own

    def _cancelling(self) -> Iterator[Floats]:
        """Others' weight on the mean and the square of one element, so that its variation nearly cancels.

        Its least direction, (-2 m b, b), takes the weight that the spread demands. The best few are starts.
        """
        low, _ = self.limits
        length, needed = len(self.population.mean), max(0.0, len(low) / self.bounds.spread**2 - 1)
        found = []
        for element in set(range(length)) - {self.victim}:
            pair = [element, length + element]
            least = np.linalg.eigh(self.covariance[np.ix_(pair, pair)])[1][:, 0]
            own = np.zeros(len(low))
            own[self.victim] = 1.0
            own[pair] = np.sign(least[1]) * least * np.sqrt(needed)
            tried = self.legal(own)
            if self.passes(tried):
                found.append((self.left_open([tried], [0.0]), element, own))
        yield from (own for _, _, own in sorted(found, key=lambda one: one[:2])[:_PAIRS])

    @cached_property
    def sharpest(self) -> Floats:
        """The weights of the one score that tells most."""
        rng, best = np.random.default_rng(self.seed), (2.0, np.zeros(0))
        for start in self.starting(rng):
            own, step = self.legal(start), 0.3
            value = self.left_open([own], [0.0]) if self.passes(own) else 2.0
            for _ in range(self.steps):
                # The slope of the variance of the score, without the victim's own part.
                slope = self.covariance @ own
                slope[self.victim] = 0.0
                slope *= np.linalg.norm(own) / max(np.linalg.norm(slope), 1e-300)
                tried = self.legal(own - step * slope)
                told = self.left_open([tried], [0.0]) if self.passes(tried) else 2.0
                if told < value:
                    own, value = tried, told
                else:
                    step *= 0.9
            if value < best[0]:
                best = value, own
        return best[1]

    def opposite(self, weights: Floats) -> Floats:
        """These weights with the victim's turned: a second score of the profile leaves its mean."""
        return np.where(np.arange(len(weights)) == self.victim, -weights, weights)

    def of_scores(self, count: int, noise_of: Callable[[Floats], float]) -> float:
        """What `count` scores of one profile leave open, by the best family of queries found.

        noise_of: a function of weights, with the deviation of their score's noise.
        """
        starts = map(self.legal, self.starting(np.random.default_rng(self.seed)))
        # The noise follows the weights' sizes, so the pair that tells most is not that of the sharpest score.
        found = [self.sharpest, *filter(self.passes, starts)]
        families = [[one] * count for one in found[:1]]
        families += [[(one, self.opposite(one))[at % 2] for at in range(count)] for one in found]
        return min(self.left_open(own, [noise_of(row) for row in own]) for own in families)


def pad_noise(terms: PadTerms, weights: Floats) -> float:
    """The deviation of one opened product: its noise, and the rounding of the vector."""
    size = float(np.abs(weights).sum())
    rounding = float(np.linalg.norm(weights)) / np.sqrt(12)
    return float(np.hypot(COVER * size / np.sqrt(3), rounding)) / terms.data_scale


# The figures ------------------------------------------------------------------------------------------


def figures() -> dict[str, Any]:
    """What scores of one profile leave open, by population, variant, cipher and their number."""
    found: dict[str, Any] = {}
    populations = {"usual": Population.usual(), "digits": Population.digits()}
    for (name, population), variant in product(populations.items(), Variant):
        length = len(population.mean)
        bounds = Bounds().linear(length, variant)
        search = Search(population, variant, bounds)
        noises: dict[str, Callable[[Floats], float]] = {
            "pads": partial(pad_noise, PadTerms(bounds=bounds, context=b""))
        }
        for word, parameters, own in (("ckks", STRONG, Bounds()), ("ckks, compact", COMPACT, TIGHT)):
            under = LinearTerms(parameters=parameters, bounds=own.linear(length, variant), scores=30 * 500)
            noises[word] = lambda row, under=under: float(under.sigma * under.unit)
        found[f"{name}, {variant.value}"] = {
            word: {k: search.of_scores(k, noise) for k in RELEASES} for word, noise in noises.items()
        }
    return found


if __name__ == "__main__":
    found = figures()
    print(json.dumps(found, indent=1))
    keep("legal_queries", found)
