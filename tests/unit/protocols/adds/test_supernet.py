"""Subnets are slices of the supernet: what they compute, what they hold and what they cost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support.every import every
from support.supernets import CNN, MLP, problem, sliced, supernet
from torch import nn

from securefl.core.errors import ConfigError
from securefl.protocols.adds.subnet_search import fixed_masks, masked
from securefl.protocols.adds.supernet import Supernet
from securefl.training import ModelConfig
from securefl.training.task import Problem
from securefl.training.vector import to_vector


class Depthwise(nn.Module):
    """A convolution, a depthwise one behind it, and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)
        self.norm2 = nn.BatchNorm2d(6)
        self.fc1 = nn.Linear(6 * 64, 5)
        self.fc2 = nn.Linear(5, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm2(self.conv2(torch.relu(self.conv1(x)))))
        out: torch.Tensor = self.fc2(torch.relu(self.fc1(x.flatten(1))))
        return out


class ClientFunction(ModelConfig):
    """Another model than the configured ones."""

    def build(self, shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
        return Depthwise()


def nets() -> dict[str, Supernet]:
    kinds = {"lenet5": 28, "fedlog_cnn": 28, "fedcor_cnn": 20}
    found = {kind: supernet(ModelConfig(kind=kind), size=size) for kind, size in kinds.items()}  # type: ignore[arg-type]
    return found | {
        "adds_cnn": supernet(CNN),
        "mlp": supernet(MLP),
        "depthwise": supernet(ClientFunction(kind="mlp")),
    }


NETS = nets()


@every("name", sorted(NETS))
def test_a_sliced_forward_is_the_masked_forward(name: str) -> None:
    """To the rounding of a sum over fewer terms, in double precision; with and without most of the units."""
    net = NETS[name]
    rng = np.random.default_rng(5)
    start = (net.problem.initial + 0.1 * rng.standard_normal(len(net.problem.initial))).astype(np.float32)
    start = np.abs(start)  # running variances are positive
    x = torch.rand(3, *net.problem.shape, dtype=torch.float64)
    for share in (0.5, 1.0):
        units = rng.random(net.units) < share
        for layer in net.sampled:
            units[layer.own.start] = True
        part = sliced(net, start, units).double().eval()
        whole = net.problem.module(start).double().eval()
        with torch.no_grad(), masked(whole, net, partial(fixed_masks, net, units, scaled=False)):
            expected = whole(x)
        with torch.no_grad():
            torch.testing.assert_close(part(x), expected, rtol=1e-12, atol=1e-12)
        whole.float()


@every("name", sorted(NETS))
def test_a_subnet_holds_the_entries_of_its_groups_and_costs_what_it_holds(name: str) -> None:
    net = NETS[name]
    units = net.whole
    units[1::2] = False
    start = np.arange(len(net.problem.initial), dtype=np.float32)
    part = sliced(net, start, units)
    entries = net.entries(net.kept_groups(units))
    np.testing.assert_array_equal(to_vector(part, statistics=True), start[entries])
    assert net.parameters(units) == sum(p.numel() for p in part.parameters())
    assert net.parameters(net.whole) == sum(p.numel() for p in net.problem.module(start).parameters())
    assert net.macs(units) == counted(part, net.problem)
    assert net.macs(net.whole) == counted(net.problem.module(start), net.problem)


def counted(model: nn.Module, of: Problem) -> int:
    """Multiplications, by the shapes that convolutions and dense layers put out."""
    found: list[int] = []

    def note(module: nn.Module, _given: object, came: torch.Tensor) -> None:
        found.append(module.weight.numel() // module.weight.shape[0] * came[0].numel())

    handles = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    model.eval()(torch.rand(1, *of.shape))
    for handle in handles:
        handle.remove()
    return sum(found)


def test_the_published_supernet_has_the_published_size() -> None:
    """Table II: 5.68M parameters, 34.68M multiplications."""
    net = supernet(ModelConfig(kind="adds_cnn"), size=28, outputs=62)
    assert net.parameters(net.whole) == pytest.approx(5.68e6, rel=2e-3)
    assert net.macs(net.whole) == pytest.approx(34.68e6, rel=2e-2)
    assert net.units == 64 + 128 + 256 + 1024 + 1024


def test_recurrent_layers_and_embeddings_are_whole() -> None:
    """Units are those of the dense layer behind them; every subnet has all the rest."""
    text = ModelConfig(kind="char_lstm", width=0.0625)
    net = Supernet(replace(problem(text), shape=(12,)))
    assert [(layer.name, layer.units) for layer in net.sampled] == [("fc1", 16)]
    units = net.whole
    units[3:] = False
    part, start = sliced(net, net.problem.initial, units), net.problem.module(net.problem.initial)
    x = torch.randint(0, 10, (4, 12))
    with torch.no_grad(), masked(start, net, partial(fixed_masks, net, units, scaled=False)):
        torch.testing.assert_close(part(x), start(x))
    lstm = sum(p.numel() for name, p in start.named_parameters() if name.startswith("lstm.weight"))
    assert net.macs(units) == 12 * lstm + 32 * 3 + 3 * 10
    assert net.parameters(net.whole) - net.parameters(units) == 13 * (32 + 1 + 10)


def test_an_empty_subnet_is_refused() -> None:
    net = supernet(MLP)
    units = net.whole
    units[net.sampled[1].own] = False
    with pytest.raises(ConfigError, match="a unit of every layer"):
        sliced(net, net.problem.initial, units)


def test_a_model_that_is_no_chain_is_refused() -> None:
    with pytest.raises(ConfigError, match="each read the one before"):
        supernet(ModelConfig(kind="shufflenet_v2"), size=32).layers  # noqa: B018
    with pytest.raises(ConfigError, match="a hidden layer to sample"):
        supernet(ModelConfig(kind="mlp", hidden=())).layers  # noqa: B018
