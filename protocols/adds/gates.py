"""Differentiable sampling of units: rates alpha, probabilities p, and masks drawn from them.

A layer keeps the share alpha of its C units. Unit c is kept with probability

    p_c = sigmoid((b_c - beta) / epsilon),        beta such that sum_c p_c = alpha C        (Eqs. 12 to 14)

where b_c is its importance over the layer's largest, and epsilon falls from round to round. Then

    dL / d alpha = C sum_c g_c p_c (1 - p_c) / sum_c p_c (1 - p_c),        g_c = dL / d p_c        (Eq. 18)

Masks are Bernoulli(p). In the backward pass they count as p (straight-through).

Two options are not the paper's. There masks are drawn anew for each pass, and are 0 or 1. In few steps that
trains units which the final subnet drops. And the whole supernet adds up more than any of its subnets did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil, log
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn

from securefl.algorithm.queries import Floats
from securefl.protocols.adds.supernet import Mask, Supernet

Masks = Mapping[int, Tensor]
"""float32 (C,) of each sampled layer, by the place of its first unit."""
MOST: Final = 1 - 1e-3
"""The largest rate under which anything is drawn. From 1 on, every unit is kept."""
_CLOSE: Final = 1e-9
_LEAST_LOT: Final = 1e-9
_LEAST_EPSILON: Final = 1e-6
"""Masks are hard long before. Below it, floats have no beta between equal units."""
_LEAST_SPREAD: Final = 1e-12
"""Of sum p (1 - p), where epsilon is so small that no unit is in doubt."""


def probabilities(importance: Floats, alpha: float, epsilon: float) -> Floats:
    """The chance of each unit (C,) to be kept. They sum to alpha C, to 1e-9 a unit.

    importance: finite. epsilon: from 1e-6 on. Below it the sum is as near as floats come.
    """
    # At the ends of this interval all chances are below alpha, or all above. The paper wants beta > 0, which
    # fails at epsilon 1 and alpha 0.75.
    reach = epsilon * (abs(log(alpha / (1 - alpha))) + 1)
    low, high = float(importance.min()) - reach, float(importance.max()) + reach
    beta = (low + high) / 2
    while True:
        chances: Floats = expit((importance - beta) / epsilon)
        excess = float(chances.mean()) - alpha
        if excess > 0:
            low = beta
        else:
            high = beta
        if abs(excess) <= _CLOSE or high - low <= _CLOSE * epsilon:
            return chances
        # Newton's step where it stays inside, else half of the interval
        slope = float((chances * (1 - chances)).mean()) / epsilon
        beta = beta + excess / slope if slope > 0 else low
        if not low < beta < high:
            beta = (low + high) / 2
        if not low < beta < high:  # neighbours among floats: nothing lies between them
            return chances


class _Kept(torch.autograd.Function):
    """alpha -> a mask (C,), drawn with chances p. Its gradient in alpha is that of Eq. 18."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, chances: Tensor, drawn: Tensor) -> Tensor:
        ctx.save_for_backward(chances)
        return drawn.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (chances,) = ctx.saved_tensors
        spread = chances * (1 - chances)
        slope = len(chances) * (slopes[0] * spread).sum() / spread.sum().clamp_min(_LEAST_SPREAD)
        return slope.to(torch.float64), None, None


def most_important(importance: Floats, alpha: float) -> Mask:
    """The ceil(alpha C) most important units, at least one. Of equals the first ones."""
    # 0.7 * 10 is a little above 7 in floats, and must not become 8
    count = min(len(importance), max(1, ceil(alpha * len(importance) - 1e-9)))
    kept = np.zeros(len(importance), np.bool_)
    kept[np.argsort(-importance, kind="stable")[:count]] = True
    return kept


class Gates:
    """The masks in front of a supernet's units while it is trained.

    A unit is kept if its lot, a uniform number, is below its chance p. Lots are drawn once, or for each pass.
    Lots that stay let a unit be trained in a row, and the final subnet has the units that were trained: those
    of the largest b_c + epsilon log((1 - lot) / lot). For a small epsilon those are the most important ones.

    Attributes:
        alpha: the rate of each sampled layer, float64 (L,).
        importance: of each sampled layer's units, at most 1.
    """

    def __init__(
        self,
        supernet: Supernet,
        alpha: Tensor,
        epsilon: float,
        rng: np.random.Generator,
        *,
        lasting: bool,
        scaled: bool,
    ) -> None:
        self.alpha = alpha
        self.importance: Sequence[Floats] = [np.ones(own.units) for own in supernet.sampled]
        self._supernet = supernet
        self._epsilon = max(epsilon, _LEAST_EPSILON)
        self._rng = rng
        self._lots = self._drawn() if lasting else None
        self._scaled = scaled

    def _drawn(self) -> list[Floats]:
        return [self._rng.uniform(_LEAST_LOT, 1 - _LEAST_LOT, own.units) for own in self._supernet.sampled]

    def subnet(self) -> Mask:
        """The units (J,) of the final subnet."""
        ranks = list(self.importance)
        if self._lots is not None:
            ranks = [
                own + self._epsilon * np.log(1 / lots - 1)
                for own, lots in zip(ranks, self._lots, strict=True)
            ]
        pairs = zip(ranks, self.alpha.tolist(), strict=True)
        return np.concatenate([most_important(own, alpha) for own, alpha in pairs])

    def draw(self) -> Masks:
        """A mask of each sampled layer for one pass, each with a gradient in `alpha`."""
        lots = self._lots or self._drawn()
        drawn: dict[int, Tensor] = {}
        rates = self.alpha.tolist()
        for place, layer in enumerate(self._supernet.sampled):
            chances = probabilities(self.importance[place], rates[place], self._epsilon)
            kept = lots[place] < chances
            if not kept.any():  # nothing would pass the layer
                kept[np.argmin(lots[place] - chances)] = True
            mask: Tensor = _Kept.apply(  # type: ignore[no-untyped-call]
                self.alpha[place], _tensor(chances), _tensor(kept)
            )
            # as in dropout: the whole supernet then feeds each layer what its subnets did, on the mean
            drawn[layer.own.start] = mask / float(kept.mean()) if self._scaled else mask
        return drawn


@contextmanager
def masked(model: nn.Module, supernet: Supernet, draw: Callable[[], Masks]) -> Iterator[None]:
    """Let the units of `model` pass masks while the context lasts. They are drawn before each pass."""
    passing: dict[int, Tensor] = {}
    handles = [model.register_forward_pre_hook(lambda *_: passing.update(draw()))]
    for layer in supernet.layers:
        if layer.first is not None:
            handles.append(model.get_submodule(layer.gate).register_forward_hook(_gate(layer.first, passing)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gate(first: int, passing: Mapping[int, Tensor]) -> Callable[..., Tensor]:
    def gate(_module: nn.Module, _given: Any, came: Tensor) -> Tensor:
        return came * passing[first].to(came.device).reshape(-1, *[1] * (came.ndim - 2))

    return gate


def _tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
