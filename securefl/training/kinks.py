"""Privacy audit with records on the kink of a ReLU: they flip together if a result depends on the batch.

The number of rows in a product may change a float kernel, and thereby the last bits of every row. The
pre-activation of a crafted record is 0 with one number of rows, and just above 0 with one row more. The unit
switches from off to on, and the clipped gradient turns by a right angle. Adding one record then moves the sum
by the turns of all records, and not by the clipping norm alone (specification of DP, 2.13).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from dp_accounting import DpEvent, GaussianDpEvent
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from securefl.accounting.composition import compose
from securefl.dp.auditing import Bound, proved
from securefl.dp.clipping import to_grid
from securefl.dp.noise import Source
from securefl.training.canaries import one_step
from securefl.training.chunks import body_features
from securefl.training.devices import CPU, full_precision, seeded
from securefl.training.dpsgd import train_privately
from securefl.training.heads import Activation
from securefl.training.private_steps import DPSGD
from securefl.training.vector import load_vector, to_vector

UNITS: Final = 64
_CLASSES: Final = 10
_MOST: Final = 48
"""The most records on a kink that the search considers."""
_OFF: Final = 1e3
"""The distance of the other units' pre-activations below 0. So they are off for all last bits."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kink:
    """A model, records x (m, *shape) on a kink of it, labels y (m,), and one more record (1, *shape)."""

    model: nn.Module
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    more: NDArray[np.float32]

    def records(self, *, added: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        """The records and labels. The added record comes first, so it changes the places of the others."""
        if not added:
            return self.x, self.y
        return np.concatenate([self.more, self.x]), np.concatenate([np.zeros(1, np.int64), self.y])


def crafted(
    body: Callable[[], nn.Module],
    shape: tuple[int, ...],
    shift: Callable[[nn.Module], Tensor],
    seed: int = 0,
    device: torch.device = CPU,
) -> Kink | None:
    """Search for the largest number of records of `shape` that flip if one more record is in their batch.

    body: makes the layers before the ReLU, from (n, *shape) to (n, UNITS). shift: returns their last layer's
    bias (UNITS,). device: the device of the model, whose kernels are tested.

    Returns None if the kernels of `body` do not change with the number of rows.
    """
    generator = torch.Generator().manual_seed(seed)
    with seeded(seed, CPU):
        front, head = body(), nn.Linear(UNITS, _CLASSES)
    record = torch.randn(1, *shape, generator=generator).to(device)
    with torch.no_grad(), full_precision(device):
        head.weight.copy_(10 * torch.randn(head.weight.shape, generator=generator))
        front, head = front.to(device), head.to(device)
        found = _flipping(front, record, shift(front))
    if found is None:
        return None
    return Kink(
        model=nn.Sequential(front, nn.ReLU(), head),
        x=record.expand(found, *shape).cpu().numpy().copy(),
        y=np.zeros(found, np.int64),
        more=-record.cpu().numpy(),
    )


def _flipping(front: nn.Module, record: Tensor, shift: Tensor) -> int | None:
    """The number of rows of `record` that flip with one row more. Sets `shift` so that one unit flips."""

    def passed(rows: int) -> Tensor:
        values: Tensor = front(record.expand(rows, *record.shape[1:]).contiguous())
        return values

    for rows in range(_MOST, 0, -1):
        shift.zero_()
        fewer, more = passed(rows), passed(rows + 1)
        for unit in torch.nonzero((fewer != more[:rows]).all(0)).flatten().tolist():
            shift.fill_(-_OFF)
            # The smaller of the two values becomes 0, where a ReLU is off. The larger one is just above 0.
            shift[unit] = -min(fewer[0, unit], more[-1, unit])
            before, after = passed(rows)[:, unit] > 0, passed(rows + 1)[:, unit] > 0
            if before.all() != after.all() and before.any() == before.all() and after.any() == after.all():
                return rows
    return None


# The canary ------------------------------------------------------------------------------------------

Train = Callable[..., DpEvent]
Features = Callable[[nn.Module, NDArray[np.float32], Activation], NDArray[np.float64]]
_FINE: Final = 2**10
"""The number of steps of the features' grid from 0 to 1."""


def dense(inputs: int, device: torch.device = CPU) -> Kink | None:
    """Records of `inputs` numbers on the kink of a dense layer."""
    return crafted(
        lambda: nn.Linear(inputs, UNITS),
        (inputs,),
        lambda front: front.get_parameter("bias"),
        device=device,
    )


def audit(
    config: DPSGD,
    *,
    delta: float,
    runs: int = 400,
    inputs: int = 784,
    train: Train = train_privately,
    device: torch.device = CPU,
) -> Bound:
    """The claimed epsilon and a lower bound for one step on crafted records, with and without one more.

    runs: the number of noised steps for each of the two data sets. train: the audited function. device: the
    device whose kernels are audited. If no kernel changes with the number of rows, no record can be crafted:
    the bound is 0, and the audit passes.
    """
    step = one_step(config, sampling_rate=1.0)
    claim = GaussianDpEvent(config.noise_multiplier)
    kink = dense(inputs, device)
    if kink is None:
        return Bound(delta=delta, event=claim, lower=0.0)
    # With almost no noise, two steps give the direction in which the added record moves the sum. The test
    # projects on that direction.
    quiet = replace(step, noise_multiplier=1e-4)
    direction = _stepped(kink, quiet, train, added=True) - _stepped(kink, quiet, train, added=False)
    direction /= np.linalg.norm(direction)
    null, other = (
        np.array([_stepped(kink, step, train, added=added) @ direction for _ in range(runs)])
        for added in (False, True)
    )
    return Bound(delta=delta, event=claim, lower=proved(null, other, delta))


def audit_features(
    *, delta: float, inputs: int = 784, read: Features = body_features, device: torch.device = CPU
) -> Bound:
    """The claimed and the true epsilon of one added record, for sums of unit-norm features with noise 1.

    No noise is drawn: the multiplier is divided by the ratio of the sum's change to its sensitivity. read:
    the audited function.
    """
    claim = GaussianDpEvent(1.0)
    kink = dense(inputs, device)
    if kink is None:
        return Bound(delta=delta, event=claim, lower=0.0)
    before, after = (
        to_grid(read(kink.model, kink.records(added=added)[0], _unit_norm), 1 / _FINE, _FINE).sum(axis=0)
        for added in (False, True)
    )
    moved = float(np.linalg.norm(after - before)) / _FINE
    lower = compose({GaussianDpEvent(1 / moved): 1}, delta) if moved else 0.0
    return Bound(delta=delta, event=claim, lower=lower)


def _unit_norm(features: Tensor) -> Tensor:
    return normalize(features, dim=1)


def _stepped(kink: Kink, step: DPSGD, train: Train, *, added: bool) -> NDArray[np.float64]:
    """The noised sum of one step of `train`, divided by the clipping norm."""
    start = to_vector(kink.model, statistics=True)
    train(kink.model, *kink.records(added=added), step, "cross_entropy", Source())
    moved = start.astype(np.float64) - to_vector(kink.model, statistics=True)
    load_vector(kink.model, start)
    return moved
