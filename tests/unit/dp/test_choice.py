"""Private selection: the bound is the theorems', and holds where the truth can be worked out."""

from __future__ import annotations

import math
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon
from scipy.special import ndtr
from scipy.stats import poisson
from support.every import every

from securefl.accounting.composition import gaussian_epsilon
from securefl.accounting.events import steps_event
from securefl.core.keys import SecretKey
from securefl.dp.choice import Trials, epsilon_of_choice, uniform
from securefl.dp.noise import Source

POISSON = Trials(trials="poisson", mean=10.0)
GEOMETRIC = Trials(trials="negative-binomial", mean=10.0)
LOGARITHMIC = Trials(trials="negative-binomial", mean=10.0, shape=0.0)
WIDE = Trials(trials="negative-binomial", mean=4.0, shape=2.5)
ALL = [POISSON, GEOMETRIC, LOGARITHMIC, WIDE]
ORDERS = np.array([1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024])
DELTA = 1e-5


def chances(trials: Trials, most: int = 4000) -> np.ndarray:
    return np.array(list(islice(trials.chances(), most)))


@every("trials", ALL)
def test_chances_are_a_distribution_with_the_mean_that_was_asked_for(trials: Trials) -> None:
    found = chances(trials)
    assert found.sum() == pytest.approx(1, abs=1e-9)
    assert found @ np.arange(len(found)) == pytest.approx(trials.mean, rel=1e-6)
    if trials.trials == "poisson":
        assert found[:50] == pytest.approx(poisson.pmf(range(50), trials.mean))
    else:
        assert found[0] == 0


def test_the_geometric_and_the_logarithmic_are_as_the_paper_names_them() -> None:
    # Section 3: eta = 1 is geometric with mean 1 / gamma; eta = 0 has p(k) = (1-g)^k / (k log(1/g))
    assert GEOMETRIC.gamma == pytest.approx(0.1)
    assert chances(GEOMETRIC)[1:5] == pytest.approx([0.1 * 0.9**k for k in range(4)])
    gamma = LOGARITHMIC.gamma
    assert chances(LOGARITHMIC)[1:5] == pytest.approx(
        [(1 - gamma) ** k / (k * math.log(1 / gamma)) for k in range(1, 5)]
    )


@every("trials", ALL)
def test_draws_follow_the_chances_and_the_secret_key_alone(trials: Trials) -> None:
    source = Source(SecretKey(bytes(range(32))))
    drawn = np.array([trials.draw(source) for _ in range(4000)])
    assert abs(drawn.mean() - trials.mean) < 5 * drawn.std() / math.sqrt(len(drawn))
    share = np.mean(drawn == 0)
    assert share < 0.003  # e^-10 by Poisson, and none by the others
    again = Source(SecretKey(bytes(range(32))))
    assert [trials.draw(again) for _ in range(20)] == drawn[:20].tolist()


def test_candidates_are_drawn_alike() -> None:
    source = Source(SecretKey(bytes(range(32))))
    drawn = np.bincount([uniform(3, source) for _ in range(3000)], minlength=3)
    assert abs(drawn - 1000).max() < 130


@every("trials", ALL)
@every("z", [2.0, 6.0])
def test_the_cost_is_that_of_the_theorems(trials: Trials, z: float) -> None:
    rdp = ORDERS / (2 * z * z)  # of one Gaussian (Mironov 2017, Corollary 3)
    if trials.trials == "poisson":  # Theorem 6
        own = [
            eps
            + trials.mean * compute_delta(ORDERS, rdp, math.log1p(1 / (a - 1)))[0]
            + math.log(trials.mean) / (a - 1)
            for a, eps in zip(ORDERS, rdp, strict=True)
        ]
    else:  # Theorem 2, with the best b
        eta, gamma = trials.shape, trials.gamma
        beside = min(
            (1 + eta) * ((1 - 1 / b) * eps + math.log(1 / gamma) / b)
            for b, eps in zip(ORDERS, rdp, strict=True)
        )
        own = list(rdp + beside + math.log(trials.mean) / (ORDERS - 1))
        own = [min(own[n:]) for n in range(len(own))]  # RDP grows with the order
    expected = compute_epsilon(ORDERS, own, DELTA)[0]
    assert epsilon_of_choice([{GaussianDpEvent(z): 1}], trials, DELTA) == pytest.approx(expected, rel=1e-6)


def test_the_costs_are_those_that_the_page_of_budgets_quotes() -> None:
    page = " ".join((Path(__file__).parents[3] / "docs" / "budget.md").read_text("utf-8").split())
    one, ten = (gaussian_epsilon(6 / math.sqrt(releases), DELTA) for releases in (1, 10))
    best = [epsilon_of_choice([{GaussianDpEvent(6.0): 1}], own, DELTA) for own in ALL[:3]]
    assert f"sigma 6 costs epsilon {one:.2f} at delta 1e-5, and ten of them {ten:.2f}." in page
    assert f"costs {best[0]:.2f} (Poisson), {best[1]:.2f} (`shape = 1`) or {best[2]:.2f} (`shape = 0`" in page


@every("trials", ALL)
@every("z", [1.5, 4.0])
def test_the_bound_holds_where_the_truth_can_be_worked_out(trials: Trials, z: float) -> None:
    # A candidate releases its score with Gaussian noise, which one person moves by 1; the best is published.
    # With G the generating function of K, the best is at most y with the chance G(F(y)).
    grid = np.linspace(-12 * z, 12 * z, 8001)
    pmf = chances(trials)
    weights = pmf[pmf.cumsum() < 1 - 1e-13]

    def best(mean: float) -> np.ndarray:
        reached = np.polynomial.polynomial.polyval(ndtr((grid - mean) / z), weights)
        return np.diff(reached, prepend=reached[0] * 0, append=1.0)

    claimed = epsilon_of_choice([{GaussianDpEvent(z): 1}], trials, 1e-3)
    p, q = best(1.0), best(0.0)
    for one, other in ((p, q), (q, p)):
        # The largest delta at this epsilon over all events; rows below 1e-12 are the grid's own errors.
        delta = np.maximum(one - math.exp(claimed) * other, 0).sum()
        assert delta <= 1e-3
    # It is no idle bound: at the epsilon of one trial the promise is broken by the best of them.
    single = gaussian_epsilon(z, 1e-3)
    worst = max(np.maximum(one - math.exp(single) * other, 0).sum() for one, other in ((p, q), (q, p)))
    assert worst > 1e-3
    assert single < claimed < 8 * single


def test_the_dearest_candidate_pays_for_all() -> None:
    cheap, dear = {GaussianDpEvent(9.0): 2}, {GaussianDpEvent(3.0): 1}
    assert epsilon_of_choice([cheap, dear, cheap], POISSON, DELTA) == pytest.approx(
        epsilon_of_choice([dear], POISSON, DELTA)
    )
    few, many = {steps_event(0.01, 1.1, 5): 1}, {steps_event(0.01, 1.1, 50): 1}
    both = epsilon_of_choice([few, many], GEOMETRIC, DELTA)
    assert both == pytest.approx(epsilon_of_choice([many], GEOMETRIC, DELTA))
    assert both > epsilon_of_choice([few], GEOMETRIC, DELTA) > 0
    assert epsilon_of_choice([cheap, {NonPrivateDpEvent(): 1}], POISSON, DELTA) == math.inf
    assert epsilon_of_choice([{}], POISSON, DELTA) == 0


@every("wrong", [{"mean": 1.0}, {"mean": math.inf}, {"mean": math.nan}, {"shape": -0.5}, {"shape": math.nan}])
def test_numbers_that_no_theorem_covers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        Trials(**{"trials": "negative-binomial", "mean": 5.0, **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Leave it out"):
        Trials(trials="poisson", mean=5.0, shape=2.0)
