"""The sums of a head: their sensitivities are exact, and a search finds no record that moves them further."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from support.every import every
from support.tiny_heads import problem
from support.tiny_problem import client_context

from securefl.core.errors import ConfigError
from securefl.core.grid import Grid
from securefl.protocols.heads import Heads
from securefl.protocols.heads.blocks import Blocks, grid_of
from securefl.protocols.heads.contribution import UNIT, Bounding, Statistic
from securefl.training.heads import Projection

FINE = Grid(step=2.0**-18, bound=2.0**12)
SENT = {
    "prototypes": {},
    "ridge": {"moments": 1.0},
    "uneven": {"moments": 0.25},
    "lda": {"moments": 1.0, "counts": 0.25},
}


def blocks(name: str, width: int = 3, grid: Grid = FINE) -> Blocks:
    return Blocks(classes=3, width=width, grid=grid, **SENT[name])


def summed(of: Blocks, phi: Any, y: Any) -> Any:
    rows = Bounding(kind="clip-l2").integers(np.asarray(phi, float))
    return of.on_grid(of.exact(rows, np.asarray(y))) * of.grid.step


def test_sensitivities_are_those_of_the_proof() -> None:
    """One class sum: 1 and 2. With moments sqrt 2, and 3 / sqrt 2 for one record in place of another."""
    assert blocks("prototypes").sensitivity("add-remove") == 1
    assert blocks("prototypes").sensitivity("replace-one") == 2
    assert blocks("ridge").sensitivity("add-remove") == pytest.approx(sqrt(2), abs=1e-4)
    assert blocks("ridge").sensitivity("replace-one") == pytest.approx(sqrt(4.5), abs=1e-4)
    assert blocks("lda").sensitivity("add-remove") == pytest.approx(sqrt(2 + 1 / 16), abs=1e-4)


@every("name", SENT)
@every("bits", [6, 10])
def test_rounding_on_a_coarse_grid_is_part_of_the_sensitivity(name: str, bits: int) -> None:
    """Records beside it decide how a sum is rounded: one more moves each entry by up to a step further."""
    of = blocks(name, width=4, grid=Grid(step=2.0**-bits, bound=2.0**10))
    rng = np.random.default_rng(0)
    farthest = 0.0
    for _ in range(300):
        phi, y = rng.standard_normal((8, 4)), rng.integers(3, size=8)
        farthest = max(farthest, float(np.linalg.norm(summed(of, phi, y) - summed(of, phi[1:], y[1:]))))
    assert farthest <= of.sensitivity("add-remove")
    if bits == 6 and name == "ridge":
        assert farthest > sqrt(2), "without the rounding the bound would not hold"


def test_parts_are_the_sums() -> None:
    of = blocks("lda", width=5)
    rng = np.random.default_rng(1)
    phi, y = 0.3 * rng.standard_normal((200, 5)), rng.integers(3, size=200)
    parts = of.parts(summed(of, phi, y), noise=2.0)
    bounded = Bounding(kind="clip-l2").bounded(phi)
    assert np.allclose(parts.moments, bounded.T @ bounded, atol=0.05)
    assert np.allclose(parts.sums, np.eye(3)[y].T @ bounded, atol=0.05)
    assert np.allclose(parts.counts, np.bincount(y, minlength=3))
    assert (parts.counts_noise, parts.moments_noise) == (8.0, 2.0)


def test_the_grid_holds_the_sums_of_many_records_without_cutting() -> None:
    """All of 50,000 records in one direction, at one of 20 clients with four times its share."""
    grid = grid_of(50_000, 20)
    of = Blocks(classes=2, width=2, grid=grid, moments=1.0)
    rows = np.tile(np.array([[UNIT, 0]]), (10_000, 1))
    parts = of.parts(of.on_grid(of.exact(rows, np.zeros(10_000, np.int64))) * grid.step, 0.0)
    assert parts.moments[0, 0] == pytest.approx(10_000)
    more = of.on_grid(5 * of.exact(rows, np.zeros(10_000, np.int64)))
    assert np.abs(more).max() <= 2**31, "beyond it, sums are cut at the bound, and do not wrap"


# What a client computes ---------------------------------------------------------------------------


def compute(made: Statistic, x: Any, y: Any) -> Any:
    return made.compute(client_context(np.asarray(x, np.float32), np.asarray(y)))


def statistic(**options: Any) -> Statistic:
    (made,) = Heads(**{"head": "ridge", **options}).build(problem()).contributions
    assert isinstance(made, Statistic)
    return made


def test_sums_of_many_records_are_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded part by part, one record more would shift all parts behind it, and move each by a step."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(900, 5)), rng.integers(3, size=900)
    whole = compute(statistic(), x, y).integers
    monkeypatch.setattr("securefl.protocols.heads.contribution._ROWS", 7)
    assert np.array_equal(compute(statistic(), x, y).integers, whole)


def test_records_beyond_the_bound_are_clipped_and_counted() -> None:
    made = statistic(bounding=Bounding(kind="clip-l2", bound=2.0))
    x = np.zeros((4, 5))
    x[:, 0] = (1.0, 2.0, 2.1, 3e38)
    value = compute(made, x, [0, 0, 0, 0])
    assert value.clipped == 2
    assert value.new_state["clipped"] == [2]
    sums = made.blocks.parts(value.floats(), 0.0).sums
    assert sums[0, 0] == pytest.approx(0.5 + 1 + 1 + 1, abs=1e-3)


def test_a_huge_record_over_a_small_bound_has_norm_one_and_takes_no_other_with_it() -> None:
    """Divided by the bound it was infinite, and the client's whole value was replaced."""
    rows = Bounding(kind="clip-l2", bound=0.5).integers(np.array([[1.5e308, 0.0], [0.1, 0.2]]))
    assert rows[0].tolist() == [UNIT, 0]
    assert (rows[1] / UNIT).tolist() == pytest.approx([0.2, 0.4], abs=2 / UNIT)


def test_a_client_s_whole_value_is_clipped_to_its_bound() -> None:
    made = statistic(client_bound=3.0)
    rng = np.random.default_rng(0)
    value = compute(made, rng.normal(size=(200, 5)), rng.integers(3, size=200))
    length = np.linalg.norm(value.floats())
    assert 2.99 < length <= 3.0
    assert made.spec.sensitivity["client", "zero-out"] == 3.0
    assert made.spec.sensitivity["client", "replace-one"] == 6.0


def test_scaling_a_client_down_is_part_of_a_record_s_sensitivity() -> None:
    """The attack: a bound just below a client's norm, and a record across it. Truncation adds to it."""
    made = statistic(head="prototypes", client_bound=1000 - 759 * 4e-6)
    x, across = np.full((1000, 5), 0.5), np.array([[0.5, -0.5, 0.5, -0.5, 0.0]])
    x[:, 4] = 0
    before = compute(made, x, np.zeros(1000, int))
    after = compute(made, np.vstack([x, across]), np.zeros(1001, int))
    apart = np.linalg.norm(before.floats() - after.floats())
    assert 1 < apart <= made.spec.sensitivity["record", "add-remove"]


def test_an_empty_client_sends_zeros() -> None:
    assert not compute(statistic(), np.zeros((0, 5)), np.zeros(0, np.int64)).integers.any()


def test_a_random_projection_is_the_same_for_all_and_keeps_lengths() -> None:
    x = torch.randn((50, 400), generator=torch.Generator().manual_seed(0))
    one = Projection(kind="random", features=400, width=200, seed=5)
    again = Projection(kind="random", features=400, width=200, seed=5)
    assert torch.equal(one(x), again(x))
    assert float((one(x).square().sum(1) / x.square().sum(1)).mean()) == pytest.approx(1, abs=0.1)


@every("options", [{}, {"projection": "random", "width": 33}])
@every("kind", ["unit-l2", "clip-l2"])
def test_a_record_s_integers_do_not_depend_on_the_records_beside_it(options: Any, kind: Any) -> None:
    """A product of matrices selects its code by the number of rows, and the code decides the last bits."""
    (made,) = (
        Heads(head="ridge", bounding=Bounding(kind=kind), **options).build(problem(width=97)).contributions
    )
    x = np.random.default_rng(0).normal(size=(150, 97)).astype(np.float32)
    whole = made.bounding.integers(made.features(x))  # type: ignore[attr-defined]
    for n in (*range(1, 20), 63, 64, 65, 149):
        some = made.bounding.integers(made.features(x[-n:]))  # type: ignore[attr-defined]
        assert np.array_equal(some, whole[-n:])
    floats = made.features(x)  # type: ignore[attr-defined]
    for n in (1, 7, 64, 149):
        assert np.array_equal(made.features(x[-n:]), floats[-n:])  # type: ignore[attr-defined]


def test_sums_of_a_client_far_above_the_mean_stay_on_the_grid() -> None:
    """The attack: 9,000 of one class where 1,000 are the mean: a grid integer above the limit."""
    of = Blocks(classes=2, width=2, grid=grid_of(100_000, 100), counts=0.25, sums=1.0, moments=64.0)
    for sign in (1.0, -1.0):
        rows = Bounding().integers(np.tile([[sign, 0.0]], (30_000, 1)))
        assert np.abs(of.on_grid(of.exact(rows, np.zeros(30_000, int)))).max() == of.grid.limit


def test_a_weight_below_the_grid_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"grid of step 0\.5"):
        Blocks(classes=2, width=2, grid=grid_of(2**27, 1), moments=1 / 64)
