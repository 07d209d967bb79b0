"""The baselines of the five papers as their own papers have them, in torch's own loop (`three_rounds`).

Each transcription returns the shared vector after three rounds, and what each client keeps. STC, pFedMe,
FedRep, FedProto and FLTrust stand under their authors' settings in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from reference.three_rounds import (
    BATCH,
    CLIENTS,
    EPOCHS,
    RATE,
    ROUNDS,
    SECONDS,
    Round,
    Vector,
    descend,
    of_vector,
    played,
    records,
    stream,
    vector,
)
from scipy.fft import dct
from support.every import every
from support.tiny_problem import tiny_problem
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from securefl.protocols.adds import FedDrop
from securefl.protocols.baselines import CFCFM, ActiveFL, FedAdam, FedAvgRP, FedProx
from securefl.protocols.cs_fl import CSFL
from securefl.protocols.fedavg import FedAvg
from securefl.protocols.fedbabu import FedBABU
from securefl.protocols.feddbe import FedDBE
from securefl.protocols.fedper import FedPer
from securefl.protocols.lg_fedavg import LGFedAvg
from securefl.protocols.power_of_choice import PowerOfChoice
from securefl.training import Problem

Floats = NDArray[np.float64]
Found = tuple[Floats | Vector, Sequence[Mapping[str, Any]]]
MU, SERVER_RATE, MOMENTUM, KAPPA, FINE = 0.5, 0.01, 0.9, 3.0, 5
MEASUREMENTS, SPARSITY, SKETCH_RATE, VOTE_RATE = 0.6, 0.0125, 0.5, 0.01
COUNTS = np.array([len(records(client)[0]) for client in range(CLIENTS)])


def trained(start: Floats | Vector, client: int, number: int, mu: float = 0.0) -> Floats:
    """The step of a client's local training, in FedProx's loss."""
    model = of_vector(np.asarray(start, np.float32))
    before = [value.detach().clone() for value in model.parameters()]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        apart = [(p - w).square().sum() for p, w in zip(model.parameters(), before, strict=True)]
        return cross_entropy(model(x), y) + mu / 2 * sum(apart)

    descend(model.parameters(), records(client), stream(client, number), loss)
    return vector(model).astype(np.float64) - start


def loss_of(model: Floats | Vector, client: int) -> float:
    x, y = map(torch.from_numpy, records(client))
    return float(cross_entropy(of_vector(np.asarray(model, np.float32))(x), y).detach())


# One model of all clients -------------------------------------------------------------------------


def averaged(here: Problem, rounds: Sequence[Round], step: Callable[[Floats, int, Round], Floats]) -> Found:
    """A model that moves by `step(model, number, round)`."""
    model = here.initial.astype(np.float64)
    for number, own in enumerate(rounds, start=1):
        model = (model + step(model, number, own)).astype(np.float32).astype(np.float64)
    return model, []


def of_all(model: Floats, number: int, cohort: Mapping[int, int]) -> Floats:
    """The sum over the cohort of n_k / n times the step."""
    return sum(COUNTS[k] / COUNTS.sum() * trained(model, k, number) for k in cohort)  # type: ignore[return-value]


def mean(model: Floats, number: int, cohort: Mapping[int, int], mu: float = 0.0) -> Floats:
    steps = [draws * trained(model, k, number, mu) for k, draws in cohort.items()]
    return np.sum(steps, axis=0) / sum(cohort.values())  # type: ignore[no-any-return]


def fedavg_full(here: Problem, rounds: Sequence[Round]) -> Found:
    """Absent clients count with the old model."""
    return averaged(here, rounds, lambda model, number, own: of_all(model, number, own.drawn))


def fedavg_partial(here: Problem, rounds: Sequence[Round]) -> Found:
    return averaged(here, rounds, lambda model, number, own: mean(model, number, own.drawn))


def fedavg_rp(here: Problem, rounds: Sequence[Round]) -> Found:
    """Scheme II of Li et al. (2020): N / K times the weighted sum."""
    return averaged(here, rounds, lambda model, number, own: 2 * of_all(model, number, own.drawn))


def fedprox(here: Problem, rounds: Sequence[Round]) -> Found:
    """Scheme I: K draws by size with replacement, and their plain mean."""
    assert all(sum(own.drawn.values()) == 2 for own in rounds)
    return averaged(here, rounds, lambda model, number, own: mean(model, number, own.drawn, MU))


def fedadam(here: Problem, rounds: Sequence[Round]) -> Found:
    """torch's Adam on the server, with the mean step for its negative gradient."""
    value = nn.Parameter(torch.from_numpy(here.initial.astype(np.float64)))
    adam = torch.optim.Adam([value], lr=SERVER_RATE, betas=(0.9, 0.999), eps=1e-8)
    for number, own in enumerate(rounds, start=1):
        value.grad = -torch.from_numpy(mean(value.detach().numpy().copy(), number, own.drawn))
        adam.step()
    return value.detach().numpy(), []


def cfcfm(here: Problem, rounds: Sequence[Round]) -> Found:
    """The two fastest clients, and those of the last round after all others. Full aggregation."""
    last: list[int] = []

    def step(model: Floats, number: int, own: Round) -> Floats:
        nonlocal last
        last = sorted(sorted(range(CLIENTS), key=lambda k: (k in last, SECONDS[k]))[:2])
        assert sorted(own.drawn) == last
        return of_all(model, number, own.drawn)

    return averaged(here, rounds, step)


def active_fl(here: Problem, rounds: Sequence[Round]) -> Found:
    """The half of the clients with the largest sqrt(n_k) times newest loss, and momentum of the server."""
    losses = [loss_of(here.initial, client) for client in range(CLIENTS)]
    moment = np.zeros(len(here.initial))

    def step(model: Floats, number: int, own: Round) -> Floats:
        nonlocal moment
        cohort = np.argsort(np.sqrt(COUNTS) * losses)[2:]
        assert {*own.drawn} == {*cohort.tolist()}
        for client in cohort:
            losses[client] = loss_of(model, client)
        moment = MOMENTUM * moment + (1 - MOMENTUM) * mean(model, number, own.drawn)
        return moment / (1 - MOMENTUM**number)

    return averaged(here, rounds, step)


def power_of_choice(here: Problem, rounds: Sequence[Round]) -> Found:
    """With all clients for candidates: the two with the largest losses."""

    def step(model: Floats, number: int, own: Round) -> Floats:
        cohort = np.argsort([loss_of(model, client) for client in range(CLIENTS)])[2:]
        assert {*own.drawn} == {*cohort.tolist()}
        return mean(model, number, own.drawn)

    return averaged(here, rounds, step)


def feddrop(here: Problem, rounds: Sequence[Round]) -> Found:
    """The whole cohort trains under one mask on the units, which keeps half of them."""

    def step(model: Floats, number: int, own: Round) -> Floats:
        masks = [torch.from_numpy(kept["units"]).float() for kept in own.kept]
        assert all(torch.equal(mask, masks[0]) and mask.sum() == 4 for mask in masks)
        steps = []
        for client in range(CLIENTS):
            net = of_vector(model.astype(np.float32))

            def loss(x: Tensor, y: Tensor, net: nn.Sequential = net, mask: Tensor = masks[0]) -> Tensor:
                return cross_entropy(net[2](net[:2](x) * mask), y)

            descend(net.parameters(), records(client), stream(client, number), loss)
            steps.append(vector(net) - model)
        return np.mean(steps, axis=0)  # type: ignore[no-any-return]

    return averaged(here, rounds, step)


# A compressed model -------------------------------------------------------------------------------


def cs_fl(here: Problem, rounds: Sequence[Round]) -> Found:
    """Sketches by a dense matrix, whose sparse mean least squares recover, and then votes."""
    d, rng = len(here.initial), np.random.default_rng((here.seed, 50, len(here.initial)))
    signs = rng.choice(np.array([-1.0, 1.0]), d)
    cosines = dct(np.eye(d), axis=0, norm="ortho")[np.sort(rng.choice(d, 50, replace=False))]
    matrix = np.sqrt(d / 50) * cosines * signs

    def step(model: Floats, number: int, own: Round) -> Floats:
        steps = [trained(model, client, number) for client in range(CLIENTS)]
        largest = [np.abs(one).argmax() for one in steps]
        sketches = [matrix[:, k] * one[k] for k, one in zip(largest, steps, strict=True)]
        there = sorted({*largest})
        sparse = np.zeros(d)
        sparse[there] = np.linalg.lstsq(matrix[:, there], np.mean(sketches, axis=0))[0]
        moved = (model + SKETCH_RATE * sparse).astype(np.float32).astype(np.float64)
        for one, k in zip(steps, largest, strict=True):
            one[k] = 0.0
        votes = [np.sign(one + trained(moved, client, number)) for client, one in enumerate(steps)]
        return moved - model + VOTE_RATE * np.sign(np.sum(votes, axis=0))

    return averaged(here, rounds, step)


# Personal models ----------------------------------------------------------------------------------


def shared_layers(here: Problem, rounds: Sequence[Round], *, body: bool) -> Found:
    """Clients train their whole models. The body is averaged, or the head."""
    models = [of_vector(here.initial) for _ in range(CLIENTS)]
    for number in range(1, ROUNDS + 1):
        for client, model in enumerate(models):

            def loss(x: Tensor, y: Tensor, model: nn.Module = model) -> Tensor:
                return cross_entropy(model(x), y)

            descend(model.parameters(), records(client), stream(client, number), loss)
        own = [{"model": vector(model)} for model in models]
        parts = [model[:2] if body else model[2:] for model in models]
        whole = np.mean([vector(part) for part in parts], axis=0, dtype=np.float64).astype(np.float32)
        for part in parts:
            nn.utils.vector_to_parameters(torch.from_numpy(whole.copy()), part.parameters())
    return whole, own


def fedper(here: Problem, rounds: Sequence[Round]) -> Found:
    return shared_layers(here, rounds, body=True)


def lg_fedavg(here: Problem, rounds: Sequence[Round]) -> Found:
    return shared_layers(here, rounds, body=False)


def fedbabu(here: Problem, rounds: Sequence[Round]) -> Found:
    """Bodies under one head that never changes. At the end each client fine-tunes the whole model."""
    shared = of_vector(here.initial)

    def after(client: int, number: int, epochs: int, part: slice) -> nn.Sequential:
        model = of_vector(vector(shared))

        def loss(x: Tensor, y: Tensor) -> Tensor:
            return cross_entropy(model(x), y)

        descend(model[part].parameters(), records(client), stream(client, number), loss, epochs)
        return model

    for number in range(1, ROUNDS + 1):
        bodies = [vector(after(client, number, EPOCHS, slice(2))[:2]) for client in range(CLIENTS)]
        body = np.mean(bodies, axis=0, dtype=np.float64).astype(np.float32)
        nn.utils.vector_to_parameters(torch.from_numpy(body.copy()), shared[:2].parameters())
    return body, [{"tuned": vector(after(k, ROUNDS, FINE, slice(3)))} for k in range(CLIENTS)]


def feddbe(here: Problem, rounds: Sequence[Round]) -> Found:
    """A bias before the head, and a pull of the running mean of features to the clients' mean."""
    first = of_vector(here.initial)[:2]
    features = [first(torch.from_numpy(records(client)[0])).detach().mean(0) for client in range(CLIENTS)]
    consensus, shared = torch.stack(features).mean(0), here.initial
    biases = [nn.Parameter(torch.zeros(8)) for _ in range(CLIENTS)]
    for number in range(1, ROUNDS + 1):
        models = []
        for client, bias in enumerate(biases):
            model, running = of_vector(shared), torch.zeros(8)

            def loss(x: Tensor, y: Tensor, model: nn.Sequential = model, bias: Tensor = bias) -> Tensor:
                nonlocal running
                phi = model[:2](x)
                smoothed = 0.9 * running + 0.1 * phi.mean(0)
                running = smoothed.detach()
                pull = KAPPA / 2 * (smoothed - consensus).square().mean()
                return cross_entropy(model[2](phi + bias), y) + pull

            descend([*model.parameters(), bias], records(client), stream(client, number), loss)
            models.append(vector(model))
        shared = np.mean(models, axis=0, dtype=np.float64).astype(np.float32)
    sent = np.concatenate([shared, consensus.numpy(), [1.0]])
    return sent, [{"bias": bias.detach().numpy()} for bias in biases]


CASES: Mapping[str, tuple[Any, Callable[[Problem, Sequence[Round]], Found]]] = {
    "fedavg, full": (FedAvg(fraction=0.5), fedavg_full),
    "fedavg, partial": (FedAvg(fraction=0.5, aggregation="partial"), fedavg_partial),
    "fedavg_rp": (FedAvgRP(fraction=0.5), fedavg_rp),
    "fedprox": (FedProx(fraction=0.5, mu=MU, scheme="I"), fedprox),
    "fedadam": (FedAdam(fraction=0.5, learning_rate=SERVER_RATE), fedadam),
    "cfcfm": (CFCFM(fraction=0.5), cfcfm),
    "active_fl": (ActiveFL(fraction=0.5, excluded=0.5, explored=0.0, momentum=MOMENTUM), active_fl),
    "pow_d": (PowerOfChoice(fraction=0.5), power_of_choice),
    "feddrop": (FedDrop(fraction=1.0, keep=0.5), feddrop),
    "cs_fl": (
        CSFL(
            fraction=1.0,
            measurements=MEASUREMENTS,
            sparsity=SPARSITY,
            sketch_rate=SKETCH_RATE,
            vote_rate=VOTE_RATE,
        ),
        cs_fl,
    ),
    "fedper": (FedPer(), fedper),
    "lg_fedavg": (LGFedAvg(), lg_fedavg),
    "fedbabu": (FedBABU(fine_tune_epochs=FINE), fedbabu),
    "feddbe": (FedDBE(kappa=KAPPA), feddbe),
}


ELSEWHERE = {"stc", "fedrep", "pfedme", "fltrust", "fedproto"}
OWN = {"fedprof", "fedcor", "fedlog", "adds", "heads"}
"""The papers' own systems, and one that is from none of them."""


def test_every_baseline_has_a_transcription() -> None:
    here = {name.partition(",")[0] for name in CASES}
    assert {point.name for point in entry_points(group="securefl.protocols")} == here | ELSEWHERE | OWN


@every("name", CASES)
def test_three_rounds_are_those_of_a_transcription(name: str) -> None:
    options, transcribed = CASES[name]
    here = tiny_problem(clients=CLIENTS, learning_rate=RATE, epochs=EPOCHS, batch_size=BATCH)
    rounds = played(options.build(here))
    shared, own = transcribed(here, rounds)
    found = rounds[-1]
    np.testing.assert_allclose(found.state.broadcast, shared, atol=1e-5, rtol=0)
    for client, keeps in enumerate(own):
        for key, value in keeps.items():
            np.testing.assert_allclose(found.kept[client][key], value, atol=1e-5, rtol=0)
    assert np.abs(shared - rounds[0].state.broadcast).max() > 1e-3, "the last rounds move it too"
