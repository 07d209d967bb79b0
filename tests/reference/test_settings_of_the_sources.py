"""FedRep, pFedMe, FLTrust and FedProto as their authors' codes or papers have them, in torch's own loop.

Three rounds of all clients under the preset that says so. Each transcription starts from the initial model,
and draws each client's order of records from the same stream. It takes nothing else from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from support.every import every
from support.tiny_problem import tiny_problem
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from securefl.algorithm import (
    Answers,
    ClientContext,
    ClientState,
    CohortQuery,
    Population,
    State,
    Total,
)
from securefl.study.config import parse
from securefl.training import Problem

CLIENTS, ROUNDS, RECORDS, BATCH, EPOCHS, RATE = 4, 3, 13, 5, 2, 0.1
HEAD_EPOCHS, LAMDA, STEPS, ETA, DECAY, ROOT = 3, 2.0, 4, 0.1, 0.001, 11
Vector = NDArray[np.float32]


def records(client: int, count: int = RECORDS) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(40 + client)
    return rng.normal(size=(count, 6)).astype(np.float32), rng.integers(3, size=count)


def stream(client: int, number: int) -> np.random.Generator:
    return np.random.default_rng((client, number))


def arm_of(name: str, preset: str, keys: str) -> Any:
    """The arm of a protocol with a preset, as a study has it."""
    (arm,) = parse(STUDY.format(name, preset, keys)).arms
    return arm


STUDY = """
[study]
name = "x"
rounds = 3
[data]
source = "digits"
clients = 4
partition = {{ kind = "iid" }}
[model]
kind = "mlp"
hidden = [8]
[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 2
batch_size = 5
[privacy]
sum = "clear"
scores = "clear"
noise = "none"
unit = "record"
adjacency = "add-remove"
delta = 1e-5
budget = inf
adversaries = ["server"]
non_private = ["update", "direction", "statistic"]
[[arm]]
name = "x"
protocol = "{}"
preset = "{}"
{}
"""


def played(arm: Any, here: Problem) -> tuple[State, list[ClientState]]:
    """Three rounds in the clear, and each client's state."""
    if arm.local is not None:
        here = replace(here, local=replace(arm.local, epochs=EPOCHS, batch_size=here.local.batch_size))
    algorithm: Any = arm.options.build(here)
    contributions = {one.spec.name: one for one in algorithm.contributions}
    state: State = algorithm.start()
    kept: list[ClientState] = [{} for _ in range(CLIENTS)]
    everybody = Population(clients=CLIENTS, seconds=np.ones(CLIENTS))

    def answered(query: CohortQuery, number: int) -> Answers:
        totals, scores, news = {}, {}, {}
        draws = query.weights.draws if query.weights else dict.fromkeys(query.cohort, 1)  # type: ignore[union-attr]
        for asked in (*query.sums, *query.per_client):
            found = {}
            for client in query.cohort:
                x, y = records(client)
                own = ClientContext(
                    client=client,
                    round=number,
                    x=x,
                    y=y,
                    broadcast=query.broadcast,
                    public=query.public,
                    kept=kept[client],
                    rng=stream(client, number),
                )
                found[client] = contributions[asked.spec.name].compute(own)
                news[client] = found[client].new_state
            if asked in query.sums:
                whole = sum(draws[client] * value.floats() for client, value in found.items())
                totals[asked.spec.name] = Total(value=whole, weight=sum(draws.values()))
            else:
                weights = asked.query.hidden
                scores[asked.spec.name] = {k: float(value.hidden @ weights) for k, value in found.items()}
        for client, new in news.items():
            kept[client] = kept[client] if new is None else new
        return Answers(survivors=query.cohort, totals=totals, per_client=scores)

    for number in range(1, ROUNDS + 1):
        turn = algorithm.round(state, everybody, number, np.random.default_rng(number))
        query = next(turn)
        while True:
            try:
                query = turn.send(answered(query, number))
            except StopIteration as ended:
                state = ended.value.state
                break
    return state, kept


# Transcriptions -----------------------------------------------------------------------------------


def of_vector(vector: Vector, hidden: tuple[int, ...]) -> nn.Sequential:
    widths = (6, *hidden)
    body = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    model = nn.Sequential(*body, nn.Linear(widths[-1], 3))
    nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), model.parameters())
    return model


def vector(model: nn.Module) -> Vector:
    return np.asarray(nn.utils.parameters_to_vector(model.parameters()).detach().numpy())


def batches(x: Any, y: Any, rng: np.random.Generator, size: int) -> list[tuple[Tensor, Tensor]]:
    order = rng.permutation(len(x))
    parts = np.array_split(order, range(size, len(x), size))
    return [(torch.from_numpy(x[part]), torch.from_numpy(y[part])) for part in parts]


def descend(
    parameters: Any,
    of: tuple[Any, Any],
    rng: np.random.Generator,
    loss: Callable[[Tensor, Tensor], Tensor],
    epochs: int = EPOCHS,
    size: int = BATCH,
) -> None:
    optimizer = torch.optim.SGD(list(parameters), lr=RATE)
    for _ in range(epochs):
        for x, y in batches(*of, rng, size):
            optimizer.zero_grad()
            loss(x, y).backward()
            optimizer.step()


def fedrep(here: Problem) -> tuple[Vector, list[Vector]]:
    """FedLog's authors': two layers stay, and the head's epochs come before each epoch of the body."""
    models = [of_vector(here.initial, (8, 7)) for _ in range(CLIENTS)]
    for number in range(1, ROUNDS + 1):
        for client, model in enumerate(models):
            rng = stream(client, number)

            def loss(x: Tensor, y: Tensor, model: nn.Module = model) -> Tensor:
                return cross_entropy(model(x), y)

            for _ in range(EPOCHS):
                descend(model[2:].parameters(), records(client), rng, loss, HEAD_EPOCHS)
                descend(model[:2].parameters(), records(client), rng, loss, 1)
        trained = [vector(model) for model in models]
        mean = np.mean([vector(model[:2]) for model in models], axis=0, dtype=np.float64)
        for model in models:
            nn.utils.vector_to_parameters(torch.tensor(mean, dtype=torch.float32), model[:2].parameters())
    return mean.astype(np.float32), trained


def pfedme(here: Problem) -> tuple[Vector, list[Vector]]:
    """The authors' optimizer: 0.001 theta is in each gradient."""
    shared = here.initial
    for number in range(1, ROUNDS + 1):
        found, own = [], []
        for client in range(CLIENTS):
            model, rng = of_vector(shared, (8,)), stream(client, number)
            local = [entry.detach().clone() for entry in model.parameters()]
            for _ in range(EPOCHS):
                for x, y in batches(*records(client), rng, BATCH):
                    for _ in range(STEPS):
                        model.zero_grad()
                        cross_entropy(model(x), y).backward()
                        with torch.no_grad():
                            for p, w in zip(model.parameters(), local, strict=True):
                                assert p.grad is not None
                                p.sub_(RATE * (p.grad + LAMDA * (p - w) + DECAY * p))
                    with torch.no_grad():
                        for p, w in zip(model.parameters(), local, strict=True):
                            w.sub_(LAMDA * ETA * (w - p))
            own.append(vector(model))
            found.append(torch.cat([entry.flatten() for entry in local]).numpy())
        shared = np.mean(found, axis=0)
    return shared, own


def fltrust(here: Problem) -> tuple[Vector, list[Vector]]:
    """Cao et al., Algorithm 2, with real trusts."""
    shared = here.initial

    def update(of: tuple[Any, Any], rng: np.random.Generator) -> NDArray[np.float64]:
        model = of_vector(shared, (8,))
        descend(model.parameters(), of, rng, lambda x, y: cross_entropy(model(x), y), size=ROOT + RECORDS)
        return vector(model).astype(np.float64) - shared

    for number in range(1, ROUNDS + 1):
        root = here.server_x[:ROOT], here.server_y[:ROOT]
        own = update(root, np.random.default_rng(0))
        theirs = [update(records(client), stream(client, number)) for client in range(CLIENTS)]
        norm = np.linalg.norm(own)
        trust = [max(0.0, float(one @ own / np.linalg.norm(one) / norm)) for one in theirs]
        scaled = sum(t * norm * one / np.linalg.norm(one) for t, one in zip(trust, theirs, strict=True))
        shared = (shared + scaled / sum(trust)).astype(np.float32)
    assert max(trust) > 1.3 * min(trust), "weights differ"
    return shared, []


def fedproto(here: Problem) -> tuple[Vector, list[Vector]]:
    """With real sums of features. Mean and distance are those of the protocol's docstring."""
    models, means = [of_vector(here.initial, (8,)) for _ in range(CLIENTS)], torch.full((3, 8), torch.nan)
    for number in range(1, ROUNDS + 1):
        sums, counts = np.zeros((3, 8)), np.zeros((3, 1))
        for client, model in enumerate(models):

            def loss(x: Tensor, y: Tensor, model: nn.Sequential = model, means: Tensor = means) -> Tensor:
                phi = model[:2](x)
                # Before round 1 no class has a prototype.
                apart = (phi - means[y]).square().sum(1).mean() if means.isfinite().all() else 0.0
                return cross_entropy(model[2](phi), y) + apart

            descend(model.parameters(), records(client), stream(client, number), loss)
            x, y = records(client)
            phi = model[:2](torch.from_numpy(x)).detach().numpy().astype(np.float64)
            np.add.at(sums, y, phi)
            np.add.at(counts, y, 1.0)
        means = torch.tensor(sums / counts, dtype=torch.float32)
    with_one = np.hstack([np.ones((3, 1)), sums / counts]).astype(np.float32)
    return with_one.ravel(), [vector(model) for model in models]


CASES: Mapping[str, tuple[Any, ...]] = {
    "fedrep": ("authors", f"head_epochs = {HEAD_EPOCHS}", fedrep, "model"),
    "pfedme": (
        "authors",
        f"lamda = {LAMDA}\npersonal_steps = {STEPS}\neta = {ETA}",
        pfedme,
        "personal",
    ),
    "fltrust": ("paper", f"fraction = 1.0\nroot = {ROOT}", fltrust, ""),
    "fedproto": ("paper", "", fedproto, "model"),
}


@every("name", CASES)
def test_three_rounds_under_a_preset_are_those_of_a_transcription(name: str) -> None:
    preset, keys, transcribed, of_client = CASES[name]
    here = tiny_problem(clients=CLIENTS, hidden=(8, 7) if name == "fedrep" else (8,), learning_rate=RATE)
    if name == "fltrust":
        x, y = records(9, ROOT + 5)
        one_batch = replace(here.local, batch_size=ROOT + RECORDS)
        here = replace(here, server_x=x, server_y=y, local=one_batch)
    shared, own = transcribed(here)
    state, kept = played(arm_of(name, preset, keys), here)
    np.testing.assert_allclose(state.broadcast, shared, atol=1e-5, rtol=0)
    for client, model in enumerate(own):
        np.testing.assert_allclose(kept[client][of_client], model, atol=1e-5, rtol=0)
    without, _ = played(arm_of(name, preset, keys + "\n" + WITHOUT[name]), here)
    assert np.abs(without.broadcast - shared).max() > 1e-5, "the preset changes the model"


WITHOUT = {
    "fedrep": "alternating = false",
    "pfedme": "local = { weight_decay = 0.0 }",
    "fltrust": "mean_weight = 4",
    "fedproto": 'clip = { kind = "none" }',
}
"""The arm's own key in the place of the preset's."""
