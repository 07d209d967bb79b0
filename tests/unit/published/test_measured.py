"""What runs come to: means and deviations over seeds, lower bounds, exact p."""

from __future__ import annotations

from itertools import product
from math import nan

import numpy as np
import pytest
from scipy.stats import rankdata
from support.every import every
from support.tiny_table import metrics, table

from securefl.published.comparison import by_seed, compare
from securefl.published.table import Measure
from securefl.report.significance import holm, least_p, said, signed_rank

RUNS = metrics(a=[[0.1, 0.5, 0.4], [0.2, 0.3, 0.6]], b=[[0.9, 0.9, 0.9], [0.1, 0.1, 0.1]])


@every(
    ("measure", "values"),
    [
        (Measure.BEST, (0.5, 0.6)),
        (Measure.ROUNDS, (2.0, 3.0)),
        (Measure.SECONDS, (120.0, 180.0)),
        (Measure.MINUTES, (2.0, 3.0)),
        (Measure.WATT_HOURS, (1.0, 1.5)),
        (Measure.MEGABYTES, (6.0, 9.0)),
        (Measure.MEGABITS_UP, (16.0, 24.0)),
    ],
)
def test_a_measure_of_each_seed(measure: Measure, values: tuple[float, float]) -> None:
    found = by_seed(measure, RUNS, "a", 0.45)
    assert found["value"].tolist() == [*values]
    assert found["reached"].tolist() == [True, True]


def test_a_run_that_never_gets_there_counts_its_length() -> None:
    found = by_seed(Measure.ROUNDS, RUNS, "b", 0.45)
    assert [*found.itertuples(index=False, name=None)] == [(1.0, True), (3.0, False)]
    assert by_seed(Measure.WATT_HOURS, RUNS, "b", 0.45)["value"].tolist() == [0.5, 1.5]
    assert not by_seed(Measure.ROUNDS, RUNS, "b", None)["reached"].any()


def test_rounds_without_an_evaluation_are_not_the_round() -> None:
    found = by_seed(Measure.ROUNDS, metrics(a=[[nan, 0.5, nan, 0.8]]), "a", 0.6)
    assert [*found.itertuples(index=False, name=None)] == [(4.0, True)]


def test_means_and_deviations_over_the_seeds() -> None:
    own = table(measures=(Measure.MINUTES,))
    runs = metrics(FedAvg=[[0.1, 0.5], [0.2, 0.2], [0.3, 0.3]], FedProf=[[0.9], [0.9], [0.9]])
    found = compare(own, {"one": runs}).iloc[0]
    minutes = (2.0, 1.0, 1.0)
    assert found["measured"] == pytest.approx(np.mean(minutes))
    assert found["deviation"] == pytest.approx(np.std(minutes, ddof=1))
    assert (found["seeds"], found["reached"]) == (3, 3)
    alone = compare(own, {"one": metrics(FedAvg=[[0.5]], FedProf=[[0.9]])})
    assert alone["deviation"].isna().all()


def by_hand(differences: np.ndarray) -> float:
    """Two-sided p over all patterns of signs, with mean ranks for ties."""
    ranks = rankdata(np.abs(differences))
    centre = ranks.sum() / 2
    seen = abs(ranks[differences > 0].sum() - centre)
    signs = np.array(list(product([0, 1], repeat=len(ranks))))
    return float(np.mean(np.abs(signs @ ranks - centre) >= seen - 1e-9))


@every("size", [1, 2, 3, 5, 8])
def test_p_is_exact(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(5):
        # small whole numbers, so that ties come
        one, other = rng.integers(0, 6, size), rng.integers(0, 6, size)
        differences = (one - other)[one != other].astype(float)
        expected = by_hand(differences) if len(differences) else 1.0
        assert signed_rank(one - other) == pytest.approx(expected)


def test_the_least_p_is_what_equal_signs_give() -> None:
    for seeds in (1, 2, 3, 5):
        assert signed_rank(range(1, seeds + 1)) == least_p(seeds)
    assert signed_rank([0.0, 0.0]) == 1.0


def test_holm_by_hand() -> None:
    # Holm 1979: 0.01 x 4, 0.02 x 3, 0.03 x 2 is not below the one before, and 0.2.
    assert holm([0.02, 0.2, 0.01, 0.03]) == pytest.approx((0.06, 0.2, 0.04, 0.06))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


def test_a_sentence_says_who_leads_whom_and_what_is_open() -> None:
    rivals = [("A", 0.02, 0.004), ("B", -0.01, 0.0301), ("C", 0.03, 0.05), ("D", 0.0, 0.01)]
    assert said("Ours", rivals, "") == (
        "Ours: ahead of A by 0.020 (p 0.004); behind B by 0.010 (p 0.030); not significant beside "
        "C (+0.030, p 0.050) and D (0.000, p 0.010)."
    )
    assert (
        said("Ours", [("A", 12.0, 0.0001)], " rounds") == "Ours: ahead of A by 12.0 rounds (p below 0.001)."
    )


@every(("rivals", "least"), [(2, 8), (3, 8), (6, 8), (4, 10)])
def test_eight_seeds_have_power_beside_six_rivals(rivals: int, least: int) -> None:
    assert rivals * least_p(least) < 0.05
