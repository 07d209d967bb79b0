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
from reference.three_rounds import descend, of_vector, records
from support.every import every
from support.tiny_problem import tiny_problem
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from securefl.algorithm import State
from securefl.algorithm.clients import ClientContext, Device
from securefl.protocols.fedper import FedPer
from securefl.protocols.fedrep import FedRep
from securefl.protocols.lg_fedavg import LGFedAvg

CLIENTS, RECORDS, HEAD_EPOCHS = 3, 13, 3
PROTOCOLS: dict[str, Any] = {
    "fedper": FedPer(),
    "lg_fedavg": LGFedAvg(),
    "fedrep": FedRep(head_epochs=HEAD_EPOCHS),
}


def transcribed(name: str, initial: NDArray[np.float32], at: Literal["own", "averaged"]) -> list[Any]:
    """The models after one round of all clients."""
    models = [of_vector(initial) for _ in range(CLIENTS)]
    for client, model in enumerate(models):
        rng, own = np.random.default_rng(client), records(client, RECORDS)

        def loss(x: Tensor, y: Tensor, model: nn.Module = model) -> Tensor:
            return cross_entropy(model(x), y)

        if name == "fedrep":
            descend(model[2].parameters(), own, rng, loss, HEAD_EPOCHS)
            descend(model[0].parameters(), own, rng, loss)
        else:
            descend(model.parameters(), own, rng, loss)
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
        x, y = records(client, RECORDS)
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
        x, y = map(torch.from_numpy, records(client, RECORDS))
        losses.append(float(cross_entropy(model(x), y).detach()))
        right += int((model(x).argmax(1) == y).sum())
    assert abs(found.loss - np.mean(losses)) <= 1e-5
    assert found.accuracy == right / (CLIENTS * RECORDS)
