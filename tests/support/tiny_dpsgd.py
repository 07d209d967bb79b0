"""Private training of small models, noised by a key, and models of unusual shape."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.training import to_vector
from securefl.training.dpsgd import train_privately
from securefl.training.private_steps import DPSGD
from support.tiny_training import Arrays, small_model

SETTINGS: dict[str, Any] = {
    "clip_norm": 1.0,
    "noise_multiplier": 1.0,
    "sampling_rate": 0.5,
    "expected_batch": 8,
    "steps": 3,
    "optimizer": "sgd",
    "learning_rate": 0.1,
}


def config(**changes: Any) -> DPSGD:
    return DPSGD(**(SETTINGS | changes))


def keyed(key: bytes = b"k") -> Source:
    return Source(SecretKey(key * 32))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return make()


def trained(
    settings: DPSGD, data: Arrays, *, start: nn.Module | None = None, source: Source | None = None
) -> NDArray[np.float32]:
    model = copy.deepcopy(start or small_model())
    train_privately(model, *data, settings, "cross_entropy", source or keyed())
    return to_vector(model)


def images(shape: tuple[int, ...], n: int) -> Arrays:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, *shape)).astype(np.float32), rng.integers(10, size=n)


class Silent(Source):
    """Samples and draws masks from its key as ever, and takes the noise away."""

    def normal(self, count: int) -> NDArray[np.float64]:
        return np.zeros(count)


def flat(model: nn.Module) -> NDArray[np.float64]:
    """The values of a model that are trained."""
    free = [parameter.detach().reshape(-1) for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat(free).double().numpy()


def summed(
    model: nn.Module, x: Any, y: Any, *, clip_norm: float, key: bytes = b"k", loss: Any = "cross_entropy"
) -> NDArray[np.float64]:
    """The clipped sum of all records, read off one noiseless step of the real training."""
    before, kept = flat(model), copy.deepcopy(model.state_dict())
    settings = config(
        clip_norm=clip_norm, sampling_rate=1.0, steps=1, learning_rate=1.0, expected_batch=2.0**-10
    )
    train_privately(model, x, y, settings, loss, Silent(SecretKey(key * 32)))
    found = (before - flat(model)) * 2.0**-10
    model.load_state_dict(kept)
    return found


def summed_by_hand(
    model: nn.Module, x: Any, y: Any, *, clip_norm: float, loss: Callable[[Tensor, Tensor], Tensor]
) -> NDArray[np.float64]:
    """The clipped sum by a loop over batches of one. `loss` is that of such a batch."""
    made = copy.deepcopy(model).train()
    free = [parameter for parameter in made.parameters() if parameter.requires_grad]
    total = np.zeros(sum(one.numel() for one in free))
    for at in range(len(x)):
        record, label = torch.from_numpy(x[at : at + 1].copy()), torch.from_numpy(y[at : at + 1])
        slopes = torch.autograd.grad(
            loss(made(record), label).sum(), free, allow_unused=True, materialize_grads=True
        )
        gradient = torch.cat([slope.reshape(-1) for slope in slopes]).double().numpy()
        total += gradient * min(1.0, clip_norm / max(float(np.linalg.norm(gradient)), 1e-30))
    return total


class Twice(nn.Module):
    """A layer that is used twice, and another whose weight is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.same, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.same.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.same(torch.tanh(self.first(torch.tanh(self.first(x))))))


class Own(nn.Module):
    """A layer of a kind that no sampler knows, with a gate of no dimension and a layer of a known kind."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)
        self.gate = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.scale * x)) * self.gate
