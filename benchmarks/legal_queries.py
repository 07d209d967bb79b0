"""What the best legal queries tell of one mean of a profile: a seeded search.

    python benchmarks/legal_queries.py [--write]

Prints which share of a mean's standard deviation stays open to a server that chooses the best queries that a
key holder answers, for both variants, k = 1, 2, 3, 4, 10 and 30 scores of one profile, and three readings:

linear    the best linear guess from k scores. The search maximises what one score tells, by projected
          gradients from greedy, spectral and random starts, and from pairs of weights that cancel what one
          element tells. Of several scores it takes opposite pairs and repetitions of what it found.
modular   weights that are multiples of m but for the victim's, and the opened integer modulo m, for each
          m = 2^t and each power of two as remainder
lattice   the closest vector to one or two opened integers of short profiles (Babai's plane, reduced basis)

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
from typing import Any

import numpy as np
from kept import RESULTS, keep
from numpy.typing import NDArray

from securefl.core.linear import LinearBounds, LinearQuery
from securefl.he.parameters import COMPACT, STRONG
from securefl.linear import words
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
            own[moves] *= _INSIDE * self.bounds.weight_norm / float(np.linalg.norm(own))
            own = np.clip(own, low, high)
            largest = _INSIDE * self.bounds.spread * float(np.sqrt(np.mean(own**2)))
            own[others] = np.clip(
                own[others], np.maximum(low, -largest)[others], np.minimum(high, largest)[others]
            )
            if abs(own[self.victim]) <= largest and float(np.linalg.norm(own)) <= self.bounds.weight_norm:
                break
            # What the victim loses, others get.
            own[self.victim] = np.sign(own[self.victim]) * min(abs(own[self.victim]), largest)
        return own

    def passes(self, weights: Floats) -> bool:
        sharp = np.abs(weights).max() > self.bounds.spread * float(np.sqrt(np.mean(weights**2)))
        return not sharp and float(np.linalg.norm(weights)) <= self.bounds.weight_norm

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
        told_share = float(found @ (with_victim / scale)) / self.deviation**2
        return float(np.sqrt(max(0.0, 1 - told_share)))

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
            own[rest[np.argsort(variances[rest])[:count]]] = min(1.0, float(np.sqrt(needed / count)))
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
            own[pair] = np.sign(least[1]) * least * float(np.sqrt(needed))
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
                slope *= float(np.linalg.norm(own)) / max(float(np.linalg.norm(slope)), 1e-300)
                tried = self.legal(own - step * slope)
                told = self.left_open([tried], [0.0]) if self.passes(tried) else 2.0
                if told < value:
                    own, value = tried, told
                else:
                    step *= 0.9
            if value < best[0]:
                best = value, own
        return best[1]

    def opposite(self) -> Floats:
        """The sharpest weights with the victim's turned: a second score of the profile leaves its mean."""
        turned = self.sharpest.copy()
        turned[self.victim] *= -1
        return turned

    def of_scores(self, count: int, noise_of: Callable[[Floats], float]) -> float:
        """What `count` scores of one profile leave open, by the best family of queries found.

        noise_of: a function of weights, with the deviation of their score's noise.
        """
        one, other = self.sharpest, self.opposite()
        families = [[one] * count, [(one, other)[at % 2] for at in range(count)]]
        return min(self.left_open(own, [noise_of(row) for row in own]) for own in families)


def query_of(bounds: LinearBounds, hidden: Floats) -> LinearQuery:
    return LinearQuery(bounds, hidden, np.zeros(bounds.clear_length))


def pad_noise(terms: PadTerms, weights: Floats) -> float:
    """The deviation of one opened product: its noise, and the rounding of the vector."""
    size = float(np.abs(weights).sum())
    rounding = float(np.linalg.norm(weights)) / np.sqrt(12)
    return float(np.hypot(COVER * size / np.sqrt(3), rounding)) / terms.data_scale


def ckks_noise(terms: LinearTerms, weights: Floats) -> float:
    return float(terms.sigma * terms.unit)


# Readings of the low bits ----------------------------------------------------------------------------


def whole(weights: words.Words) -> list[int]:
    """Words as Python's integers."""
    size = 8 * weights.shape[1]
    raw = words.packed(weights)
    parts = (int.from_bytes(raw[at : at + size], "little") for at in range(0, len(raw), size))
    return [words.centred(one, 8 * size) for one in parts]


def from_whole(values: Sequence[int], bits: int) -> words.Words:
    raw = b"".join((one % 2**bits).to_bytes(bits // 8, "little") for one in values)
    return words.unpacked(raw, bits)


def residual(
    terms: PadTerms, base: Sequence[int], victim: int, power: int, remainder: int
) -> list[int] | None:
    """Legal weights near these that are multiples of 2^power but for the victim's. None if there are none."""
    # Room for rounding, below the norm and below the spread.
    for own in (0.9, 0.95):
        near = [(own if at == victim else 0.95) * one for at, one in enumerate(base)]
        found = _multiples(terms, near, 2**power)
        if found is not None:
            found[victim] += remainder
            if terms.form(from_whole(found, terms.word_bits)) is None:
                return found
    return None


def _multiples(terms: PadTerms, near: Sequence[float], m: int) -> list[int] | None:
    """Multiples of m near these numbers, inside the ranges of weights."""
    found = [m * round(one / m) if abs(one) >= m / 2 or one == 0 else (m if one > 0 else -m) for one in near]
    for at, run in _places(terms.bounds):
        if run.low == run.high:
            found[at] = round(run.low * terms.weight_scale)
            if found[at] % m:
                return None
        elif run.low > 0:
            found[at] = max(found[at], -(-int(np.ceil(run.low * terms.weight_scale)) // m) * m)
    return found


def _places(bounds: LinearBounds) -> Iterator[tuple[int, Any]]:
    at = 0
    for run in bounds.weights:
        yield from ((at + offset, run) for offset in range(run.count))
        at += run.count


def opened(terms: PadTerms, vectors: Floats, weights: Sequence[int], rng: Any, *, noised: bool) -> list[int]:
    """What a server opens of each vector: the sum of whole numbers, with the key holder's noise."""
    most = COVER * sum(map(abs, weights)) if noised else 0
    rows = np.rint(vectors * terms.data_scale).astype(object)
    sums = rows.astype(object) @ np.array(list(weights), dtype=object)
    return [int(one) + _uniform(rng, most) for one in sums]


def _uniform(rng: Any, most: int) -> int:
    return int.from_bytes(rng.bytes(32), "little") % (2 * most + 1) - most


def modular(search: Search, terms: PadTerms, *, count: int, powers: Sequence[int], noised: bool) -> float:
    """What the best reading modulo 2^t leaves open, at most all of it: of one score, by the error of the
    guess.
    """
    rng = np.random.default_rng(search.seed + 1)
    vectors = search.population.drawn(count, search.variant, rng)
    own = vectors[:, search.victim]
    middle, best = float(search.covariance[search.victim, search.victim] ** 0.5), 1.0
    centre = float(search.population.mean[search.victim])
    base = whole(terms.encoded(query_of(search.bounds, search.sharpest)))
    for power in powers:
        for shift in range(power):
            remainder = 2 ** (power - 1 - shift)
            weights = residual(terms, base, search.victim, power, remainder)
            if weights is None:
                continue
            m, unit = 2**power, remainder * terms.data_scale
            told = opened(terms, vectors, weights, rng, noised=noised)
            # Centred at what the mean usually gives, so that the residue wraps least.
            usual = round(centre * unit)
            guesses = [((one - usual + m // 2) % m - m // 2) / unit + centre for one in told]
            error = float(np.sqrt(np.mean(np.square(np.array(guesses) - own)))) / middle
            best = min(best, error)
    return best


def reduced(rows: Floats) -> Floats:
    """A basis of the same lattice with short vectors (Lenstra, Lenstra and Lovasz, 3/4)."""
    basis, at = rows.copy(), 1
    while at < len(basis):
        for before in range(at - 1, -1, -1):
            r = np.linalg.qr(basis[: at + 1].T, mode="r")
            times = np.rint(r[before, at] / r[before, before])
            basis[at] -= times * basis[before]
        r = np.linalg.qr(basis[: at + 1].T, mode="r")
        if r[at, at] ** 2 >= 0.75 * r[at - 1, at - 1] ** 2 - r[at - 1, at] ** 2:
            at += 1
        else:
            basis[[at - 1, at]] = basis[[at, at - 1]]
            at = max(1, at - 1)
    return basis


def closest(basis: Floats, target: Floats) -> Floats:
    """Babai's nearest plane: a point of the lattice near the target."""
    q, r = np.linalg.qr(basis.T)
    rest = target.copy()
    for at in range(len(basis) - 1, -1, -1):
        times = np.rint(float(q[:, at] @ rest) / r[at, at])
        rest = rest - times * basis[at]
    return target - rest


def lattice(
    search: Search, terms: PadTerms, rows: Sequence[Sequence[int]], *, count: int, noised: bool
) -> float:
    """What the likeliest whole vector leaves open of the victim: the closest vector to what was opened."""
    rng = np.random.default_rng(search.seed + 2)
    vectors = search.population.drawn(count, search.variant, rng)
    spread = np.sqrt(np.diag(search.covariance)) * terms.data_scale
    usual = np.rint(vectors.mean(axis=0) * terms.data_scale)
    wide = [max(1.0, COVER * sum(map(abs, row)) / np.sqrt(3)) if noised else 1.0 for row in rows]
    columns = np.array([[float(one) / width for one in row] for row, width in zip(rows, wide, strict=True)])
    basis = reduced(np.hstack([np.diag(1 / spread), columns.T]))
    told = [opened(terms, vectors, row, rng, noised=noised) for row in rows]
    errors = []
    for at, vector in enumerate(vectors):
        rest = [
            float(told[k][at] - sum(int(u) * w for u, w in zip(usual, row, strict=True))) / wide[k]
            for k, row in enumerate(rows)
        ]
        point = closest(basis, np.concatenate([np.zeros(len(spread)), rest]))
        guess = (point[search.victim] * spread[search.victim] + usual[search.victim]) / terms.data_scale
        errors.append(guess - vector[search.victim])
    return float(np.sqrt(np.mean(np.square(errors)))) / search.deviation


# The figures ------------------------------------------------------------------------------------------

POPULATIONS = {"usual": Population.usual, "digits": Population.digits}


def figures() -> dict[str, Any]:
    """All figures, by population, variant and reading."""
    found: dict[str, Any] = {}
    for name, of in POPULATIONS.items():
        for variant in Variant:
            population = of()
            length = len(population.mean)
            bounds = Bounds().linear(length, variant)
            search = Search(population, variant, bounds)
            terms = PadTerms(bounds=bounds, context=b"")
            noises: dict[str, Callable[[Floats], float]] = {"pads": partial(pad_noise, terms)}
            for word, parameters, own in (("ckks", STRONG, Bounds()), ("ckks, compact", COMPACT, TIGHT)):
                linear = own.linear(length, variant)
                under = LinearTerms(parameters=parameters, bounds=linear, scores=30 * 500)
                noises[word] = partial(ckks_noise, under)
            row: dict[str, Any] = {
                word: {k: search.of_scores(k, noise) for k in RELEASES} for word, noise in noises.items()
            }
            powers = range(8, terms.weight_bits + 8)
            for word, noised in (("modular, without noise", False), ("modular", True)):
                row[word] = modular(search, terms, count=200, powers=powers, noised=noised)
            found[f"{name}, {variant.value}"] = row
    found["lattice, 6 elements"] = lattices(count=100)
    return found


def lattices(*, count: int, length: int = 6) -> dict[str, float]:
    """Readings of one and two opened integers, with noise and without, beside the best linear guess of
    them.
    """
    bounds = Bounds(spread=2.5).linear(length, Variant.MEAN_ONLY)
    search = Search(Population.usual(length), Variant.MEAN_ONLY, bounds, steps=50, starts=1)
    terms = PadTerms(bounds=bounds, context=b"")
    base = whole(terms.encoded(query_of(bounds, search.sharpest)))
    # The remainder is such that a mean of 8 deviations stays below the modulus.
    tried = (
        residual(terms, base, search.victim, power, 2 ** max(0, power - 4 - terms.data_bits))
        for power in range(terms.weight_bits + 4, 8, -1)
    )
    rows = [weights for weights in tried if weights is not None][:2]
    found = {}
    for k in (1, len(rows)):
        for noised in (False, True):
            words_ = f"{k} score{'s' * (k > 1)}" + ("" if noised else ", without noise")
            found[words_] = lattice(search, terms, rows[:k], count=count, noised=noised)
        queries = [np.array(row) / terms.weight_scale for row in rows[:k]]
        noise = [pad_noise(terms, row) for row in queries]
        found[f"{k} score{'s' * (k > 1)}, linear"] = search.left_open(queries, noise)
    return found


if __name__ == "__main__":
    found = figures()
    print(json.dumps(found, indent=1))
    keep("legal_queries", found)
