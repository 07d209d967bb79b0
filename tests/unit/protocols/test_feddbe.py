"""FedDBE: a bias of the client's own on the features, and a consensus that is collected once."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from support.private_studies import private
from support.tiny_problem import tiny_problem
from support.tiny_study import charged, composed, run, study, world
from torch import nn
from torch.nn.functional import cross_entropy

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.plan import Plan
from securefl.core.errors import ConfigError, DataError
from securefl.protocols.feddbe import FedDBE
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Study
from securefl.study.export import taken
from securefl.training import ModelConfig
from securefl.training.run_jobs import run_job

D, M = 6 * 8 + 8 + 8 * 3 + 3, 8


def context(broadcast: NDArray[np.float32], **more: Any) -> ClientContext:
    rng = np.random.default_rng(40)
    x, y = rng.normal(size=(13, 6)).astype(np.float32), rng.integers(3, size=13)
    given = {"x": x, "y": y, "rng": np.random.default_rng(0), **more}
    return ClientContext(client=0, round=1, broadcast=broadcast, public={}, **given)


def tiny(options: str = "", **more: Any) -> Study:
    arm = f'[[arm]]\nname = "x"\nprotocol = "feddbe"\n{options}\n'
    return study(arm, clients=4, **more)


# The consensus ------------------------------------------------------------------------------------


def features_of(vector: NDArray[np.float32], x: NDArray[Any], width: int = 8) -> NDArray[np.float64]:
    inputs = int(np.prod(x.shape[1:]))
    weight = vector[: inputs * width].reshape(width, inputs).astype(np.float64)
    return np.maximum(x.reshape(len(x), -1) @ weight.T + vector[inputs * width :][:width], 0)


def test_the_consensus_has_a_charge_of_its_own(tmp_path: Path) -> None:
    of = tiny("mean_bound = 1.0", rounds=2)
    run(of, tmp_path)
    assert charged(tmp_path) == {"consensus": 4, "update": 8}
    lacking = tiny(non_private='["update"]')
    with pytest.raises(ConfigError, match=r'."consensus"'):
        composed(lacking)


def test_a_client_bounds_its_features_and_answers_whatever_its_records_are() -> None:
    _, consensus = FedDBE(mean_bound=0.25).build(tiny_problem()).contributions
    own = context(np.zeros(0, np.float32))
    step = consensus.spec.grid.step
    found = features_of(tiny_problem().initial, own.x)
    clipped = found * np.minimum(1, 0.25 / np.linalg.norm(found, axis=1, keepdims=True))
    value = consensus.compute(own)
    assert value.integers is not None
    np.testing.assert_allclose(value.integers * step, clipped.mean(0), atol=2 * step)
    for x, y in ((own.x[:0], own.y[:0]), (own.x * np.nan, own.y), (own.x, own.y + 9)):
        empty = consensus.compute(context(np.zeros(0, np.float32), x=x, y=y))
        assert empty.integers is not None
        assert not empty.integers.any()


def test_no_mean_of_bounded_features_is_longer_than_the_bound() -> None:
    """Of two points of the grid that are as long as the bound, almost. Rounded otherwise, some means are."""
    here = replace(tiny_problem(), model=ModelConfig(kind="mlp", hidden=()))
    _, consensus = FedDBE(mean_bound=1.0).build(here).contributions
    limit = int(1 / consensus.spec.grid.step)
    points = [(a, isqrt(limit**2 - a**2)) for a in range(3000, 3400)]
    longest = sorted(points, key=lambda point: limit**2 - point[0] ** 2 - point[1] ** 2)[:8]
    for pair in combinations(longest, 2):
        x = np.zeros((2, 6), np.float32)
        x[:, :2] = np.array(pair) / limit
        found = consensus.compute(context(np.zeros(0, np.float32), x=x, y=np.zeros(2, np.int64))).integers
        assert found is not None
        assert 0.99 * limit**2 < sum(int(entry) ** 2 for entry in found) <= limit**2


def test_without_noise_a_bound_far_above_the_features_loses_nothing() -> None:
    own = context(np.zeros(0, np.float32))
    exact = features_of(tiny_problem().initial, own.x).mean(0)

    def found(**plan: Any) -> tuple[float, float]:
        here = tiny_problem(planned=lambda sent: Plan(delta=1e-5, max_rounds=1, **plan))
        _, consensus = FedDBE(mean_bound=1000.0).build(here).contributions
        return consensus.spec.grid.step, float(np.abs(consensus.compute(own).floats() - exact).max())

    step, error = found()
    assert error <= 2 * step < 1e-4
    for unit, adjacency in (
        ("record", "add-remove"),
        ("client", "zero-out"),
    ):  # noise is far coarser than this
        noisy = {"noise": "local", "noise_multiplier": 1.0, "unit": unit, "adjacency": adjacency}
        assert found(**noisy)[0] == 2.0**-5


# Training -----------------------------------------------------------------------------------------


def by_hand(vector: Any, bias: Any, consensus: Any, own: ClientContext, kappa: float, momentum: float) -> Any:
    """The authors' loop in plain torch: features, running mean, bias, head."""
    body, head = nn.Linear(6, 8), nn.Linear(8, 3)
    parameters = [*body.parameters(), *head.parameters()]
    nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), parameters)
    shift = nn.Parameter(torch.from_numpy(bias.copy()))
    optimizer, rng = torch.optim.SGD([*parameters, shift], lr=0.1), np.random.default_rng(0)
    running = torch.zeros(8)
    for _ in range(2):
        order = rng.permutation(13)
        for batch in (order[:5], order[5:10], order[10:]):
            features = torch.relu(body(torch.from_numpy(own.x[batch])))
            running = (1 - momentum) * running + momentum * features.mean(0)
            loss = cross_entropy(head(features + shift), torch.from_numpy(own.y[batch]))
            if consensus is not None:
                loss = loss + kappa * (0.5 * (running - torch.from_numpy(consensus)) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running = running.detach()
    return nn.utils.parameters_to_vector([*parameters, shift]).detach().numpy()


def test_a_second_attempt_forgets_the_running_mean_of_the_first() -> None:
    here = tiny_problem()
    update = FedDBE(kappa=7.0).build(here).contributions[0]
    sent = np.concatenate([here.initial, np.ones(M + 1, np.float32)])
    fit = update.fit(context(sent))  # type: ignore[attr-defined]
    first = np.array(run_job(fit))
    fit.context.rng.bit_generator.state = np.random.default_rng(0).bit_generator.state
    np.testing.assert_array_equal(run_job(fit), first)


def test_a_client_takes_a_plain_model_away_with_its_bias_in_the_heads(tmp_path: Path) -> None:
    of = tiny()
    here = world(of)
    run(of, tmp_path, here=here)
    common, own = (taken(of, tmp_path, "x", 3, client).learnt for client in (None, 0))
    algorithm = of.arms[0].options.build(here.problem)
    part = algorithm.averaged  # type: ignore[attr-defined]
    with Checkpoint(checkpoint_file(arm_folder(tmp_path, of.arms[0], 3))) as checkpoint:
        bias = checkpoint.kept()[0]["bias"]
    assert np.abs(bias).max() > 1e-3
    shifted = part.trained.module(np.concatenate([common.vector, bias]))
    x = torch.from_numpy(np.asarray(here.tests[0][0], np.float32))
    with torch.no_grad():
        wanted = shifted(x)
        torch.testing.assert_close(own.module()(x), wanted, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(common.module()(x), wanted, atol=1e-3)


# Bad input ----------------------------------------------------------------------------------------


def test_a_damaged_bias_is_named() -> None:
    here = tiny_problem()
    update = FedDBE().build(here).contributions[0]
    sent = np.concatenate([here.initial, np.ones(M + 1, np.float32)])
    with pytest.raises(DataError, match="'bias' to be 8 finite"):
        update.compute(context(sent, kept={"bias": np.zeros(7, np.float32)}))


def test_private_training_is_refused() -> None:
    of = private("feddbe", "")
    with pytest.raises(ConfigError, match=r"no \[dpsgd\] with FedDBE"):
        composed(of)
