"""Drawing rules at their edges; that they follow their laws is in statistical/test_selection_laws.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.choices import cohort_of
from support.every import every

from securefl.algorithm.clients import Population, State
from securefl.core.draws import sample_without_replacement
from securefl.core.errors import ConfigError
from securefl.protocols.averaging import Uniform
from securefl.protocols.baselines import ActiveFL, ByLoss, BySize, FirstCome
from securefl.protocols.fedprof.options import ByProfile, FedProf
from securefl.protocols.selection import by_valuation, with_replacement


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def state(**memory: object) -> State:
    return State(np.zeros(1, np.float32), {name: np.asarray(array) for name, array in memory.items()})


def by_profile(alpha: object, replacement: bool = False) -> ByProfile:
    options = FedProf(fraction=1.0, alpha=alpha, replacement=replacement)  # type: ignore[arg-type]
    return ByProfile(None, options, None)  # type: ignore[arg-type]  # no data is read


@every("hole", [-np.inf, np.nan])
def test_no_weight_no_draw(hole: float) -> None:
    weights = np.array([0.0, hole, 0.0, hole, 0.0])
    for seed in range(50):
        assert set(sample_without_replacement(weights, 3, rng(seed))) == {0, 2, 4}
        assert set(with_replacement(weights, 20, rng(seed))) <= {0, 2, 4}


def test_fewer_are_drawn_where_fewer_can_be() -> None:
    weights = np.array([np.nan, 0.0, -np.inf])
    assert sample_without_replacement(weights, 3, rng()) == {1: 1}
    assert sample_without_replacement(np.full(3, np.nan), 2, rng()) == {}
    assert with_replacement(np.full(3, np.nan), 2, rng()) == {}


def test_more_than_all_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="K = 6 of N = 5"):
        sample_without_replacement(np.zeros(5), 6, rng())


@every("draw", [sample_without_replacement, with_replacement])
def test_weights_that_underflow_still_order_the_clients(draw: object) -> None:
    """exp(-25 * 60) is 0 in float64; the nearest client's odds against the next are still e^50."""
    log_weights = -25.0 * np.array([64.0, 60.0, 62.0])
    assert (np.exp(log_weights) == 0).all()
    for seed in range(50):
        assert draw(log_weights, 1, rng(seed)) == {1: 1}  # type: ignore[operator]


# FedProf ----------------------------------------------------------------------------------------


def test_log_weight_is_minus_alpha_times_divergence() -> None:
    divergences = state(profile=[0.5, 2.0, np.nan])
    np.testing.assert_allclose(by_profile(10.0).log_weights(divergences), [-5.0, -20.0, np.nan])
    np.testing.assert_allclose(by_profile((1.0, 2.0, 3.0)).log_weights(divergences), [-0.5, -4.0, np.nan])


def test_theorem_1_weighs_by_share_of_records() -> None:
    """v2, Theorem 1 with Lambda = 1: lambda_k = rho_k = n_k / n; an unknown profile is never drawn."""
    known = state(profile=[9.0, 0.1, 5.0, np.nan], size=[10.0, 30.0, 60.0, 7.0])
    weights = np.exp(by_profile("theorem-1").log_weights(known))
    np.testing.assert_allclose(weights[:3] / weights[0], [1.0, 3.0, 6.0])
    assert np.isnan(weights[3])
    whole = np.exp(by_profile("theorem-1").log_weights(state(profile=[1.0, 1.0], size=[25.0, 75.0])))
    np.testing.assert_allclose(whole, [0.25, 0.75])


def test_replacement_draws_with_multiplicities() -> None:
    population = Population(clients=2, seconds=np.ones(2))
    near = state(profile=[0.0, 100.0])
    twice = by_profile(10.0, replacement=True)
    assert cohort_of(twice, near, population, 5, rng()) == {0: 5}
    assert cohort_of(by_profile(10.0), near, population, 2, rng()) == {0: 1, 1: 1}


# Baselines --------------------------------------------------------------------------------------


def test_active_fl_values_by_root_of_records_times_loss() -> None:
    """Client 2 has the largest loss, client 1 the largest sqrt(n) * loss; 3 of 4 are excluded."""
    by_loss = ByLoss(None, ActiveFL(fraction=0.25, explored=0.0))  # type: ignore[arg-type]  # no data is read
    known = state(size=[1.0, 100.0, 4.0, 9.0], loss=[2.0, 1.0, 3.0, 2.0])
    assert cohort_of(by_loss, known, Population(clients=4, seconds=np.ones(4)), 1, rng()) == {1: 1}


def test_too_few_valued_clients_are_filled_up_at_random() -> None:
    """Six of eight are excluded; a cohort of five takes the two others, and three from the rest."""
    drawn = by_valuation(np.arange(8.0), 5, excluded=0.75, temperature=0.01, explored=0.0, rng=rng())
    assert len(drawn) == 5
    assert {6, 7} < set(drawn)


@every(("count", "explorers"), [(5, 1), (8, 1), (10, 1), (15, 2), (20, 2)])
def test_at_least_one_client_explores(count: int, explorers: int) -> None:
    """int(0.9 K) exploit, as in the code of FedCor's authors: nobody else can come from the excluded."""
    valuations = np.concatenate([np.zeros(300), np.full(100, 5.0)])
    outside = [
        sum(
            client < 300
            for client in by_valuation(
                valuations, count, excluded=0.75, temperature=0.01, explored=0.1, rng=rng(seed)
            )
        )
        for seed in range(60)
    ]
    # Each explorer is of the excluded with probability 300 / 399: none in 60 draws has chance 10^-36.
    assert max(outside) == explorers


def test_unknown_valuations_count_as_lowest() -> None:
    valuations = np.array([np.nan, 0.0, 1.0, np.nan])
    for seed in range(20):
        drawn = by_valuation(valuations, 2, excluded=0.5, temperature=1.0, explored=0.0, rng=rng(seed))
        assert set(drawn) == {1, 2}


def test_nobody_who_has_retired_is_chosen() -> None:
    """By no rule, however the rest is known; fewer are chosen where fewer are left."""
    population = Population(clients=4, seconds=np.array([4.0, 3.0, 2.0, 1.0]), retired=frozenset({0, 2}))
    known = state(
        size=[9.0, 1.0, 9.0, 1.0],
        loss=[9.0, 1.0, 9.0, np.nan],
        profile=[0.0, 1.0, 0.0, 1.0],
        cohort=[0, 1, 0, 1],
    )
    rules = [
        Uniform(),
        BySize(None),  # type: ignore[arg-type]  # no data is read
        FirstCome(),
        by_profile(1.0),
        by_profile(1.0, replacement=True),
        ByLoss(None, ActiveFL(fraction=0.5, excluded=0.0, temperature=1.0, explored=0.5)),  # type: ignore[arg-type]
    ]
    for rule in rules:
        for seed in range(40):
            assert set(cohort_of(rule, known, population, 3, rng(seed))) <= {1, 3}
        nobody = replace(population, retired=frozenset(range(4)))
        assert not cohort_of(rule, known, nobody, 3, rng())
    assert population.everyone() == (1, 3)


def test_by_size_draws_a_client_of_unknown_size_as_an_average_one() -> None:
    population = Population(clients=3, seconds=np.ones(3))
    sizes = state(size=[1.0, np.nan, 3.0])
    draws = [cohort_of(BySize(None), sizes, population, 1, rng(seed)) for seed in range(600)]
    counts = np.array([sum(k in drawn for drawn in draws) for k in range(3)])
    # Binomial(600, 1/3): six standard deviations are 70, so this fails by chance once in 10^8 runs.
    assert abs(counts[1] - 200) < 70
    assert abs(counts[2] - 300) < 74
