"""What `protect` promises beside the noise itself; that stands in the tests of what is noised."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from scipy import stats
from support.every import every
from support.hidden_plans import hidden
from support.noises import own_sigma

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Schedule, Value, ValueSpec
from securefl.core.abstaining import Abstains
from securefl.core.errors import DataError, LocalProtocolError
from securefl.core.grid import Grid
from securefl.core.hiding import ConcealVector
from securefl.core.keys import SecretKey
from securefl.core.linear import LinearBounds, Range
from securefl.core.release import Release, ReleaseKey
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.protecting import is_cut, protect

BOUNDED = {("record", "add-remove"): 1.0}
GRID = Grid(step=2.0**-10, bound=64.0)
SUM = ValueSpec(name="own", reduction="sum", reveals="it", sensitivity=BOUNDED, grid=GRID, cohort=4)
EACH = replace(SUM, reduction="none")
PLAN = Plan(
    adjacency="add-remove",
    delta=1e-5,
    max_rounds=1,
    noise="local",
    noise_multiplier=3.0,
    corrupt=0.0,
    dropout=0.2,
)
BARE = replace(PLAN, noise="none", non_private=("own",))
KEY = ReleaseKey("client-0000", bytes(32), 1, 0, 0, "own")
SECRET = SecretKey(bytes(31) + b"s")
MASKED, BOX = np.full(3, 7, np.uint8), b"box"
INTEGERS = np.arange(-50, 50) * 7
BOUNDS = LinearBounds(
    hidden_length=2, clear=(Range(1, -3.0, 3.0),), norm=3.0, weight_norm=2.0, row_norm=2.0, product=4.0
)


def released(plan: Plan, spec: ValueSpec = SUM, integers: Any = INTEGERS, **given: Any) -> Release:
    parts = {"key": KEY, "weight": 1.0, "secret": SECRET} | given
    return protect(Protection(plan, spec), Value(integers=integers, step=spec.grid.step), **parts)


@every("trained", [True, False])
@every("plan", [PLAN, BARE, replace(PLAN, noise="central", adversaries=("others",))])
def test_the_charge_follows_from_the_plan_and_not_from_the_value(plan: Plan, trained: bool) -> None:
    spec = replace(SUM, training=Protection(PLAN, SUM).charge().server)
    charges = {
        released(plan, spec, integers, trained=trained).charge
        for integers in (INTEGERS, 0 * INTEGERS, -3 * INTEGERS)
    }
    assert charges == {Protection(plan, spec).charge(trained=trained)}


@every(("spec", "unit"), [(SUM, 1), (EACH, GRID.step)])
def test_a_sum_that_its_client_noises_carries_the_noise_that_is_charged(spec: ValueSpec, unit: float) -> None:
    """And so does a number that nobody sums. Chi-square of residuals over sigma, false alarm 1e-6.

    Nine tenths of the noise are caught.
    """
    integers = np.arange(-3000, 3000)
    came = released(PLAN, spec, integers, secret=None)
    assert came.charge.server == GaussianDpEvent(3.0)
    scaled = (came._numbers / unit - integers) * GRID.step / 3.0
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(scaled))
    assert low < np.sum(scaled**2) < high
    assert not low < np.sum((0.9 * scaled) ** 2) < high


@every("how, concealed", [("masked", MASKED), ("ckks", BOX), ("two-server", MASKED)])
@every("noise", ["none", "distributed"])
def test_a_hidden_sum_leaves_as_hidden_integers_or_not_at_all(how: Any, concealed: Any, noise: Any) -> None:
    """What the mask or the key is given is what would leave in the clear; no number of it is left beside."""
    plan = hidden(PLAN if noise == "distributed" else BARE, 4, sum=how, noise=noise)
    with pytest.raises(LocalProtocolError, match="function that conceals"):
        released(plan)
    given = []

    def hide(integers: Any) -> Any:
        given.append(integers)
        return concealed

    came = released(plan, conceal=hide)
    clear = released(replace(plan, sum="clear"))
    np.testing.assert_array_equal(given[0], clear._numbers)
    left = ("encrypted", [], BOX) if how == "ckks" else ("masked", [7, 7, 7], b"")
    assert (came.form, came._numbers.tolist(), came._sealed) == left


def test_a_hidden_number_leaves_sealed_or_not_at_all() -> None:
    plan, asked = replace(BARE, scores="ckks"), replace(EACH, schedule=Schedule(max_releases=1))
    value = Value(hidden=np.array([1.0, 2.0]), clear=np.array([3.0]))
    parts: dict[str, Any] = {"key": KEY, "weight": 1.0}
    bare: tuple[Any, ...] = (
        None,
        lambda hidden: BOX,
    )  # the second says no bounds, so none would be checked
    for conceal in bare:
        with pytest.raises(LocalProtocolError, match="function that conceals"):
            protect(Protection(plan, asked), value, conceal=conceal, **parts)
    came = protect(
        Protection(plan, asked),
        value,
        conceal=ConcealVector(BOUNDS, lambda hidden: hidden.tobytes()),
        **parts,
    )
    assert (came.form, came._numbers.tolist()) == ("encrypted", [3.0])
    assert came._sealed == value.hidden.tobytes()


def test_a_vector_leaves_under_a_declared_number_of_releases() -> None:
    with pytest.raises(LocalProtocolError, match="max_releases"):
        protect(Protection(BARE, EACH), Value(hidden=np.ones(2)), key=KEY, weight=1.0)


@every("part", ["clear", "hidden"])
@every("bad", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_not_sent(part: str, bad: float) -> None:
    whole = {"clear": np.ones(2), "hidden": np.ones(2), part: np.array([1.0, bad])}
    with pytest.raises(DataError):
        protect(
            Protection(BARE, replace(EACH, schedule=Schedule(max_releases=1))),
            Value(**whole),
            key=KEY,
            weight=1.0,
        )


@every("noised", [False, True])
def test_a_sum_that_is_no_value_is_a_public_reason_after_noise_alone(noised: bool) -> None:
    def refuse(sums: Any) -> Value:
        raise DataError("no value")

    value = Value(integers=INTEGERS, step=GRID.step, after_noise=refuse)
    with pytest.raises(DataError) as refused:
        protect(Protection(PLAN if noised else BARE, EACH), value, key=KEY, weight=1.0)
    assert isinstance(refused.value, Abstains) is noised


def test_integers_that_nobody_noises_are_refused_beyond_their_grid() -> None:
    far = np.array([2 * GRID.limit])
    with pytest.raises(DataError):
        released(BARE, integers=far)
    assert released(BARE, integers=far, must_answer=True)._numbers.tolist() == [GRID.limit]


@every("spec", [SUM, EACH])
def test_a_secret_gives_the_same_noise_again_and_another_place_other_noise(spec: ValueSpec) -> None:
    first = released(PLAN, spec)
    again = released(PLAN, spec)
    assert np.array_equal(first._numbers, again._numbers)
    assert first.content == again.content != b""
    places = [{part: 9} for part in ("round", "stage", "attempt")]
    for place in (*places, {"session": b"other"}, {"name": "another"}):
        moved = released(PLAN, spec, key=replace(KEY, **place))
        assert not np.array_equal(first._numbers, moved._numbers), place
    other = released(PLAN, spec, secret=SecretKey(bytes(32)))
    assert not np.array_equal(first._numbers, other._numbers)
    fresh = [released(PLAN, spec, secret=None)._numbers for _ in range(2)]
    assert not np.array_equal(*fresh)


@every(
    ("plan", "spec", "given"),
    [
        (PLAN, SUM, {}),
        (PLAN, EACH, {}),
        (hidden(BARE, 4, sum="masked"), SUM, {"conceal": lambda integers: MASKED}),
        (hidden(BARE, 4, sum="ckks"), SUM, {"conceal": lambda integers: MASKED}),
        (hidden(BARE, 4, sum="two-server"), SUM, {"conceal": lambda integers: MASKED}),
    ],
)
def test_two_values_in_one_place_have_two_fingerprints(plan: Plan, spec: ValueSpec, given: Any) -> None:
    """By them the ledger refuses the second: under one noise or mask, two would tell their difference."""
    one, other = (released(plan, spec, INTEGERS + more, **given).content for more in (0, 1))
    assert len({one, other, b""}) == 3


def test_a_value_after_private_training_has_a_fingerprint_and_a_bare_one_has_none() -> None:
    assert released(BARE).content == released(BARE, replace(SUM, depends_on="model")).content == b""
    assert released(BARE, replace(SUM, training=GaussianDpEvent(7.0))).content != b""


# The grid of a value ------------------------------------------------------------------------------


@every("plan", [PLAN, BARE, replace(PLAN, noise="central", adversaries=("others",))])
@every("declared", [SUM, EACH])
@every("step", [2.0**-6, 2.0**-21, 0.1, np.nextafter(GRID.step, 1)])
def test_integers_of_another_grid_than_the_specifications_are_refused(
    plan: Plan, declared: ValueSpec, step: float
) -> None:
    """A record moves integers of step 2^-10 by 2^10. Noise that is sized for 2^-6 is 16 times too small."""
    value = Value(integers=INTEGERS, step=float(step))
    with pytest.raises(LocalProtocolError) as refused:
        protect(Protection(plan, declared), value, key=KEY, weight=1.0)
    assert repr(float(step)) in str(refused.value)
    assert repr(GRID.step) in str(refused.value)


@every("step", [0.1, 1 / 3, 0.3 - 0.2, 7.0])
def test_a_grid_whose_step_is_no_power_of_two_goes_through(step: float) -> None:
    """A record moves the integers by the sensitivity on the grid at most, and the sum is near the floats."""
    moves = {("record", "add-remove"): 20.0}
    spec = replace(SUM, grid=Grid(step=step, bound=step * 2**20), sensitivity=moves)
    rows = 100 * np.random.default_rng(0).normal(size=(40, 5))
    one, other = Value.summed(rows, spec.grid, 20.0), Value.summed(rows[1:], spec.grid, 20.0)
    moved = np.linalg.norm((one.integers - other.integers).astype(np.float64))  # type: ignore[operator]
    assert moved <= Protection(PLAN, spec).mechanism.sensitivity_on_grid  # type: ignore[attr-defined]
    came = protect(Protection(BARE, spec), one, key=KEY, weight=1.0)._numbers
    np.testing.assert_allclose(came * step, one.floats(), atol=step)


@every("step", [0.0, -1.0, np.nan, np.inf])
def test_integers_without_a_step_are_no_value(step: float) -> None:
    with pytest.raises(LocalProtocolError, match="step"):
        Value(integers=INTEGERS, step=step)


# What a sum is made of, to the integer -----------------------------------------------------------

CENTRAL = replace(PLAN, noise="central", adversaries=("others",))
SHARED = replace(PLAN, noise="distributed")


def summed(integers: list[int], weight: float, spec: ValueSpec = SUM) -> list[int]:
    """The integers behind weight and grid, before anybody adds noise."""
    return [int(v) for v in released(CENTRAL, spec, np.array(integers), weight=weight)._numbers]


@every(
    ("weight", "integers", "found"),
    [
        (1.0, [0, 1, -1, 7, -7], [0, 1, -1, 7, -7]),
        (0.5, [0, 1, -1, 2, 3, -3, 7, -7], [0, 0, 0, 1, 1, -1, 3, -3]),
        # 1.2 and 2.8: towards 0, whichever is nearer
        (0.4, [3, -3, 7, -7], [1, -1, 2, -2]),
        # the weight itself is rounded up, in units of 2^-30: 2^30 of it is one
        (2.0**-40, [1, 65536, -65536], [0, 0, 0]),
        (2.0**-31, [2**16, -(2**16)], [0, 0]),
        (1 / 3, [3, -3, 30000, 2], [1, -1, 10000, 0]),
    ],
)
def test_weighted_integers_are_truncated_towards_zero(
    weight: float, integers: list[int], found: list[int]
) -> None:
    """Rounded to nearest, a value would be longer than its weight says: 1 in place of 0.5."""
    assert summed(integers, weight) == found
    assert [-v for v in summed([-v for v in integers], weight)] == found, "alike on both sides of 0"


def test_a_tiny_weight_counts_as_one_in_two_to_the_thirty() -> None:
    wide = replace(SUM, grid=Grid(step=1.0, bound=2.0**30 + 2.0**20))
    assert summed([2**30, 2**30 - 1, -(2**30)], 2.0**-40, wide) == [1, 0, -1]
    # the largest weight and the largest grid: below 2^63 together
    assert summed([2**30 + 5, -(2**30) - 5], 1.0, wide) == [2**30 + 5, -(2**30) - 5]


def test_a_value_beyond_its_grid_is_cut_to_it_before_it_is_weighted() -> None:
    limit = GRID.limit
    assert summed([limit + 1, -limit - 9, 2**62, -(2**62)], 1.0) == [limit, -limit, limit, -limit]
    assert summed([4 * limit, -4 * limit], 0.5) == [limit // 2, -limit // 2]


@every("weight", [0.0, -0.5, 1.0000001, float("nan")])
def test_weights_outside_their_range_are_refused(weight: float) -> None:
    with pytest.raises(LocalProtocolError, match=r"a weight in \(0, 1\]"):
        released(PLAN, weight=weight)


@every("sign", [1, -1])
def test_a_share_of_noise_has_its_room_beside_the_largest_value(sign: int) -> None:
    """The attack: a value at the grid's end. Without room its bound would cut half of the noise off."""
    wide = replace(SUM, grid=Grid(step=2.0**-10, bound=128.0))
    sigma = own_sigma(SHARED, wide)
    limit = wide.grid.limit
    inside = limit - ceil(13 * sigma)
    came = released(SHARED, wide, np.full(4000, sign * 2**40), secret=None)._numbers * sign - inside
    assert np.abs(came).max() < limit - inside
    assert abs(came.mean()) < 5 * sigma / np.sqrt(4000)
    assert came.std() == pytest.approx(sigma, rel=0.06)
    told = [
        is_cut(
            Protection(SHARED, wide),
            Value(integers=np.array([sign * at]), step=wide.grid.step),
            weight,
            must_answer=False,
        )
        for at, weight in ((inside, 1.0), (inside + 1, 1.0), (inside + 1, 0.5))
    ]
    assert told == [False, True, False], "its owner is told of the cut"
    # the room is no larger than the noise needs
    came = released(SHARED, wide, np.full(4000, sign * (inside - 1)), secret=None)._numbers * sign
    assert came.mean() == pytest.approx(inside - 1, abs=5 * sigma / np.sqrt(4000))


def test_noise_that_all_is_one_clients_is_cut_to_the_grid_with_its_value() -> None:
    came = released(PLAN, integers=np.full(1000, GRID.limit), secret=None)._numbers
    assert came.dtype == np.int32
    assert came.max() == GRID.limit
    assert 0.4 < np.mean(came < GRID.limit) < 0.6


@every("noise", ["central", "key-holder"])
def test_noise_that_another_party_adds_is_not_on_the_value(noise: Any) -> None:
    plan = hidden(replace(PLAN, dropout=0.0), 4, sum="two-server", noise=noise, adversaries=("others",))
    came = []
    released(plan, conceal=lambda integers: came.append(integers) or MASKED)  # type: ignore[func-returns-value]
    assert np.array_equal(came[0], INTEGERS)


def test_a_number_of_any_size_is_cut_where_floats_are_exact() -> None:
    huge = released(PLAN, EACH, np.array([2**62, -(2**62)]))._numbers / GRID.step
    assert np.abs(np.abs(huge) - 2.0**52).max() < 13 * 3.0 / GRID.step + 1
    bare = released(BARE, EACH, np.array([2**53, -3]))._numbers
    assert bare.tolist() == [2.0**53 * GRID.step, -3 * GRID.step]
    assert released(PLAN, EACH, np.array([2**51]))._numbers[0] == pytest.approx(2.0**51 * GRID.step, abs=50)


@every("dtype", [np.float32, np.float64])
@every("weight", [1.0, 0.3])
def test_a_client_that_may_not_be_silent_sends_a_cut_value_on_every_grid(dtype: Any, weight: float) -> None:
    """A float32 cannot represent this bound: rounded up, the cut value would be refused as too large."""
    spec = ValueSpec(name="own", reduction="sum", reveals="it", grid=Grid(step=0.1, bound=0.7))
    value = Value(clear=np.array([5.0, -5.0, 0.25], dtype))
    came = protect(Protection(BARE, spec), value, key=KEY, weight=weight, must_answer=True)
    assert came._numbers.tolist() == [round(7 * weight), -round(7 * weight), round(2.5 * weight)]


def test_a_value_that_is_noised_is_whole_numbers_before() -> None:
    """Floats that are rounded after clipping are longer than their bound: nothing leaves."""
    with pytest.raises(LocalProtocolError):
        protect(Protection(PLAN, SUM), Value(clear=np.ones(3)), key=KEY, weight=1.0, secret=SECRET)
    with pytest.raises(LocalProtocolError):
        protect(Protection(PLAN, EACH), Value(clear=np.ones(3)), key=KEY, weight=1.0, secret=SECRET)
    assert protect(Protection(BARE, SUM), Value(clear=np.ones(3)), key=KEY, weight=1.0)._numbers.size == 3


@every("noised", [False, True])
def test_a_vector_outside_the_bounds_of_its_query_is_not_sent(noised: bool) -> None:
    """A longer vector could wrap, and a clear value more would say more than the score."""
    plan = replace(PLAN if noised else BARE, scores="ckks")
    asked = replace(EACH, schedule=Schedule(max_releases=1))
    sealed: list[Any] = []

    def hide(hidden: Any) -> bytes:
        sealed.append(hidden)
        return BOX

    def send(hidden: list[float], clear: list[float]) -> None:
        own = Value(hidden=np.array(hidden), clear=np.array(clear))
        sums = Value(integers=np.zeros(3, np.int64), step=asked.grid.step, after_noise=lambda sums: own)
        value = sums if noised else own
        protect(Protection(plan, asked), value, key=KEY, weight=1.0, conceal=ConcealVector(BOUNDS, hide))

    for wrong in (
        ([3.0, 2.0], [1.0]),
        ([1.0], [1.0]),
        ([], [1.0]),
        ([1.0, 1.0], []),
        ([1.0, 1.0], [1.0, 1.0]),
    ):
        with pytest.raises(Abstains if noised else DataError):
            send(*wrong)
    assert not sealed
    send([1.0, 1.0], [1.0])
    assert len(sealed) == 1
