"""Private training side by side: each client's own mechanism, and no record moves another's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny_dpsgd
from support.side_by_side import overflowing
from support.tiny_problem import client_context, tiny_problem

from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.protocols.class_sums import Clipping
from securefl.training import cohorts
from securefl.training.cohorts import SLOTS, Batched, clipped_sums, fit_privately, require_alike, tail_of
from securefl.training.jobs import TrainingJob, TrainingResult
from securefl.training.private_steps import DPSGD
from securefl.training.run_jobs import one_by_one
from securefl.training.stack import Stack
from securefl.training.task import Problem

SHAPE, CLASSES = (6, 5), 4
RNG = np.random.default_rng(8)
RECORDS = [
    (RNG.random((n, *SHAPE), dtype=np.float32), RNG.integers(0, CLASSES, n))
    for n in (70, 3, 0, 33, 64, 1, 40, 20)
]


config = partial(
    tiny_dpsgd.config, clip_norm=0.5, sampling_rate=0.6, expected_batch=20, steps=4, learning_rate=0.2
)


def problem(private: DPSGD) -> Problem:
    given = {"shape": SHAPE, "outputs": CLASSES, "clients": len(RECORDS), "records": 1000, "batch_size": 8}
    return tiny_problem(hidden=(16, 8), private=private, epochs=1, seed=3, **given)


def fit(here: Problem, k: int, **tail: Any) -> TrainingJob:
    x, y = RECORDS[k]
    context = client_context(
        x, y, client=k, broadcast=here.initial, source=Source(SecretKey(bytes([k]) * 32))
    )
    return TrainingJob(problem=here, start=here.initial, context=context, **tail)


def vectors(came: Sequence[TrainingResult]) -> np.ndarray[Any, Any]:
    return np.array([own for own in came if isinstance(own, np.ndarray)])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.9, "proximal": 0.3, "weight_decay": 0.01},
        {"optimizer": "adam", "learning_rate": 0.01},
    ],
)
@pytest.mark.parametrize("slots", [8, 10, 16])
def test_a_client_has_the_same_bits_alone_and_in_any_slot(changes: dict[str, Any], slots: int) -> None:
    here, own = problem(config(**changes)), range(len(RECORDS))
    together = dict(zip(own, fit_privately([fit(here, k) for k in own], slots), strict=True))
    for order in ([5], [3, 0], [7, 6, 5, 4, 3, 2, 1, 0], [2, 4, 0]):
        for k, found in zip(order, fit_privately([fit(here, k) for k in order], slots), strict=True):
            np.testing.assert_array_equal(found, together[k])


@pytest.mark.parametrize("tail", [{}, {"under_head": True, "activation": Clipping().activation()}])
def test_it_is_what_each_client_trains_alone(tail: dict[str, Any]) -> None:
    # The same draws and the same noise from the same source: sums differ in the last bits of float32 alone.
    here = problem(config(momentum=0.5, proximal=0.1))
    together = vectors(Batched(one_by_one)([fit(here, k, **tail) for k in range(len(RECORDS))]))
    alone = vectors(one_by_one([fit(here, k, **tail) for k in range(len(RECORDS))]))
    assert together.shape == alone.shape == (len(RECORDS), len(here.initial))
    np.testing.assert_allclose(together, alone, atol=2e-6)
    assert np.abs(together - here.initial).max(axis=1).min() > 1e-3, "without records there is noise"


def test_clients_draw_their_own_noise() -> None:
    here = problem(config(noise_multiplier=50.0))
    moved = vectors(fit_privately([fit(here, k) for k in (2, 5)], SLOTS)) - here.initial
    assert abs(np.corrcoef(moved)[0, 1]) < 0.2, "668 entries: 0.2 is five deviations"


def sums(here: Problem, batches: Sequence[Any], **changes: Any) -> np.ndarray[Any, Any]:
    stack = Stack(
        here.module(here.initial), [here.initial] * len(batches), tail_of(fit(here, 0)), slots=SLOTS
    )
    given = [(torch.from_numpy(x).flatten(1), torch.from_numpy(y)) for x, y in batches]
    with torch.no_grad():
        return stack.layout.rows(clipped_sums(stack, given, config(**changes))).numpy()


def test_one_record_moves_a_sum_by_the_clipping_norm_and_no_other_sum() -> None:
    here, bound = problem(config()), 0.5
    for at in range(0, 70, 7):
        x, y = RECORDS[0]
        less = (np.delete(x, at, axis=0), np.delete(y, at))
        before, after = (sums(here, [RECORDS[3], own, RECORDS[4]]) for own in ((x, y), less))
        moved = np.linalg.norm(before[1] - after[1])
        assert 0 < moved <= bound * (1 + 1e-12)
        np.testing.assert_array_equal(before[[0, 2]], after[[0, 2]])


def test_a_client_of_one_record_has_its_own_sum_beside_one_of_20_000() -> None:
    here, rng = problem(config()), np.random.default_rng(2)
    x, y = RECORDS[0]
    many = rng.integers(0, len(x), 20_000)
    few, crowd = (x[:1], y[:1]), (x[many], y[many])
    beside, alone = sums(here, [few, crowd]), sums(here, [few])
    np.testing.assert_array_equal(beside[0], alone[0])
    counts = np.bincount(many, minlength=len(x))
    each = sum(count * sums(here, [(x[[k]], y[[k]])])[0] for k, count in enumerate(counts))
    np.testing.assert_allclose(beside[1], each, atol=1e-9)


def test_clipping_is_per_record() -> None:
    here, (x, y) = problem(config()), RECORDS[1]
    for one in range(len(y)):
        alone = sums(here, [(x[one : one + 1], y[one : one + 1])], clip_norm=1e-3)[0]
        assert 0.999e-3 < np.linalg.norm(alone) <= 1e-3


@pytest.mark.parametrize("bad", [1e19, 1e30, 1e36])
def test_a_record_whose_squares_overflow_in_float32_is_clipped(bad: float) -> None:
    here, (x, y) = problem(config()), RECORDS[1]
    large = np.full_like(x[:1], bad)
    assert 0.49 < np.linalg.norm(sums(here, [(large, y[:1])])[0]) <= 0.5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_unusable_record_leaves_no_bit(bad: float) -> None:
    here, (x, y) = problem(config()), RECORDS[0]
    spoilt, labels = x.copy(), y.copy()
    spoilt[10] = bad
    labels[[40, 41]] = -1, CLASSES
    spoilt[40] = bad  # unusable in both ways: its label is unknown, and zero times nan is nan
    clean = np.delete(spoilt, [10, 40, 41], axis=0), np.delete(labels, [10, 40, 41])
    np.testing.assert_allclose(
        sums(here, [(spoilt, labels)])[0], sums(here, [clean])[0], rtol=1e-13, atol=1e-13
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e20])
def test_a_client_with_an_unusable_record_is_not_silent(bad: float) -> None:
    """Silence would tell of the record, and no noise covers that."""
    here = problem(config(sampling_rate=1.0))
    own = fit(here, 0)
    x, y = own.context.x.copy(), own.context.y.copy()
    x[10], y[10] = bad, -1
    spoilt = replace(own, context=replace(own.context, x=x, y=y))
    without = replace(own, context=replace(own.context, x=np.delete(x, 10, 0), y=np.delete(y, 10)))
    for wave in ([spoilt, fit(here, 1)], [without]):
        assert vectors(Batched(one_by_one)(wave)).shape == (len(wave), len(here.initial))


def test_an_empty_row_adds_nothing_where_the_model_overflows() -> None:
    """At a row of zeros this model is infinite. One record more or less must not tell of it."""
    private = config(sampling_rate=1.0, steps=1, learning_rate=1e-3, chunk=32)
    here = problem(private)
    start = overflowing(here)
    x, y = np.ones((33, *SHAPE), np.float32), np.arange(33) % CLASSES
    for sizes in ((32,), (31,), (33,), (32, 33), (1, 31)):
        wave = []
        for k, n in enumerate(sizes):
            own = fit(here, k)
            wave.append(replace(own, start=start, context=replace(own.context, x=x[:n], y=y[:n])))
        assert len(vectors(fit_privately(wave, SLOTS))) == len(sizes), sizes


def test_a_client_that_diverges_leaves_the_others_alone() -> None:
    here = problem(config())
    jobs = [fit(here, k) for k in range(3)]
    alone = fit_privately(jobs, SLOTS)
    far = replace(jobs[1], start=np.full_like(here.initial, np.inf))
    with np.errstate(all="ignore"):
        first, told, last = fit_privately([fit(here, 0), far, fit(here, 2)], SLOTS)
    assert "diverged" in str(told)
    assert np.array_equal(vectors([first, last]), vectors([alone[0], alone[2]]))


@pytest.mark.parametrize("slots", [1, 3, 10, 16])
def test_a_pass_has_as_many_slots_whoever_is_in_it(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    own = Stack.__init__

    def noted(self: Stack, *given: Any, slots: int) -> None:
        seen.append(slots)
        own(self, *given, slots=slots)

    monkeypatch.setattr(Stack, "__init__", noted)
    private = problem(config())
    plain = replace(private, private=None)
    for here in (private, plain):
        for clients in (1, 2, 5):
            Batched(one_by_one, slots)([fit(here, k) for k in range(clients)])
    assert set(seen) == {slots}


def test_kernels_that_mix_records_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    here = problem(config())
    require_alike(fit(here, 0), 32, SLOTS)
    right = cohorts._factors

    def leaking(*given: Any) -> torch.Tensor:
        found = right(*given)
        found[64] += 1e-7
        return found

    monkeypatch.setattr(cohorts, "_factors", leaking)
    with pytest.raises(ConfigError, match='training = "sequential"'):
        require_alike(fit(here, 0), 32, SLOTS)
