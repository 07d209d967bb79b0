"""Flower's quickstart in torch, retyped small: batch norm and frozen parts in a round over hidden sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.flower_apps import CLIENTS, COUNTS, MASKED, UPDATES, grid_of, plain, secured
from torch import nn

from securefl.deployment.local import LocalDeployment
from securefl.training import local_statistics, trained_state


def normed() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(48, 2))


def frozen() -> nn.Module:
    model = normed()
    for layer in (model[0], model[1]):
        layer.requires_grad_(False)
    return local_statistics(model)


def whole(model: nn.Module) -> dict[str, Any]:
    return model.state_dict()


def trainer(made: Any, sent: Any, number: int) -> ClientApp:
    """The quickstart's client: load the arrays, one pass of SGD, send the state dict."""
    app = ClientApp()
    rng = np.random.default_rng(number)
    x = torch.from_numpy(rng.normal(size=(16, 1, 4, 4)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 2, 16))

    def loaded(message: Message) -> nn.Module:
        model: nn.Module = made()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
        return model

    @app.train()
    def _(message: Message, context: Any) -> Message:
        model = loaded(message).train()
        optimizer = torch.optim.SGD([own for own in model.parameters() if own.requires_grad], lr=0.1)
        for at in range(0, 16, 8):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[at : at + 8]), y[at : at + 8])
            loss.backward()
            optimizer.step()
        metrics = MetricRecord({"num-examples": COUNTS[number], "loss": float(loss.detach())})
        return Message(RecordDict({"arrays": ArrayRecord(sent(model)), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def _(message: Message, context: Any) -> Message:
        right = (loaded(message).eval()(x).argmax(1) == y).float().mean()
        metrics = MetricRecord({"num-examples": COUNTS[number], "accuracy": float(right)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize(("made", "sent"), [(normed, whole), (frozen, trained_state)])
def test_the_quickstart_ends_over_sums_where_it_ends_without(made: Any, sent: Any, tmp_path: Path) -> None:
    apps = [trainer(made, sent, number) for number in range(CLIENTS)]

    def started(own: FedAvg, grid: Any) -> dict[str, Any]:
        result = own.start(
            grid, ArrayRecord(sent(made())), num_rounds=1, train_config=ConfigRecord({"lr": 0.1})
        )
        return {name: array.numpy() for name, array in result.arrays.items()}

    expected, own = started(FedAvg(), plain(apps)), FedAvg()
    with LocalDeployment(MASKED, UPDATES, clients=CLIENTS, folder=tmp_path) as house:
        found = started(own, grid_of(house, own, secured(tmp_path, apps)))
    assert {*found} == {*sent(made())}
    before = {name: one.numpy() for name, one in sent(made()).items()}
    # The count of batches, which this batch norm never reads, stays at each client.
    found.pop("1.num_batches_tracked", None)
    for name, values in found.items():
        assert values.dtype == before[name].dtype, name
        np.testing.assert_allclose(values, expected[name], atol=1e-5, rtol=0)
        assert (values != before[name]).any(), name
