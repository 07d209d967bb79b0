"""The search for the best legal queries in its quick form, and the figures that the card has from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from legal_queries import RELEASES, RESULTS, Floats, Population, Search, pad_noise

from securefl.core.linear import LinearBounds, LinearQuery
from securefl.linear import words
from securefl.linear.pad_terms import COVER, PadTerms
from securefl.linear.registry import left_open
from securefl.matching.profiles import Bounds, Variant

# Readings of low bits -----------------------------------------------------------------------------

# Readings of the low bits of what a server opens under pads: residues, and closest vectors.
#
# modular   weights that are multiples of m but for the victim's, and the opened integer modulo m
# lattice   the closest vector to one or two opened integers of short profiles (Babai's plane, reduced basis)
#
# The key holder's noise covers both, whatever the weights are (`securefl.linear.pad_terms`).


def query_of(bounds: LinearBounds, hidden: Floats) -> LinearQuery:
    return LinearQuery(bounds, hidden, np.zeros(bounds.clear_length))


def error(search: Search, guesses: Sequence[float], truth: Floats) -> float:
    """The error of guesses of the victim, as a share of its deviation."""
    return float(np.sqrt(np.mean(np.square(np.array(guesses) - truth)))) / search.deviation


def whole(weights: words.Words) -> list[int]:
    """Words as Python's integers."""
    size = 8 * weights.shape[1]
    raw = words.packed(weights)
    parts = (int.from_bytes(raw[at : at + size], "little") for at in range(0, len(raw), size))
    return [words.centred(one, 8 * size) for one in parts]


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
            size = terms.word_bits // 8
            raw = b"".join((one % 2**terms.word_bits).to_bytes(size, "little") for one in found)
            if terms.form(words.unpacked(raw, terms.word_bits)) is None:
                return found
    return None


def _multiples(terms: PadTerms, near: Sequence[float], m: int) -> list[int] | None:
    """Multiples of m near these numbers, inside the ranges of weights."""
    found = [m * round(one / m) if abs(one) >= m / 2 or one == 0 else (m if one > 0 else -m) for one in near]
    for at, run in enumerate(own for own in terms.bounds.weights for _ in range(own.count)):
        if run.low == run.high:
            found[at] = round(run.low * terms.weight_scale)
            if found[at] % m:
                return None
        elif run.low > 0:
            found[at] = max(found[at], -(-int(np.ceil(run.low * terms.weight_scale)) // m) * m)
    return found


def opened(terms: PadTerms, vectors: Floats, weights: Sequence[int], rng: Any, *, noised: bool) -> list[int]:
    """What a server opens of each vector: the sum of whole numbers, with the key holder's noise."""
    most = COVER * sum(map(abs, weights)) if noised else 0
    sums = np.rint(vectors * terms.data_scale).astype(object) @ np.array(weights, dtype=object)
    return [int(one) + int.from_bytes(rng.bytes(32), "little") % (2 * most + 1) - most for one in sums]


def modular(search: Search, terms: PadTerms, *, count: int, powers: Sequence[int], noised: bool) -> float:
    """What the best reading modulo 2^t leaves open, at most all of it: of one score, by the error of the
    guess.
    """
    rng = np.random.default_rng(search.seed + 1)
    vectors = search.population.drawn(count, search.variant, rng)
    best, centre = 1.0, float(search.population.mean[search.victim])
    base = whole(terms.encoded(query_of(search.bounds, search.sharpest)))
    for power, shift in ((one, shift) for one in powers for shift in range(one)):
        m, remainder = 2**power, 2 ** (power - 1 - shift)
        weights = residual(terms, base, search.victim, power, remainder)
        if weights is None:
            continue
        told, unit = opened(terms, vectors, weights, rng, noised=noised), remainder * terms.data_scale
        # Centred at what the mean usually gives, so that the residue wraps least.
        usual = round(centre * unit)
        guesses = [((one - usual + m // 2) % m - m // 2) / unit + centre for one in told]
        best = min(best, error(search, guesses, vectors[:, search.victim]))
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
    likely = [sum(int(u) * w for u, w in zip(usual, row, strict=True)) for row in rows]
    guesses = []
    for at in range(count):
        rest = [float(told[k][at] - one) / wide[k] for k, one in enumerate(likely)]
        point = closest(basis, np.concatenate([np.zeros(len(spread)), rest]))
        guesses.append(
            (point[search.victim] * spread[search.victim] + usual[search.victim]) / terms.data_scale
        )
    return error(search, guesses, vectors[:, search.victim])


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
        name = f"{k} score{'s' * (k > 1)}"
        found[f"{name}, without noise"] = lattice(search, terms, rows[:k], count=count, noised=False)
        found[name] = lattice(search, terms, rows[:k], count=count, noised=True)
        queries = [np.array(row) / terms.weight_scale for row in rows[:k]]
        found[f"{name}, linear"] = search.left_open(queries, [pad_noise(terms, row) for row in queries])
    return found


# The tests ----------------------------------------------------------------------------------------


KEPT = json.loads((RESULTS / "legal_queries.json").read_text(encoding="utf-8"))
SEARCHED = [own for name, own in KEPT.items() if name != "command"]


@pytest.mark.parametrize("scheme", ["pads", "ckks"])
@pytest.mark.parametrize("releases", RELEASES)
def test_the_card_promises_no_more_than_the_search_left_open(scheme: str, releases: int) -> None:
    assert left_open(scheme, releases) <= min(own[scheme][str(releases)] for own in SEARCHED)


@pytest.fixture(scope="module")
def search() -> Search:
    bounds = Bounds().linear(64, Variant.MEAN_ONLY)
    return Search(Population.digits(), Variant.MEAN_ONLY, bounds, steps=60, starts=1)


def test_the_quick_search_finds_what_the_long_one_found(search: Search) -> None:
    terms = PadTerms(bounds=search.bounds, context=b"")
    kept = KEPT["digits, mean-only"]["pads"]
    for releases in RELEASES:
        found = search.of_scores(releases, lambda row: pad_noise(terms, row))
        assert found == pytest.approx(kept[str(releases)], rel=0.3)


def test_what_the_search_tries_is_legal_and_as_sharp_as_the_rules_allow(search: Search) -> None:
    for weights in (search.sharpest, search.opposite(search.sharpest)):
        query_of(search.bounds, weights).row(encrypted=False)
        spread = np.abs(weights).max() / np.sqrt(np.mean(weights**2))
        assert 0.8 * search.bounds.spread < spread <= search.bounds.spread
        assert int(np.abs(weights).argmax()) == search.victim


def test_weights_that_cancel_what_one_element_tells_are_found(search: Search) -> None:
    """(-2 m b, b) on a mean and its square: no such query tells more than the card says."""
    length, (low, high) = len(search.population.mean), search.limits
    terms, found = PadTerms(bounds=search.bounds, context=b""), []
    for element in set(range(length)) - {search.victim}:
        pair = [element, length + element]
        own = np.linalg.eigh(search.covariance[np.ix_(pair, pair)])[1][:, 0]
        weights = np.zeros(len(low))
        weights[search.victim] = 1.0
        weights[pair] = np.sign(own[1]) * own * np.sqrt(len(low) / search.bounds.spread**2 - 1) * 1.001
        weights *= 0.999 * search.bounds.weight_norm / np.linalg.norm(weights)
        weights = np.clip(weights, low, high)
        if search.passes(weights):
            found.append(search.left_open([weights], [pad_noise(terms, weights)]))
    assert min(found) > 0.9 * left_open("pads", 1)
    assert search.of_scores(1, lambda row: pad_noise(terms, row)) < 1.1 * min(found)


@pytest.mark.parametrize("noised", [False, True])
def test_residues_read_an_entry_without_the_noise_alone(search: Search, noised: bool) -> None:
    terms = PadTerms(bounds=search.bounds, context=b"")
    left = modular(
        search, terms, count=30, powers=range(terms.weight_bits - 5, terms.weight_bits), noised=noised
    )
    assert left > 0.8 if noised else left < 1e-4


def test_a_lattice_reads_an_entry_without_the_noise_alone() -> None:
    found = lattices(count=20, length=4)
    assert found["1 score, without noise"] < 1e-4
    assert found["2 scores, without noise"] < 0.1
    for scores in ("1 score", "2 scores"):
        # No better than the best linear guess from the same scores, but for the error of 20 draws.
        assert found[scores] > 0.6 * found[f"{scores}, linear"] > 0.2
