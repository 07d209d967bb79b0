"""The drawing rules against their exact laws, by chi-square.

Seeds are fixed, so a test gives the same verdict every time; under fresh seeds each of them would
call a true law false with probability 1e-6 (ALARM).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import combinations, permutations, product

import numpy as np
import pytest
from scipy.stats import binom, chisquare

from securefl.core.draws import sample_without_replacement
from securefl.protocols.selection import by_valuation, with_replacement

ALARM = 1e-6
DRAWS = 20_000
Draw = Callable[[np.random.Generator], Mapping[int, int]]


def successive(weights: np.ndarray, count: int) -> dict[tuple[int, ...], float]:
    """Exact probability of every set drawn one after the other without replacement."""
    law: dict[tuple[int, ...], float] = dict.fromkeys(combinations(range(len(weights)), count), 0.0)
    for order in permutations(range(len(weights)), count):
        left, chance = weights.sum(), 1.0
        for k in order:
            chance *= weights[k] / left
            left -= weights[k]
        law[tuple(sorted(order))] += chance
    return law


def verdict(draw: Draw, law: Mapping[tuple[int, ...], float], seed: int) -> float:
    """p-value of the drawn sets (with multiplicities) under `law`."""
    rng = np.random.default_rng(seed)
    seen = Counter(tuple(sorted(Counter(draw(rng)).elements())) for _ in range(DRAWS))
    assert set(seen) <= set(law)
    expected = np.array([law[key] for key in law]) * DRAWS
    assert expected.min() > 5
    return float(chisquare([seen[key] for key in law], expected).pvalue)


def test_gumbel_top_k_is_successive_sampling() -> None:
    weights = np.array([5.0, 3.0, 1.0, 0.5, 0.5])
    law = successive(weights, 2)
    assert verdict(lambda rng: sample_without_replacement(np.log(weights), 2, rng), law, seed=1) > ALARM
    # the test has power: the law of another weight is refused
    wrong = successive(np.array([5.0, 3.0, 1.2, 0.5, 0.5]), 2)
    assert verdict(lambda rng: sample_without_replacement(np.log(weights), 2, rng), wrong, seed=1) < ALARM


def test_gumbel_top_k_keeps_the_law_where_weights_underflow() -> None:
    """alpha 25 and divergences about 60: every weight is 0 in float64, the odds between them are not."""
    divergences = 60.0 + np.array([0.0, 0.02, 0.05, 0.1, 0.12])
    assert (np.exp(-25.0 * divergences) == 0).all()
    law = successive(np.exp(-25.0 * (divergences - 60.0)), 2)
    assert verdict(lambda rng: sample_without_replacement(-25.0 * divergences, 2, rng), law, seed=2) > ALARM


def test_equal_weights_draw_every_set_alike() -> None:
    law = dict.fromkeys(combinations(range(5), 2), 0.1)
    flat = -0.0 * np.array([3.0, 1e6, 0.0, 1.0, 250.0])
    assert verdict(lambda rng: sample_without_replacement(flat, 2, rng), law, seed=3) > ALARM


@pytest.mark.parametrize("shift", [0.0, -1500.0])
def test_with_replacement_is_the_multinomial_law(shift: float) -> None:
    chance = np.array([0.5, 0.3, 0.2])
    law: Counter[tuple[int, ...]] = Counter()
    for draws in product(range(3), repeat=2):
        law[tuple(sorted(draws))] += float(np.prod(chance[list(draws)]))
    assert verdict(lambda rng: with_replacement(np.log(chance) + shift, 2, rng), law, seed=4) > ALARM


def test_active_fl_draws_by_softmax_of_the_valuation_among_the_top_quarter() -> None:
    valuations = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 2.0, 3.0])
    top = successive(np.exp(1.0 * valuations[9:]), 2)
    law = {tuple(k + 9 for k in key): chance for key, chance in top.items()}

    def draw(rng: np.random.Generator) -> Mapping[int, int]:
        return by_valuation(valuations, 2, excluded=0.75, temperature=1.0, explored=0.0, rng=rng)

    assert verdict(draw, law, seed=5) > ALARM


def test_active_fl_explores_its_share_uniformly() -> None:
    """Of 10 places one explores: 9 of the top 10 are drawn, the tenth comes from the 31 others alike."""
    valuations = np.concatenate([np.zeros(30), np.full(10, 5.0)])
    rng = np.random.default_rng(6)
    runs = 4000
    outside = 0
    for _ in range(runs):
        drawn = set(by_valuation(valuations, 10, excluded=0.75, temperature=0.01, explored=0.1, rng=rng))
        assert len(drawn) == 10
        assert len(drawn & set(range(30, 40))) >= 9
        outside += len(drawn & set(range(30)))
    low, high = binom.ppf([ALARM / 2, 1 - ALARM / 2], runs, 30 / 31)
    assert low <= outside <= high
