"""Clipping, noise and calibration: by hand, by search and against exact laws."""

from __future__ import annotations

import json
import math
import tracemalloc
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from dp_accounting import GaussianDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from securefl.commands.main import cli
from securefl.core.errors import ConfigError, DataError, SecureFLError
from securefl.core.keys import SecretKey
from securefl.dp import calibration, clipping, gaussian
from securefl.dp.moments import STEP, Losses, Moments
from securefl.dp.noise import Source
from securefl.study.config import parse
from securefl.study.packaged import packaged

ANY = st.floats(allow_nan=True, allow_infinity=True, width=64)
RECORDS = arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 4)), elements=ANY)


PRECISE = Context(prec=60)


def fixed(label: int) -> Source:
    return Source(SecretKey(bytes([label]) * 32))


# Clipping ----------------------------------------------------------------------------------------


@given(RECORDS, st.floats(1e-6, 1e6))
def test_clipped_records_are_finite_and_inside(records: np.ndarray, bound: float) -> None:
    kept = records[clipping.finite(records)]
    assert np.isfinite(kept).all()
    inside = clipping.l2(kept, bound)
    assert np.isfinite(inside).all()
    assert (np.linalg.norm(inside / bound, axis=1) <= 1 + 1e-12).all()
    small = np.abs(kept).max(axis=1) < bound / 2 * (1 - 1e-9)  # of four entries: certainly inside
    assert np.array_equal(inside[small], kept[small])
    assert (np.abs(clipping.coordinates(kept, bound)) <= bound).all()


@settings(max_examples=300)
@given(RECORDS, st.sampled_from([2.0**-10, 1.0, 0.3]), st.integers(1, 2**20))
def test_grid_integers_never_exceed_their_limit(records: np.ndarray, step: float, limit: int) -> None:
    """Exact integer sensitivity, for huge, subnormal and ordinary records alike."""
    kept = records[clipping.finite(records)]
    integers = clipping.to_grid(kept, step, limit)
    assert integers.dtype == np.int64
    assert all(sum(int(v) ** 2 for v in row) <= limit**2 for row in integers)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf])
def test_bounds_are_positive(bound: float) -> None:
    for clip in (clipping.l2, clipping.coordinates):
        with pytest.raises(ConfigError):
            clip(np.ones((1, 1)), bound)


# Noise -------------------------------------------------------------------------------------------


def test_noise_is_fresh_and_takes_no_seed() -> None:
    np.random.seed(0)  # noqa: NPY002  # the legacy seed must not matter
    first = Source().normal(8)
    np.random.seed(0)  # noqa: NPY002
    assert not np.array_equal(first, Source().normal(8))
    assert np.array_equal(fixed(1).normal(8), fixed(1).normal(8))


@pytest.mark.parametrize("sigma", [4.0, 37.3, 1000.0])
def test_the_rounded_gaussian_has_the_rounded_law(sigma: float) -> None:
    """Kolmogorov-Smirnov against the normal law with half a unit of rounding; false alarm 1e-6."""
    drawn = gaussian.rounded(200_000, sigma, fixed(2)) + Source().normal(1)[0] * 0
    jitter = fixed(3).words(200_000) * 2.0**-64 - 0.5  # uniform: rounding undone in distribution
    spread = sqrt(sigma**2 + 1 / 12 + 1 / 12)
    variance = np.var(drawn + jitter) / spread**2
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 200_000) / 200_000
    assert low < variance < high
    assert abs(np.mean(drawn)) < 5.2 * sigma / sqrt(200_000)


@pytest.mark.parametrize("sigma", [4.0, 5.5, 20.0])
def test_the_discrete_gaussian_has_its_exact_law(sigma: float) -> None:
    """Chi-square against exp(-k^2 / 2 sigma^2) over all cells of at least 20; false alarm 1e-6."""
    count = 300_000
    drawn = gaussian.discrete(count, sigma, fixed(4))
    support = np.arange(-int(6 * sigma), int(6 * sigma) + 1)
    expected = np.exp(-(support**2) / (2 * sigma**2))
    expected *= count / np.exp(-(np.arange(-400, 401) ** 2) / (2 * sigma**2)).sum()
    seen = np.array([np.sum(drawn == k) for k in support])
    enough = expected >= 20
    rest_seen, rest = count - seen[enough].sum(), count - expected[enough].sum()
    statistic = (
        np.sum((seen[enough] - expected[enough]) ** 2 / expected[enough]) + (rest_seen - rest) ** 2 / rest
    )
    assert stats.chi2.sf(statistic, enough.sum()) > 1e-6


@pytest.mark.parametrize("sigma", [127.0, 128.0, 1e5, 2.0**24 - 1])
def test_a_wide_discrete_gaussian_has_its_law_and_costs_no_wide_table(sigma: float) -> None:
    """Chi-square over 100 cells of equal normal probability, which at these sigmas is the discrete one's to
    1e-3 of a cell's deviation; false alarm 1e-6. A table of every integer would take 4 kB times sigma."""
    count, cells = 400_000, 100
    tracemalloc.start()
    drawn = gaussian.discrete(count, sigma, fixed(5))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 300 * count
    edges = np.rint(sigma * stats.norm.ppf(np.arange(1, cells) / cells)) - 0.5
    expected = count * np.diff(stats.norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]]) / sigma))
    seen = np.bincount(np.searchsorted(edges, drawn), minlength=cells)
    assert stats.chi2.sf(np.sum((seen - expected) ** 2 / expected), cells - 1) > 1e-6
    residues = np.bincount(drawn & 15, minlength=16)  # none within a block is favoured
    assert stats.chisquare(residues).pvalue > 1e-6


class Words(Source):
    """Words that are given."""

    def __init__(self, *words: int) -> None:
        self.given = np.array(words, dtype=np.uint64)

    def words(self, count: int) -> np.ndarray:
        assert count == len(self.given)
        return self.given


@pytest.mark.parametrize("gap", [2**10, 2**70, 2**81, 2**100])
@pytest.mark.parametrize(
    ("sigma", "block", "rest", "width"),
    [(200.0, 0, 1, 2), (4096.0, 100, 63, 64), (2.0**24 - 1, 5, 99_999, 2**17)],
)
def test_a_proposal_is_kept_with_its_exact_probability(
    sigma: float, block: int, rest: int, width: int, gap: int
) -> None:
    """Words of 128 bits on both sides of exp(-(x^2 - b^2) / 2 sigma^2), 2^-118 from it and farther."""
    x = block * width + rest
    with localcontext(PRECISE):
        exponent = (x**2 - (block * width) ** 2) * Decimal(1 / (2 * sigma**2))
        threshold = int((-exponent).exp() * 2**128)
    high, _ = gaussian._table(sigma / width)
    chosen = int(high[block - 1]) + 1 if block else 0
    for word, kept in ((threshold - gap, [-x]), (threshold + gap, [])):
        source = Words(chosen, 0, 2**63 + rest, word >> 64, word & (2**64 - 1))
        assert gaussian._kept(1, sigma, source).tolist() == kept


def test_the_table_is_exact() -> None:
    """Against Python's own rational sums of 60-digit exponentials, at every entry."""
    sigma = 4.0
    high, low = gaussian._table(sigma)
    weights = [(-Decimal(k * k) / Decimal(32)).exp(PRECISE) for k in range(len(high))]
    assert len(weights) == 53  # 13 sigma
    with localcontext(PRECISE):
        whole, total = sum(weights), Decimal(0)
        for h, lo, weight in zip(high, low, weights, strict=True):
            total += weight
            assert abs(Decimal((int(h) << 64) + int(lo) + 1) - total / whole * 2**128) < 2**8
    assert (int(high[-1]) << 64) + int(low[-1]) == 2**128 - 1


def test_distributed_noise_is_refused_where_the_grid_is_too_coarse() -> None:
    with pytest.raises(ConfigError, match="too coarse"):
        gaussian.discrete_event(63.0, 1.0)
    for few in (3.9, math.nan):
        with pytest.raises(ConfigError, match="at least 4"):
            gaussian.discrete(1, few, Source())
    with pytest.raises(ConfigError, match="coarser grid"):
        gaussian.discrete(1, 2.0**24, Source())
    with pytest.raises(ConfigError, match="coarser grid"):
        gaussian.share(2.0**26, 20, 4)
    assert gaussian.discrete_event(64.0, 2.0) == GaussianDpEvent(sqrt(64**2 - 4) / 2)
    assert gaussian.share(64.0, 20, 4) == 16.0
    with pytest.raises(ConfigError, match="survivors"):
        gaussian.share(64.0, 4, 4)


# Mechanisms --------------------------------------------------------------------------------------

MOMENTS = Moments(bound=3.0, square_bound=9.0)
CORNERS = (0.0, 3.0, -3.0, 1e300, -1e300, 5e-324, 1.7, math.nan, math.inf)


def differences(mechanism: Moments, q: int = 2) -> tuple[float, float]:
    """The largest change of the sums found by removing, and by replacing, one adversarial record."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(3, q))
    records = [np.array([a, b]) for a in CORNERS for b in CORNERS] + list(rng.normal(size=(40, q)) * 5)
    sums = [mechanism.sums(np.vstack([base, r])) for r in records]
    without = mechanism.sums(base)
    removed = max(float(np.linalg.norm((s - without).astype(float))) for s in sums)
    replaced = max(float(np.linalg.norm((s - t).astype(float))) for s in sums for t in sums)
    return removed * STEP, replaced * STEP


def test_no_record_moves_a_profile_by_more_than_its_sensitivity() -> None:
    removed, replaced = differences(MOMENTS)
    assert 0.95 * MOMENTS.sensitivity("add-remove") < removed <= MOMENTS.sensitivity("add-remove")
    assert removed < replaced <= MOMENTS.sensitivity("replace-one")


def test_no_replaced_record_moves_a_profile_by_more_than_the_root_of_six() -> None:
    """Squares are never negative, so those of two records are at most a right angle apart."""
    rng = np.random.default_rng(4)
    bound = MOMENTS.sensitivity("replace-one")
    assert bound == sqrt(6)
    directions = np.vstack([np.eye(3), -np.eye(3), np.ones((1, 3)), rng.normal(size=(40, 3))])
    with np.errstate(invalid="ignore"):  # 0 times infinity
        records = np.vstack([size * directions for size in (0.5, 3.0, 50.0, np.inf)])
        sums = [MOMENTS.sums(record[None]) for record in records]
    farthest = max(np.linalg.norm((a - b) * STEP) for a in sums for b in sums)
    assert 0.85 * bound < farthest <= bound


@pytest.mark.parametrize(("bound", "square_bound"), [(2.0, 0.5), (0.5, 0.25), (1e-3, 1e-6), (1e3, 1e-3)])
def test_bounds_below_one_hold_for_huge_records_too(bound: float, square_bound: float) -> None:
    """A record divided by a bound below 1 can leave the floats: it is clipped first."""
    made = Moments(bound=bound, square_bound=square_bound)
    base = np.zeros((2, 3))
    for value in (1e300, -1e300, 1e308, 1.4e154, 1e-300, np.finfo(float).max):
        for record in (np.full(3, value), np.array([value, 0.0, 1.0])):
            moved = made.sums(np.vstack([base, record])) - made.sums(base)
            assert np.linalg.norm(moved.astype(float)) * STEP <= made.sensitivity("add-remove")


def test_a_grid_takes_no_record_that_is_not_finite_and_no_limit_that_overflows() -> None:
    for value in (np.inf, np.nan):
        with pytest.raises(DataError, match="finite records"):
            clipping.to_grid(np.full((1, 2), value), 1.0, 10)
    with pytest.raises(ConfigError, match="below 2"):
        clipping.to_grid(np.ones((1, 2)), 1.0, 2**31)


def test_no_integer_is_out_of_reach_in_the_tails() -> None:
    """At sigma 2^20 grid units and 6.5 deviations, 53-bit uniforms would reach one integer in seven.

    The tail probability's spacing there is below what one integer is worth.
    """

    class Tail(Source):
        def words(self, count: int) -> np.ndarray:
            high = np.full(count // 2, 1 << 12, dtype=np.uint64)  # a tail probability of 2^-52 or so
            low = np.linspace(0, 2**64 - 1025, count // 2).astype(np.uint64)
            return np.concatenate([high, low])

    drawn = np.abs(Tail().normal(2_000_001)) * 2.0**20
    assert drawn.min() > 8 * 2**20
    steps = np.diff(np.unique(np.rint(drawn)))
    assert len(steps) > 1000
    assert steps.max() == 1


def test_noise_is_symmetric_and_normal_in_its_tails() -> None:
    """10^6 draws: how many beyond 3 deviations on each side, within 7 of the count's (false alarm 1e-11)."""
    drawn = Source().normal(1_000_000)
    expected = 1e6 * stats.norm.sf(3)
    for side in (drawn > 3, drawn < -3):
        assert abs(np.sum(side) - expected) < 7 * np.sqrt(expected)
    assert abs(drawn.mean()) < 6e-3


def noised(sums: np.ndarray, sensitivity: float, multiplier: float) -> np.ndarray:
    """Sums with a rounded Gaussian on them, times STEP."""
    return (sums + gaussian.rounded(len(sums), multiplier * sensitivity / STEP, Source())) * STEP


def test_a_noised_profile_is_near_the_true_one() -> None:
    """At n = 5000 and z = 10 the noise of a mean is C sigma D / n; six of them are the tolerance."""
    x = np.clip(np.random.default_rng(1).normal(size=(5000, 4)) * 0.5, -1.4, 1.4)
    made = Moments(bound=3.0, square_bound=6.0)
    found = made.profile(noised(made.sums(x), made.sensitivity("add-remove"), 10.0))
    noise = 10 * 1.5 / 5000
    np.testing.assert_allclose(found.mean, x.mean(0), atol=6 * 3 * noise)
    np.testing.assert_allclose(found.variance, x.var(0), atol=6 * 8 * noise)
    assert abs(found.count - 5000) < 6 * 10 * 1.5 / 0.5


@pytest.mark.parametrize(("records", "features"), [(2000, 84), (500, 84)])
def test_the_errors_of_profiles_are_those_of_the_specification(records: int, features: int) -> None:
    """Specification of DP, 3: n 500, q 84, delta 1e-5: at epsilon 1 the error of the means is about 0.12
    standard deviations, at epsilon 8 about 0.02; at 2000 records a quarter of that."""
    x = np.random.default_rng(2).normal(size=(records, features))
    made = Moments(
        bound=float(np.quantile(np.linalg.norm(x, axis=1), 0.9)),
        square_bound=float(np.quantile(np.linalg.norm(x**2, axis=1), 0.9)),
    )
    for epsilon, told in ((1.0, 0.12), (8.0, 0.02)):
        multiplier = calibration.sigma(epsilon, 1e-5, releases=1, sensitivity=1.0)
        sums = [noised(made.sums(x), made.sensitivity("add-remove"), multiplier) for _ in range(5)]
        error = np.mean([np.abs(made.profile(s).mean - x.mean(0)).mean() for s in sums])
        assert error == pytest.approx(told * 500 / records, rel=0.35)


def test_what_noise_makes_impossible_is_still_a_profile() -> None:
    """A negative count, and second moments below the square of the first."""
    found = MOMENTS.profile(np.array([-3.0, 1.0, -1.0, -2.0, 5.0]))
    assert found.count == 1
    assert found.variance.min() == 1e-6
    assert Losses(bound=2.0).mean(np.array([-1.0, -4.0])) == 0.0
    assert Losses(bound=2.0).mean(np.array([0.1, 1e6])) == 2.0


def test_a_loss_moves_by_its_sensitivity_at_most() -> None:
    made = Losses(bound=2.0)
    base = made.sums(np.array([0.1, 0.5]))
    values = (0.0, 2.0, 1e300, -5.0, math.nan, math.inf)
    sums = [made.sums(np.array([0.1, 0.5, value])) for value in values]
    for one in sums:
        assert np.linalg.norm((one - base) * STEP) <= made.sensitivity("add-remove") == sqrt(1.25)
    for one in sums:
        for other in sums:
            assert np.linalg.norm((one - other) * STEP) <= made.sensitivity("replace-one")
    assert np.linalg.norm((sums[1] - base) * STEP) == made.sensitivity("add-remove")
    assert made.mean(made.sums(np.array([0.5, 1.5, 9.0])) * STEP) == pytest.approx(4 / 3, abs=1e-4)


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (1.0, -1.0), (math.inf, 1.0), (math.nan, 1.0)])
def test_bounds_are_finite_and_positive(bounds: tuple[float, float]) -> None:
    with pytest.raises(ConfigError, match="finite bounds"):
        Moments(bound=bounds[0], square_bound=bounds[1])


# Calibration -------------------------------------------------------------------------------------


def test_reference_values_of_the_specification() -> None:
    bound = sqrt(84)
    d = calibration.sensitivity("add-remove", bound)
    assert d == pytest.approx(9.219544, abs=5e-7)
    exact = calibration.sigma(1.0, 1e-5, releases=100, sensitivity=d)
    paper = calibration.sigma(1.0, 1e-5, releases=100, sensitivity=d, method="paper")
    assert (exact, paper) == (pytest.approx(343.947242, abs=5e-7), pytest.approx(884.805504, abs=5e-7))
    assert calibration.epsilon_of(paper, 1e-5, releases=100, sensitivity=d) == pytest.approx(
        0.356277, abs=5e-7
    )
    assert calibration.epsilon_of(exact, 1e-5, releases=100, sensitivity=d) == pytest.approx(1.0, abs=1e-9)
    assert calibration.sensitivity("replace-one", bound) == max(sqrt(2 * 85), 2 * bound)
    assert calibration.sensitivity("add-remove", 1.0) == sqrt(2)


@pytest.mark.parametrize(("epsilon", "delta", "factor"), [(0.05, 1e-2, 5.7), (1, 1e-5, 2.6), (4, 1e-5, 2.3)])
def test_how_loose_the_paper_is(epsilon: float, delta: float, factor: float) -> None:
    paper = calibration.paper_sigma(epsilon, delta, releases=1, sensitivity=1.0)
    assert paper / calibration.sigma(epsilon, delta, releases=1, sensitivity=1.0) == pytest.approx(
        factor, abs=0.05
    )


@pytest.mark.parametrize(("delta", "largest"), [(0.1, 91), (1e-2, 110), (1e-5, 169), (1e-6, 189)])
def test_the_paper_is_refused_where_it_is_wrong(delta: float, largest: int) -> None:
    calibration.sigma(largest - 1, delta, releases=3, sensitivity=2.0, method="paper")
    with pytest.raises(ConfigError, match="Expected an epsilon at which"):
        calibration.sigma(largest + 1, delta, releases=3, sensitivity=2.0, method="paper")


@pytest.mark.parametrize("method", ["rdp", "pld"])
def test_accountants_ask_for_a_little_more(method: str) -> None:
    for epsilon in (0.1, 1.0, 8.0):
        exact = calibration.sigma(epsilon, 1e-5, releases=10, sensitivity=2.0)
        asked = calibration.sigma(epsilon, 1e-5, releases=10, sensitivity=2.0, method=method)  # type: ignore[arg-type]
        assert exact * 0.999 <= asked < exact * (1.3 if method == "rdp" else 1.01)


NONSENSE: tuple[dict[str, float], ...] = (
    {"epsilon": 0.0},
    {"epsilon": -1.0},
    {"epsilon": math.inf},
    {"epsilon": math.nan},
    {"delta": 0.0},
    {"delta": 1.0},
    {"delta": -0.1},
    {"releases": 0},
    {"sensitivity": 0.0},
    {"sensitivity": math.nan},
)


@pytest.mark.parametrize("changed", NONSENSE, ids=str)
def test_calibration_refuses_what_means_nothing(changed: dict[str, float]) -> None:
    arguments = {"epsilon": 1.0, "delta": 1e-5, "releases": 1, "sensitivity": 1.0, **changed}
    epsilon, delta = arguments.pop("epsilon"), arguments.pop("delta")
    with pytest.raises(ConfigError, match="Expected"):
        calibration.sigma(epsilon, delta, **arguments)  # type: ignore[arg-type]


def test_a_delta_of_one_record_is_refused_unless_forced() -> None:
    calibration.check_delta(0.0019, 500)
    calibration.check_delta(0.5, 500, force=True)
    for delta in (0.002, 0.01):
        with pytest.raises(ConfigError, match="publishing a record"):
            calibration.check_delta(delta, 500)


# The commands ------------------------------------------------------------------------------------


def call(*words: object) -> dict[str, float]:
    result = CliRunner().invoke(cli, [*map(str, words), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_calibrate_prints_what_scripts_read() -> None:
    found = call(
        "calibrate", "--epsilon", 1, "--delta", 1e-5, "--releases", 100, "--features", 85, "--bound", 1
    )
    assert set(found) == {"sigma", "noise_multiplier", "epsilon_if_paper"}
    assert found["sigma"] == pytest.approx(343.947242, abs=5e-7)
    assert found["epsilon_if_paper"] == pytest.approx(0.356277, abs=5e-7)
    unit = call("calibrate", "--epsilon", 1, "--delta", 1e-5, "--unit-l2", "--adjacency", "replace-one")
    assert unit["sigma"] == pytest.approx(2 * unit["noise_multiplier"])


def test_ledger_epsilon_reads_nested_events(tmp_path: Path) -> None:
    events = [
        {"repeat": 100, "events": [
            {"event": "poisson_gaussian", "sampling_probability": 0.02, "noise_multiplier": 1.1, "count": 50},
            {"event": "gaussian", "noise_multiplier": 10, "count": 1}]},
    ]  # fmt: skip
    path = tmp_path / "events.json"
    path.write_text(json.dumps(events))
    found = call("ledger", "epsilon", "--events", path, "--delta", 1e-5)
    assert found == {
        "epsilon": pytest.approx(9.4756, abs=6e-5),
        "rdp_epsilon": pytest.approx(10.2194, abs=6e-5),
    }
    path.write_text('[{"event": "non_private"}]')
    assert call("ledger", "epsilon", "--events", path, "--delta", 1e-5) == {
        "epsilon": "inf",
        "rdp_epsilon": "inf",
    }


BAD_EVENTS = (
    "",
    "{}",
    "[1]",
    '[{"event": "laplace"}]',
    '[{"event": "gaussian", "noise_multiplier": -1}]',
    '[{"event": "gaussian", "noise_multiplier": 1, "count": 1.5}]',
    '[{"repeat": -1, "events": []}]',
    '[{"event": "poisson_gaussian", "sampling_probability": 2, "noise_multiplier": 1}]',
    "[" * 50_000,
)


@pytest.mark.parametrize("text", BAD_EVENTS, ids=range(len(BAD_EVENTS)))
def test_events_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    path.write_text(text)
    result = CliRunner().invoke(cli, ["ledger", "epsilon", "--events", str(path), "--delta", "1e-5"])
    assert isinstance(result.exception, SecureFLError)


# Absurd numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [1e-320, 5e-324])
def test_a_delta_that_floats_cannot_hold_is_refused_everywhere(delta: float, tmp_path: Path) -> None:
    events = tmp_path / "events.json"
    events.write_text('[{"event": "gaussian", "noise_multiplier": 5.0}]')
    study = packaged()["demo"].replace("delta = 1e-4", f"delta = {delta}")
    alone: dict[str, Any] = {"standalone_mode": False}
    for refused in (
        lambda: calibration.sigma(1.0, delta, releases=1, sensitivity=1.0),
        lambda: calibration.check_delta(delta, 0),
        lambda: parse(study),
        lambda: cli(["calibrate", "--epsilon=1", "--sensitivity=1", f"--delta={delta}"], **alone),
        lambda: cli(["ledger", "epsilon", f"--events={events}", f"--delta={delta}"], **alone),
    ):
        with pytest.raises(ConfigError, match=r"Expected delta >= 2\.23e-308, got"):
            refused()


@pytest.mark.parametrize("delta", [calibration.SMALLEST_DELTA, 1e-300, 1e-30])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 100.0])
def test_the_smallest_deltas_are_computed_with(delta: float, epsilon: float) -> None:
    sigma = calibration.sigma(epsilon, delta, releases=3, sensitivity=2.0)
    found = calibration.epsilon_of(sigma, delta, releases=3, sensitivity=2.0)
    assert found == pytest.approx(epsilon, rel=1e-6)
    paper = calibration.paper_sigma(epsilon, delta, releases=3, sensitivity=2.0)
    exact = Fraction(epsilon) / Fraction(delta)  # Python's logarithm of a whole number has no largest one
    logarithm = log(int(exact * 10**6)) - log(10**6)
    assert paper == pytest.approx(sqrt(24 * logarithm) * 2.0 / epsilon, rel=1e-9)


def test_an_accountant_that_cannot_tell_says_so() -> None:
    with pytest.raises(ConfigError, match="'pld' can calibrate, got epsilon 1 at delta 1e-30"):
        calibration.sigma(1.0, 1e-30, releases=1, sensitivity=1.0, method="pld")
