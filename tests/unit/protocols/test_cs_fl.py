"""CS-FL: sketches against a dense matrix, recovery against least squares and thresholding; then votes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.tiny_problem import client_context
from support.tiny_study import run, study, world
from support.trained_bodies import context

from securefl.core.errors import ConfigError, DataError
from securefl.protocols.cs_fl import CSFL, ROWS, Sketch, recover, recover_from_signs
from securefl.training.run_jobs import run_job

Floats = NDArray[np.float64]
ARM = '[[arm]]\nname = "CS-FL"\nprotocol = "cs_fl"\nfraction = 1.0\n{more}'


def dense(sketch: Sketch) -> Floats:
    """A (rows, size) from the definition of the cosine transform, and the drawn signs and rows."""
    signs, rows = sketch._drawn
    n = sketch.size
    found = np.cos(np.pi * rows[:, None] * (2 * np.arange(n) + 1) / (2 * n)) * np.sqrt(2 / n)
    found[rows == 0] /= np.sqrt(2)
    return found * signs * np.sqrt(n / sketch.rows)


def few(size: int, count: int, seed: int) -> Floats:
    rng, found = np.random.default_rng(seed), np.zeros(size)
    found[rng.choice(size, count, replace=False)] = rng.normal(size=count)
    return found


def plain_thresholding(a: Floats, y: Floats, count: int) -> Floats:
    """Iterative hard thresholding with a small fixed step (Blumensath and Davies 2009), on a dense matrix."""
    rate, found = 1 / np.linalg.norm(a, 2) ** 2, np.zeros(a.shape[1])
    for _ in range(400):
        found = found + rate * a.T @ (y - a @ found)
        found[np.argsort(-np.abs(found))[count:]] = 0
    return found


@pytest.mark.parametrize("seed", range(5))
def test_few_entries_are_recovered_as_by_least_squares_that_knows_their_places(seed: int) -> None:
    sketch, x = Sketch(seed=seed, rows=100, size=1000), few(1000, 10, seed)
    y = sketch.of(x)
    there = np.flatnonzero(x)
    solved, *_ = np.linalg.lstsq(dense(sketch)[:, there], y, rcond=None)
    found = recover(sketch, y, 10)
    np.testing.assert_array_equal(np.flatnonzero(found), there)
    np.testing.assert_allclose(found[there], solved, atol=1e-8)


def failed(rows: int, size: int, count: int, *, flat: bool) -> float:
    """The share of twenty sketches, with so many rows for an entry, whose entries are not recovered."""
    wrong = 0
    for seed in range(20):
        x = few(size, count, seed)
        x = np.sign(x) if flat else x
        sketch = Sketch(seed=seed, rows=rows * count, size=size)
        wrong += bool(np.linalg.norm(recover(sketch, sketch.of(x), count) - x) > 0.1 * np.linalg.norm(x))
    return wrong / 20


@pytest.mark.parametrize("flat", [False, True], ids=["of all sizes", "of one size"])
@pytest.mark.parametrize(
    ("size", "count"), [(2000, 10), (2000, 40), pytest.param(10_000, 50, marks=pytest.mark.slow)]
)
def test_a_sketch_that_is_not_refused_gives_its_entries_back(size: int, count: int, flat: bool) -> None:
    """With half of the rows that are asked for, hardly any does: a study took 5 rows for each entry."""
    assert failed(ROWS, size, count, flat=flat) <= 0.1
    if count / size <= 0.005:
        assert failed(ROWS // 2, size, count, flat=flat) >= 0.8


def test_a_mean_of_many_clients_is_recovered_up_to_what_is_left_out() -> None:
    """Of 30 entries the 20 largest are asked for: near to the best that 20 entries can be."""
    sketch, x = Sketch(seed=1, rows=200, size=1000), few(1000, 30, 2)
    best = x.copy()
    best[np.argsort(-np.abs(x))[20:]] = 0
    found = recover(sketch, sketch.of(x), 20)
    assert np.count_nonzero(found) <= 20
    assert np.linalg.norm(found - x) < 1.5 * np.linalg.norm(best - x)


def plain_signs(a: Floats, y: Floats, count: int) -> Floats:
    """Binary iterative hard thresholding (Jacques et al., Eq. BIHT) on a dense matrix."""
    found = np.zeros(a.shape[1])
    for _ in range(300):
        found = found + a.T @ (y - np.sign(a @ found)) / np.sqrt(len(y))
        found[np.argsort(-np.abs(found))[count:]] = 0
    return found / np.linalg.norm(found)


@pytest.mark.parametrize("seed", range(5))
def test_signs_give_the_direction(seed: int) -> None:
    sketch, x = Sketch(seed=seed, rows=400, size=1000), few(1000, 10, seed)
    y = np.sign(sketch.of(x))
    found = recover_from_signs(sketch, y, 10)
    assert np.linalg.norm(found) == pytest.approx(1)
    true = x / np.linalg.norm(x)
    assert found @ true > 0.97
    assert found @ true > plain_signs(dense(sketch), y, 10) @ true - 0.02
    assert not recover_from_signs(sketch, np.zeros(400), 10).any()


def test_nothing_is_recovered_from_nothing() -> None:
    assert not recover(Sketch(seed=1, rows=60, size=200), np.zeros(60), 5).any()


def test_a_sketch_of_a_large_model_takes_little_memory() -> None:
    """A dense matrix of this size would take 32 GB."""
    tracemalloc.start()
    sketch, x = Sketch(seed=1, rows=20_000, size=200_000), few(200_000, 1000, 1)
    np.testing.assert_allclose(recover(sketch, sketch.of(x), 1000), x, atol=1e-8)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**26


# The protocol ------------------------------------------------------------------------------------


def test_a_client_sends_the_signs_of_a_sketch_of_its_largest_entries() -> None:
    """`reference/test_baselines.py` has sketches of numbers."""
    here: Any = world(study())
    options = CSFL(fraction=1.0, sparsity=0.01, measurements=0.3, signs=True)
    update, _ = options.build(here.problem).contributions
    x, y = here.records[0]
    value = update.compute(context(here, x, y, np.zeros(3, np.float32)))
    assert value.new_state is not None
    trained = run_job(update.fit(context(here, x, y, np.zeros(3, np.float32))))  # type: ignore[attr-defined]
    step = trained.astype(np.float64) - here.problem.initial
    kept = np.argsort(-np.abs(step))[:6]
    part = np.zeros(610)
    part[kept] = step[kept]
    sketch = dense(Sketch(seed=here.problem.seed, rows=183, size=610)) @ part
    assert value.integers is not None
    np.testing.assert_array_equal(value.integers, 2**10 * np.sign(sketch))
    np.testing.assert_allclose(value.new_state["residual"], step - part, atol=1e-6)


def test_a_client_whose_training_failed_votes_for_nothing() -> None:
    """Signs have a finite sensitivity without any bound, so silence would say more than the plan allows."""
    sketched, votes = CSFL(fraction=1.0, signs=True).build(world(study()).problem).contributions
    for contribution, size in ((sketched, 61), (votes, 610)):
        blank = client_context(
            np.zeros((0, 64), np.float32),
            np.zeros(0, np.int64),
            broadcast=np.zeros(3, np.float32),
            rng=np.random.default_rng(1),
        )
        value = contribution.value(blank, DataError("it diverged"))  # type: ignore[attr-defined]
        assert value.integers is not None
        assert value.integers.tolist() == [0] * size


def test_bytes_are_those_of_a_sketch_and_of_two_bits_a_vote(tmp_path: Path) -> None:
    of = study(ARM.format(more="measurements = 0.2\n"), rounds=1, clients=5)
    record = run(of, tmp_path).records[0]
    sent = 4 * 122 + 2 * 610 / 8
    assert 5 * sent < record["bytes_up"] < 5 * (sent + 400)


@pytest.mark.parametrize(
    ("options", "least"),
    [
        ({"sparsity": 0.02}, 120),
        ({"sparsity": 0.01, "signs": True}, 120),
        ({"measurements": 0.01}, 30),
    ],
)
def test_a_sketch_too_small_to_recover_from_is_refused(options: dict[str, Any], least: int) -> None:
    problem = world(study()).problem
    with pytest.raises(ConfigError, match=f"sketches of at least {least} numbers, .* Raise `measurements`"):
        CSFL(fraction=1.0, **options).build(problem)
