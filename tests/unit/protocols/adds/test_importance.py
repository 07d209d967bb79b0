"""What units matter: gammas, activations and relevance."""

from __future__ import annotations

import numpy as np
import torch
from support.every import every
from support.supernets import CNN, MLP, context, supernet

from securefl.protocols.adds.importance import Criterion, importance
from securefl.training.losses import records


@every("model", [CNN, MLP])
@every("criterion", ["slim", "activation", "lrp"])
def test_importance_is_from_0_to_1_and_a_dead_unit_has_none(model: object, criterion: Criterion) -> None:
    net = supernet(model)  # type: ignore[arg-type]
    own = context(net)
    module = net.problem.module(net.problem.initial)
    last = net.sampled[-1]
    with torch.no_grad():
        module.get_submodule(last.name).weight[2] = 0.0  # type: ignore[index, operator, union-attr]
        module.get_submodule(last.name).bias[2] = -1.0  # type: ignore[index, operator, union-attr]
    found = importance(criterion, net, module, *records(own.x, own.y, "cross_entropy"))
    for layer, values in zip(net.sampled, found, strict=True):
        assert values.shape == (layer.units,)
        assert values.dtype == np.float64
        assert values.max() == 1
        assert values.min() >= -1e-6
    assert found[-1][2] == 0


def test_slim_is_the_gammas() -> None:
    net = supernet(CNN)
    own = context(net)
    module = net.problem.module(net.problem.initial)
    with torch.no_grad():
        module.norm1.weight.copy_(torch.tensor([1.0, -4.0, 2.0, 0.0]))  # type: ignore[union-attr, operator]
    found = importance("slim", net, module, *records(own.x, own.y, "cross_entropy"))
    np.testing.assert_allclose(found[0], [0.25, 1.0, 0.5, 0.0])


def test_relevance_by_hand() -> None:
    """z+ through two dense layers, for one record: each unit's share of the positive contributions."""
    net = supernet(MLP)
    own = context(net, records=1)
    module = net.problem.module(net.problem.initial).eval()
    values = [np.asarray(p.detach(), np.float64) for p in module.parameters()]
    x = own.x.reshape(-1).astype(np.float64)
    first = np.maximum(values[0] @ x + values[1], 0)
    second = np.maximum(values[2] @ first + values[3], 0)

    def below(given: np.ndarray, weight: np.ndarray, relevance: np.ndarray) -> np.ndarray:
        positive = np.maximum(weight * given, 0)
        return (positive / (positive.sum(1, keepdims=True) + 1e-9)).T @ relevance

    top = below(second, values[4], np.eye(10)[own.y[0]])
    under = below(first, values[2], top)
    found = importance("lrp", net, module, *records(own.x, own.y, "cross_entropy"))
    np.testing.assert_allclose(found[1], top / top.max(), atol=1e-5)
    np.testing.assert_allclose(found[0], under / under.max(), atol=1e-5)
