"""The baselines' own parts: server Adam, the proximal term, valuations, ranges of options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.choices import cohort_of
from support.tiny_problem import client_context, tiny_problem

from securefl.algorithm.clients import Population, State
from securefl.protocols.averaging import Adam, Averaging, Momentum, Replace
from securefl.protocols.baselines import (
    ActiveFL,
    ByLoss,
    FedAdam,
    FedAvgRP,
    FedProx,
)
from securefl.protocols.parts import Part, Update
from securefl.training.task import Problem


@pytest.fixture
def problem() -> Problem:
    return tiny_problem(width=3, hidden=(4,), outputs=2, clients=4, learning_rate=0.5, epochs=3, batch_size=4)


def test_server_adam_is_torch_adam_on_the_negated_step() -> None:
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(5, 7)) * 10.0 ** rng.integers(-6, 1, size=(5, 7))
    adam = Adam(learning_rate=0.03, beta1=0.8, beta2=0.95)
    state = State(np.linspace(-1, 1, 7, dtype=np.float32))
    parameter = torch.nn.Parameter(torch.from_numpy(state.broadcast.astype(np.float64)))
    peer = torch.optim.Adam([parameter], lr=0.03, betas=(0.8, 0.95), eps=1e-8)
    for step in steps:
        state = adam.apply(state, step)
        parameter.grad = torch.from_numpy(-step)
        peer.step()
        np.testing.assert_allclose(state.broadcast, parameter.detach().numpy(), rtol=1e-5, atol=1e-7)
    assert state.broadcast.dtype == np.float32


def test_fedadam_hands_its_options_to_the_server_adam(problem: Problem) -> None:
    algorithm = FedAdam(fraction=0.5, learning_rate=0.02, beta1=0.5, beta2=0.7).build(problem)
    assert isinstance(algorithm, Averaging)
    assert algorithm.server == Adam(learning_rate=0.02, beta1=0.5, beta2=0.7)
    assert algorithm.aggregation == "partial"


def test_fedprox_pulls_towards_the_broadcast_model(problem: Problem) -> None:
    data = np.random.default_rng(8)
    x, y = data.random((12, 3), dtype=np.float32), data.integers(2, size=12)

    def update(options: Any) -> Any:
        algorithm = options.build(problem)
        own = next(s for s in algorithm.contributions if s.spec.name == "update")
        context = client_context(x, y, broadcast=problem.initial, rng=np.random.default_rng(1))
        return own.compute(context).clear

    free = update(FedAvgRP(fraction=0.5))
    assert np.array_equal(update(FedProx(fraction=0.5, mu=0.0)), free)
    held = update(FedProx(fraction=0.5, mu=1.0))
    assert np.linalg.norm(held) < 0.9 * np.linalg.norm(free)
    by_hand = replace(problem, local=replace(problem.local, proximal=0.1))
    rng = np.random.default_rng(1)
    context = client_context(x, y, broadcast=problem.initial, rng=rng)
    assert np.array_equal(update(FedProx(fraction=0.5)), Update(Part(by_hand)).compute(context).clear)
    assert problem.local.proximal == 0.0


def test_active_fl_values_by_root_of_records_times_loss(problem: Problem) -> None:
    """Client 2 has the largest loss, client 1 the largest sqrt(n) * loss; 3 of 4 are excluded."""
    by_loss = ByLoss(problem, ActiveFL(fraction=0.25, explored=0.0))
    known = State(
        problem.initial,
        {"size": np.array([1.0, 100.0, 4.0, 9.0]), "loss": np.array([2.0, 1.0, 3.0, 2.0])},
    )
    population = Population(clients=4, seconds=np.ones(4))
    assert cohort_of(by_loss, known, population, 1, np.random.default_rng(0)) == {1: 1}


def test_momentum_is_the_first_moment_of_adam() -> None:
    """The first step counts whole; equal steps go on at their own length; older ones weigh less."""
    state, momentum = State(np.zeros(1, np.float32)), Momentum(beta=0.9)
    for count in range(1, 4):
        state = momentum.apply(state, np.ones(1))
        assert state.broadcast[0] == pytest.approx(count)
    back = momentum.apply(state, -np.ones(1)).broadcast[0] - state.broadcast[0]
    expected = (0.9 * (1 - 0.9**3) - 0.1) / (1 - 0.9**4)
    assert back == pytest.approx(expected, rel=1e-5)


def test_active_fl_has_momentum_if_it_is_asked_for(problem: Problem) -> None:
    built = [ActiveFL(fraction=0.5, momentum=beta).build(problem) for beta in (0.0, 0.9)]
    servers = [own.server for own in built if isinstance(own, Averaging)]
    assert servers == [Replace(), Momentum(beta=0.9)]
