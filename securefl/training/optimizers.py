"""SGD and Adam on one flat vector of parameters.

They make the same updates as torch.optim (a test compares them), in a handful of operations whatever the
number of layers. On the GasTurbine MLP, on one thread, a training step takes about 1.3 times less than with
torch's fused optimizers, and up to 1.9 times less than with its others. From LeNet-5 on there is no
difference. An object is the state of one `train`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(kw_only=True)
class SGD:
    """w <- w - rate * v,  v <- momentum * v + g,  starting from v = g."""

    rate: float
    momentum: float
    velocity: Tensor | None = field(default=None, init=False)

    def step(self, values: Tensor, gradient: Tensor) -> None:
        if self.momentum:
            if self.velocity is None:
                self.velocity = gradient.clone()
            else:
                torch.add(gradient, self.velocity, alpha=self.momentum, out=self.velocity)
            gradient = self.velocity
        values.sub_(gradient, alpha=self.rate)


@dataclass(kw_only=True)
class Adam:
    """Kingma and Ba (ICLR 2015), algorithm 1, with betas 0.9 and 0.999 and epsilon 1e-8."""

    rate: float
    steps: int = field(default=0, init=False)
    first: Tensor | None = field(default=None, init=False)
    second: Tensor | None = field(default=None, init=False)

    def step(self, values: Tensor, gradient: Tensor) -> None:
        if self.first is None or self.second is None:
            self.first, self.second = gradient.new_zeros(gradient.shape), gradient.new_zeros(gradient.shape)
        self.steps += 1
        self.first.lerp_(gradient, 0.1)
        self.second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        # Roots of zeros and of subnormal numbers take MKL up to forty times as long. A root as small as that
        # of the least normal number leaves no bit beside epsilon.
        scale = (self.second / (1 - 0.999**self.steps)).clamp_min_(torch.finfo(self.second.dtype).tiny)
        scale.sqrt_().add_(1e-8)
        values.addcdiv_(self.first, scale, value=-self.rate / (1 - 0.9**self.steps))
