"""One round of FedPer, LG-FedAvg and FedRep in torch's own loop, as FedLog's authors test the models.

Their code tests each client's model as it was trained, before the shared layers are averaged. Here
`[measures] at = "own"` does, and "averaged" tests the model under the layers that the server sends next.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from support.every import every
from support.tiny_problem import tiny_problem
from torch import nn
from torch.nn.functional import cross_entropy

from securefl.algorithm import State
from securefl.algorithm.clients import ClientContext, Device
from securefl.protocols.fedper import FedPer
from securefl.protocols.fedrep import FedRep
from securefl.protocols.lg_fedavg import LGFedAvg

CLIENTS, RECORDS, BATCH, EPOCHS, HEAD_EPOCHS, RATE = 3, 13, 5, 2, 3, 0.1
PROTOCOLS: dict[str, Any] = {
    "fedper": FedPer(),
    "lg_fedavg": LGFedAvg(),
    "fedrep": FedRep(head_epochs=HEAD_EPOCHS),
}


def records(client: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rng = np.random.default_rng(40 + client)
    return rng.normal(size=(RECORDS, 6)).astype(np.float32), rng.integers(3, size=RECORDS)


def of_vector(vector: NDArray[np.float32]) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.utils.vector_to_parameters(torch.from_numpy(vector.copy()), model.parameters())
    return model


def descend(model: nn.Module, trained: Any, client: int, rng: np.random.Generator, epochs: int) -> None:
    x, y = map(torch.from_numpy, records(client))
    optimizer = torch.optim.SGD(list(trained), lr=RATE)
    for _ in range(epochs):
        order = rng.permutation(RECORDS)
        for batch in np.array_split(order, range(BATCH, RECORDS, BATCH)):
            optimizer.zero_grad()
            cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()


def transcribed(name: str, initial: NDArray[np.float32], at: Literal["own", "averaged"]) -> list[Any]:
    """The models after one round of all clients."""
    models = [of_vector(initial) for _ in range(CLIENTS)]
    for client, model in enumerate(models):
        rng = np.random.default_rng(client)
        if name == "fedrep":
            descend(model, model[2].parameters(), client, rng, HEAD_EPOCHS)
            descend(model, model[0].parameters(), client, rng, EPOCHS)
        else:
            descend(model, model.parameters(), client, rng, EPOCHS)
    if at == "averaged":
        shared = [model[2 if name == "lg_fedavg" else 0] for model in models]
        with torch.no_grad():
            for layers in zip(*(layer.parameters() for layer in shared), strict=True):
                mean = torch.stack(layers).mean(0)
                for layer in layers:
                    layer.copy_(mean)
    return models


@every("at", ["own", "averaged"])
@every("name", PROTOCOLS)
def test_a_round_is_tested_as_a_transcription_tests_it(name: str, at: Literal["own", "averaged"]) -> None:
    here = replace(tiny_problem(), tested_at=at)
    algorithm = PROTOCOLS[name].build(here)
    (update,), start = algorithm.contributions, algorithm.start().broadcast
    steps, devices = [], []
    for client in range(CLIENTS):
        x, y = records(client)
        rng = np.random.default_rng(client)
        value = update.compute(
            ClientContext(client=client, round=1, x=x, y=y, broadcast=start, public={}, kept={}, rng=rng)
        )
        steps.append(value.clear)
        devices.append(Device(x=x, y=y, kept=value.new_state))
    mean = np.mean(steps, axis=0, dtype=np.float64)
    found = algorithm.evaluate(State((start + mean).astype(np.float32)), devices)

    losses, right = [], 0
    for client, model in enumerate(transcribed(name, here.initial, at)):
        x, y = map(torch.from_numpy, records(client))
        losses.append(float(cross_entropy(model(x), y).detach()))
        right += int((model(x).argmax(1) == y).sum())
    assert abs(found.loss - np.mean(losses)) <= 1e-5
    assert found.accuracy == right / (CLIENTS * RECORDS)
