"""Clients side by side that start from one broadcast, from several, or from models of their own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from securefl.core.errors import DataError
from securefl.training import ModelConfig, cohorts
from securefl.training.cohorts import Batched
from securefl.training.jobs import TrainingJob
from securefl.training.run_jobs import one_by_one
from securefl.training.task import Problem
from tests.support.side_by_side import assert_near, fits, local, problem, vectors

ROWS = 32


SHAPE = (16, 8)


def wide(*, kind: Any = "classification", **changes: Any) -> Problem:
    """A problem with a wide first layer."""
    here = problem(local(**{"batch_size": 8, "epochs": 1} | changes), kind=kind, shape=SHAPE)
    return replace(here, model=ModelConfig(kind="mlp", hidden=(512, 8)))


def again(given: Sequence[TrainingJob]) -> list[TrainingJob]:
    """The same trainings, with streams of their own."""
    return [replace(fit, context=replace(fit.context, rng=copy.deepcopy(fit.context.rng))) for fit in given]


def test_who_diverges_changes_no_bit_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What memory held before is not read."""
    empty = torch.empty

    def of_nan(*size: Any, **how: Any) -> Tensor:
        return empty(*size, **how) if how else empty(*size).fill_(float("nan"))

    monkeypatch.setattr(torch, "empty", of_nan)
    here, train = wide(), Batched(one_by_one, 10)
    together = train(fits(here)[:3])
    spoilt = fits(here)[:3]
    x = spoilt[1].context.x.copy()
    x[0] = np.nan
    spoilt[1] = replace(spoilt[1], context=replace(spoilt[1].context, x=x))
    came = train(spoilt)
    assert isinstance(came[1], DataError)
    assert "diverged" in str(came[1])
    for k in (0, 2):
        np.testing.assert_array_equal(came[k], together[k])


def test_a_finite_model_of_a_huge_norm_is_returned() -> None:
    here = wide()
    start = here.initial.copy()
    start[512 * 128] = -1e20  # the bias of a unit, which is off
    own = [replace(fit, start=start, context=replace(fit.context, broadcast=start)) for fit in fits(here)[:2]]
    for found in Batched(one_by_one, 2)(own):
        assert isinstance(found, np.ndarray)
        assert found[512 * 128] == np.float32(-1e20)


def test_personal_models_train_as_if_nobody_were_beside_them() -> None:
    """A client whose start is no broadcast, alone and beside others."""
    here, train = wide(), Batched(one_by_one, 10)

    def personal() -> list[TrainingJob]:
        return [replace(fit, start=fit.start + np.float32(0.01 * k)) for k, fit in enumerate(fits(here)[:4])]

    together = train(personal())
    mixed = train([*personal()[:2], *fits(here)[2:6]])
    for k in range(4):
        np.testing.assert_array_equal(train([personal()[k]])[0], together[k])
    for k in range(2):
        np.testing.assert_array_equal(mixed[k], together[k])
    alone = train(fits(here)[2:6])
    for k in range(4):
        np.testing.assert_array_equal(mixed[2 + k], alone[k])


def test_a_broadcast_that_changes_afterwards_changes_no_result() -> None:
    here = wide()
    start = here.initial.copy()
    own = [replace(fit, start=start, context=replace(fit.context, broadcast=start)) for fit in fits(here)[:3]]
    expected = vectors(Batched(one_by_one)(again(own)))
    came = Batched(one_by_one)(own)
    start[:] = 1
    np.testing.assert_array_equal(vectors(came), expected)


def test_several_blocks_of_records_train_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    here = wide(learning_rate=0.05)
    expected = vectors(one_by_one(fits(here)))
    for steps in (1, 2, 3, 100):
        monkeypatch.setattr(cohorts, "_GATHERED", 10 * ROWS * 128 * steps)
        assert_near(vectors(Batched(one_by_one, 10)(fits(here))), expected, 1e-6)
