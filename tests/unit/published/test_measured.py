"""What runs come to: means and deviations over seeds, lower bounds, exact p."""

from __future__ import annotations

from itertools import product
from math import nan

import numpy as np
import pytest
from scipy.stats import rankdata
from support.every import every
from support.tiny_table import metrics, table

from securefl.published.comparison import by_seed, compare, values
from securefl.published.table import Measure
from securefl.report.significance import adjusted, holm, least_p, rank_biserial, signed_rank

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
    found = compare(own, values(own, {"one": runs})).iloc[0]
    minutes = (2.0, 1.0, 1.0)
    assert found["measured"] == pytest.approx(np.mean(minutes))
    assert found["deviation"] == pytest.approx(np.std(minutes, ddof=1))
    assert (found["seeds"], found["reached"]) == (3, 3)
    alone = compare(own, values(own, {"one": metrics(FedAvg=[[0.5]], FedProf=[[0.9]])}))
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


@every(("rivals", "seeds"), [(1, 6), (2, 7), (3, 7), (4, 8), (5, 8), (6, 8), (7, 9), (10, 9)])
def test_there_is_a_p_from_the_number_of_seeds_that_can_be_significant(rivals: int, seeds: int) -> None:
    """With one seed less, not even the same order under every seed is."""
    gaps = {str(k): np.arange(1.0, seeds + 1) for k in range(rivals)}
    p, needed = adjusted(gaps)
    assert needed == seeds
    assert max(p.values()) < 0.05
    assert rivals * least_p(seeds - 1) >= 0.05
    assert adjusted({name: own[1:] for name, own in gaps.items()}) == ({}, seeds)


def test_a_tie_under_all_seeds_has_no_p_and_takes_none_from_others() -> None:
    gaps = {"level": np.zeros(8), **{name: np.arange(1.0, 9.0) for name in "abc"}}
    p, needed = adjusted(gaps)
    assert [*p] == ["a", "b", "c"]
    assert [*p.values()] == pytest.approx([3 * 2**-7] * 3)
    assert (needed, adjusted({"level": np.zeros(9)})[0]) == (8, {})


def test_rivals_that_are_level_so_far_count_in_the_seeds_that_are_needed() -> None:
    """Six were named for four rivals, of which one seed set one apart: more seeds set others apart too."""
    level = {name: np.zeros(1) for name in "abc"}
    assert adjusted({**level, "apart": np.ones(1)}) == ({}, 8)


def test_a_rival_with_too_few_unequal_pairs_is_of_the_family_of_the_others() -> None:
    """Holm's family was the rivals with a p, which the gaps themselves chose: 0.031 in place of 0.094."""
    few = np.arange(7) / 100
    p, needed = adjusted({"a": np.array([-0.1, 1, 2, 3, 4, 5, 6]) / 100, "b": few, "c": few})
    assert needed == 7
    assert p == pytest.approx({"a": 3 * 2**-5})


def test_a_tie_takes_no_p_that_holm_makes_significant() -> None:
    """Every test needed the pairs of the first of the family, by which Holm multiplies none of the others."""
    whole, tied = np.arange(1.0, 9.0), np.r_[0.0, np.arange(1.0, 8.0)]
    p, needed = adjusted({"a": whole, "b": whole, "c": whole, "tied": tied})
    assert needed == 8
    assert p == pytest.approx({**dict.fromkeys("abc", 4 * 2**-7), "tied": 4 * 2**-7})
    assert adjusted(dict.fromkeys("abcd", tied)) == ({}, 8), "nobody can be the first"


def test_the_effect_size_by_hand() -> None:
    # Ranks 1, 2.5, 2.5, 4: those below 0 have 2.5 of 10.
    assert rank_biserial([1.0, 2.0, -2.0, 3.0, 0.0]) == pytest.approx((7.5 - 2.5) / 10)
    assert (rank_biserial([0.1, 0.2]), rank_biserial([-0.1, -0.2])) == (1.0, -1.0)
    assert np.isnan(rank_biserial([0.1]))
    assert np.isnan(rank_biserial([0.0, 0.0, 0.0]))


def test_gaps_that_differ_by_rounding_alone_are_tied() -> None:
    """Of counts over one number of records, equal differences are equal, whatever floats make of them."""
    ours, theirs = np.array([[4480, 4479, 4570, 4594, 4475], [4463, 4496, 4600, 4603, 4478]])
    for gaps in (ours / 4970 - theirs / 4970, np.round(ours / 4970, 9) - np.round(theirs / 4970, 9)):
        assert len(set(np.abs(gaps))) == 5  # the first two are 17 records, and differ by rounding
        assert rank_biserial(gaps) == rank_biserial(ours - theirs)
        assert signed_rank(gaps) == signed_rank(ours - theirs)


@every("far", [1e8, -1e8, np.inf])
def test_one_far_seed_hides_no_other(far: float) -> None:
    gaps = [far, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert rank_biserial(gaps) == pytest.approx(1.0 if far > 0 else (28 - 8) / 36)
    assert signed_rank(gaps) == pytest.approx(2**-7 if far > 0 else 0.1953125)


def test_gaps_of_rounding_alone_are_level() -> None:
    dust = np.full(8, 1e-17)
    assert adjusted({"a": dust})[0] == {}
    assert np.isnan(rank_biserial(dust))
    assert adjusted({"a": [*dust[:7], 0.1]})[0] == {}
