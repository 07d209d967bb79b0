"""FedRep, pFedMe, FLTrust and FedProto as their authors' codes or papers have them, in torch's own loop.

Three rounds of all clients under the preset that says so (`three_rounds`), and of FedRep and pFedMe as the
packaged tables have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from reference.three_rounds import (
    CLIENTS,
    EPOCHS,
    RATE,
    ROUNDS,
    Round,
    Vector,
    batches,
    descend,
    of_vector,
    played,
    records,
    stream,
    vector,
)
from support.every import every
from support.tiny_problem import tiny_problem
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from securefl.study.config import parse
from securefl.training import Problem

HEAD_EPOCHS, LAMDA, STEPS, ETA, DECAY, ROOT = 3, 2.0, 4, 0.1, 0.001, 11
WHOLE = 32
"""Of a batch with all records of a client."""


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


def played_as(arm: Any, here: Problem) -> Round:
    """The last round of an arm with its preset's local training."""
    if arm.local is not None:
        here = replace(here, local=replace(arm.local, epochs=EPOCHS, batch_size=here.local.batch_size))
    return played(arm.options.build(here))[-1]


# Transcriptions -----------------------------------------------------------------------------------


def fedrep(here: Problem, turns: int = EPOCHS, head_rate: float = 1.0) -> tuple[Vector, list[Vector]]:
    """FedLog's authors': two layers stay, and the head's epochs come before each epoch of the body.

    turns: how often the head trains. With one, all epochs of the body follow.
    """
    models = [of_vector(here.initial, (8, 7)) for _ in range(CLIENTS)]
    for number in range(1, ROUNDS + 1):
        for client, model in enumerate(models):
            rng = stream(client, number)

            def loss(x: Tensor, y: Tensor, model: nn.Module = model) -> Tensor:
                return cross_entropy(model(x), y)

            own = records(client)
            for _ in range(turns):
                descend(model[2:].parameters(), own, rng, loss, HEAD_EPOCHS, rate=head_rate * RATE)
                descend(model[:2].parameters(), own, rng, loss, EPOCHS // turns)
        trained = [vector(model) for model in models]
        mean = np.mean([vector(model[:2]) for model in models], axis=0, dtype=np.float64)
        for model in models:
            nn.utils.vector_to_parameters(torch.tensor(mean, dtype=torch.float32), model[:2].parameters())
    return mean.astype(np.float32), trained


def pfedme(here: Problem, decay: float = DECAY) -> tuple[Vector, list[Vector]]:
    """The authors' optimizer: 0.001 theta is in each gradient. The paper's has no decay."""
    shared = here.initial
    for number in range(1, ROUNDS + 1):
        found, own = [], []
        for client in range(CLIENTS):
            model, rng = of_vector(shared), stream(client, number)
            local = [entry.detach().clone() for entry in model.parameters()]
            for _ in range(EPOCHS):
                for x, y in batches(*records(client), rng):
                    for _ in range(STEPS):
                        model.zero_grad()
                        cross_entropy(model(x), y).backward()
                        with torch.no_grad():
                            for p, w in zip(model.parameters(), local, strict=True):
                                assert p.grad is not None
                                p.sub_(RATE * (p.grad + LAMDA * (p - w) + decay * p))
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
        model = of_vector(shared)
        descend(model.parameters(), of, rng, lambda x, y: cross_entropy(model(x), y), size=WHOLE)
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
    models, means = [of_vector(here.initial) for _ in range(CLIENTS)], torch.full((3, 8), torch.nan)
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


OF_PFEDME = f"lamda = {LAMDA}\npersonal_steps = {STEPS}\neta = {ETA}"
CASES: Mapping[str, tuple[Any, ...]] = {
    "fedrep": ("authors", f"head_epochs = {HEAD_EPOCHS}", fedrep, "model"),
    "fedrep, in tables": (
        "paper",
        f"head_epochs = {HEAD_EPOCHS}\nlayers = 2\nhead_rate = 5.0",
        partial(fedrep, turns=1, head_rate=5.0),
        "model",
    ),
    "pfedme": ("authors", OF_PFEDME, pfedme, "personal"),
    "pfedme, in tables": ("paper", OF_PFEDME, partial(pfedme, decay=0.0), "personal"),
    "fltrust": ("paper", f"fraction = 1.0\nroot = {ROOT}", fltrust, ""),
    "fedproto": ("paper", "", fedproto, "model"),
}


@every("name", CASES)
def test_three_rounds_under_a_preset_are_those_of_a_transcription(name: str) -> None:
    (preset, keys, transcribed, of_client), protocol = CASES[name], name.partition(",")[0]
    here = tiny_problem(clients=CLIENTS, hidden=(8, 7) if protocol == "fedrep" else (8,), learning_rate=RATE)
    if name == "fltrust":
        x, y = records(9, ROOT + 5)
        one_batch = replace(here.local, batch_size=WHOLE)
        here = replace(here, server_x=x, server_y=y, local=one_batch)
    shared, own = transcribed(here)
    found = played_as(arm_of(protocol, preset, keys), here)
    np.testing.assert_allclose(found.state.broadcast, shared, atol=1e-5, rtol=0)
    for client, model in enumerate(own):
        np.testing.assert_allclose(found.kept[client][of_client], model, atol=1e-5, rtol=0)
    without = played_as(arm_of(protocol, preset, keys + "\n" + WITHOUT[name]), here).state
    assert np.abs(without.broadcast - shared).max() > 1e-5, "the preset changes the model"


WITHOUT = {
    "fedrep": "alternating = false",
    "fedrep, in tables": "alternating = true",
    "pfedme": "local = { weight_decay = 0.0 }",
    "pfedme, in tables": "local = { weight_decay = 0.001 }",
    "fltrust": "mean_weight = 4",
    "fedproto": 'clip = { kind = "none" }',
}
"""The arm's own key in the place of the preset's."""
