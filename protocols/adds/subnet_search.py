"""ADDS' bilevel search of a client for its subnet: steps on rates and on weights in turn.

It follows Eqs. 4 to 9 in first order. `gates` and `bilevel` are functions on arrays. The weight of the rates
in the loss grows with the distance of a client's labels from uniform.

**Gates** sample units differentiably: rates alpha, probabilities p, and masks drawn from them. A layer keeps
the share alpha of its C units. Unit c is kept with probability

    p_c = sigmoid((b_c - beta) / temperature),    beta such that sum_c p_c = alpha C        (Eqs. 12 to 14)

where b_c is its importance over the layer's largest, and the temperature falls from round to round. It is the
inexactness of masks, the paper's epsilon. Then

    dL / d alpha = C sum_c g_c p_c (1 - p_c) / sum_c p_c (1 - p_c),        g_c = dL / d p_c        (Eq. 18)

Masks are Bernoulli(p). In the backward pass they count as p (straight-through).

Two defaults are not the paper's: lots are drawn once a round, and masks are `scaled`. In the paper, masks are
drawn for each pass, and are 0 or 1. With few steps, that trains units which the final subnet drops. And the
whole supernet then adds up more than any of its subnets did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, log
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn

from securefl.algorithm import ClientContext, Float32s, Floats
from securefl.core.ranges import Fraction, Positive, Range, Ranged, Weight
from securefl.data.dataset import hold_out
from securefl.errors import DataError
from securefl.protocols.adds.importance import Criterion, importance
from securefl.protocols.adds.supernet import Mask, Supernet
from securefl.training import to_vector, train
from securefl.training.devices import in_mode
from securefl.training.jobs import TrainingResult
from securefl.training.local import diverged
from securefl.training.losses import criterion_of, records
from securefl.training.vector import SGD, Adam

Masks = Mapping[int, Tensor]
"""float32 (C,) of each sampled layer, by the place of its first unit."""
MOST: Final = 1 - 1e-3
"""The largest rate of a search. At 1 every unit would be kept, and nothing would be drawn."""
_CLOSE: Final = 1e-9
_LEAST_LOT: Final = 1e-9
_LEAST_TEMPERATURE: Final = 1e-6
"""The least temperature. Masks are hard at larger ones. Below it, floats have no beta between equal units."""
_LEAST_SPREAD: Final = 1e-12
"""The least sum of p (1 - p), which is near 0 if the temperature is so low that no unit is in doubt."""


def probabilities(importance: Floats, alpha: float, temperature: float) -> Floats:
    """The chance of each unit (C,) to be kept. They sum to alpha C, to 1e-9 a unit.

    importance: finite. temperature: from 1e-6 on. Below it the sum is as close as floats allow.
    """
    # At the ends of this interval all chances are below alpha, or all above. The paper asks for beta > 0,
    # which is impossible at temperature 1 and alpha 0.75.
    reach = temperature * (abs(log(alpha / (1 - alpha))) + 1)
    low, high = float(importance.min()) - reach, float(importance.max()) + reach
    beta = (low + high) / 2
    while True:
        chances: Floats = expit((importance - beta) / temperature)
        excess = float(chances.mean()) - alpha
        if excess > 0:
            low = beta
        else:
            high = beta
        if abs(excess) <= _CLOSE or high - low <= _CLOSE * temperature:
            return chances
        # Newton's step where it stays inside, else half of the interval
        slope = float((chances * (1 - chances)).mean()) / temperature
        beta = beta + excess / slope if slope > 0 else low
        if not low < beta < high:
            beta = (low + high) / 2
        if not low < beta < high:  # low and high are neighbouring floats
            return chances


class _Kept(torch.autograd.Function):
    """A mask (C,) drawn with chances p, as a function of alpha. Its gradient is that of Eq. 18."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, chances: Tensor, drawn: Tensor) -> Tensor:
        ctx.save_for_backward(chances)
        return drawn.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        (chances,) = ctx.saved_tensors
        return _rate_slope(chances, slopes[0]).to(torch.float64), None, None


def _rate_slope(chances: Tensor, slopes: Tensor) -> Tensor:
    """dL / d alpha from g_c = dL / d p_c (Eq. 18)."""
    spread = chances * (1 - chances)
    return len(chances) * (slopes * spread).sum() / spread.sum().clamp_min(_LEAST_SPREAD)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gate:
    """The gates in front of one layer's C units.

    Attributes:
        chances: p, the probability of each unit to be kept, float64 (C,).
        kept: the units that pass, bool (C,). At least one does.

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.protocols.adds import gates
    >>> gate = gates(np.array([1.0, 0.5]), alpha=0.5, temperature=0.5, lots=np.array([0.3, 0.3]))
    >>> round(gate.slope(np.array([1.0, 1.0])), 6)  # all units cost the same: C for a rate of 1
    2.0
    """

    chances: Floats
    kept: Mask

    def slope(self, slopes: Floats) -> float:
        """dL / d alpha (Eq. 18) from g_c = dL / d p_c, float64 (C,)."""
        chances, own = (torch.from_numpy(np.asarray(part, np.float64)) for part in (self.chances, slopes))
        return float(_rate_slope(chances, own))


def gates(importance: Floats, alpha: float, temperature: float, lots: Floats) -> Gate:
    """Sample the units of one layer, differentiably in the layer's rate (ADDS, Eqs. 12 to 14 and 18).

    A unit is kept if its lot is below its chance. If no lot is, the unit nearest to it is kept.

    Args:
        importance: b_c over the layer's largest, float64 (C,), finite.
        alpha: the rate, the share of units to be kept, in (0, 1).
        temperature: the inexactness of masks (the paper's epsilon), from 1e-6 on. A low one keeps the most
            important units, hard.
        lots: a uniform number in (0, 1) for each unit, float64 (C,). Drawn once, they keep a unit until its
            chance falls below its lot. The paper draws them for each pass.

    Returns:
        The chances and the units that pass. The chances sum to alpha C, to 1e-9 a unit.

    Raises:
        DataError: the arrays are empty or of two lengths, or a number is out of range.

    >>> import numpy as np
    >>> from securefl.protocols.adds import gates
    >>> found = gates(np.array([0.1, 0.9, 0.5, 0.2]), alpha=0.5, temperature=0.01, lots=np.full(4, 0.5))
    >>> found.kept, round(float(found.chances.sum()), 6)
    (array([False,  True,  True, False]), 2.0)
    """
    if not importance.size or importance.shape != lots.shape or importance.ndim != 1:
        raise DataError(f"Expected one lot for each unit, got {lots.shape} for {importance.shape}.")
    if not (0 < alpha < 1 and temperature >= _LEAST_TEMPERATURE and np.isfinite(importance).all()):
        raise DataError(
            f"Expected alpha in (0, 1), temperature >= {_LEAST_TEMPERATURE:g} and finite importance, got "
            f"alpha {alpha} and temperature {temperature}, or an importance that is not finite."
        )
    chances = probabilities(importance, alpha, temperature)
    kept = lots < chances
    if not kept.any():  # nothing would pass the layer
        kept[np.argmin(lots - chances)] = True
    return Gate(chances=chances, kept=kept)


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
    If they are drawn once, the same units are trained in consecutive passes, and the final subnet has those
    units: the ones with the largest b_c + temperature log((1 - lot) / lot). At a low temperature they are the
    most important ones.

    Attributes:
        alpha: the rate of each sampled layer, float64 (L,).
        importance: of each sampled layer's units, at most 1.
    """

    def __init__(
        self,
        supernet: Supernet,
        alpha: Tensor,
        temperature: float,
        rng: np.random.Generator,
        *,
        resample_per_pass: bool,
        scaled: bool,
    ) -> None:
        self.alpha = alpha
        self.importance: Sequence[Floats] = [np.ones(own.units) for own in supernet.sampled]
        self._supernet = supernet
        self._temperature = max(temperature, _LEAST_TEMPERATURE)
        self._rng = rng
        self._lots = None if resample_per_pass else self._drawn()
        self._scaled = scaled
        self._newest: tuple[list[float], Sequence[Floats], list[Gate]] = ([], [], [])

    def _drawn(self) -> list[Floats]:
        return [self._rng.uniform(_LEAST_LOT, 1 - _LEAST_LOT, own.units) for own in self._supernet.sampled]

    def subnet(self) -> Mask:
        """The units (J,) of the final subnet."""
        ranks = list(self.importance)
        if self._lots is not None:
            ranks = [
                own + self._temperature * np.log(1 / lots - 1)
                for own, lots in zip(ranks, self._lots, strict=True)
            ]
        pairs = zip(ranks, self.alpha.tolist(), strict=True)
        return np.concatenate([most_important(own, alpha) for own, alpha in pairs])

    def draw(self) -> Masks:
        """A mask of each sampled layer for one pass, each with a gradient in `alpha`."""
        rates = self.alpha.tolist()
        # Both passes between two steps on the rates have the same gates, unless each has lots of its own.
        if self._lots is None or self._newest[0] != rates or self._newest[1] is not self.importance:
            each = zip(self.importance, rates, self._lots or self._drawn(), strict=True)
            found = [gates(own, rate, self._temperature, lots) for own, rate, lots in each]
            self._newest = rates, self.importance, found
        drawn: dict[int, Tensor] = {}
        for place, (layer, gate) in enumerate(zip(self._supernet.sampled, self._newest[2], strict=True)):
            mask: Tensor = _Kept.apply(  # type: ignore[no-untyped-call]
                self.alpha[place], _tensor(gate.chances), _tensor(gate.kept)
            )
            # as in dropout: on the mean, the whole supernet then gives each layer the input its subnets gave
            drawn[layer.own.start] = mask / float(gate.kept.mean()) if self._scaled else mask
        return drawn


@contextmanager
def masked(model: nn.Module, supernet: Supernet, draw: Callable[[], Masks]) -> Iterator[None]:
    """Multiply the units of `model` by masks within this context. They are drawn before each pass."""
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


def fixed_masks(supernet: Supernet, units: Mask, *, scaled: bool) -> Masks:
    """The masks that keep these units (J,), for the passes of a finished subnet.

    scaled: whether they are divided by their means, as the masks that the subnet was trained under.
    """
    found: dict[int, Tensor] = {}
    for layer in supernet.sampled:
        kept = units[layer.own]
        found[layer.own.start] = _tensor(kept / kept.mean() if scaled else kept)
    return found


def _gate(first: int, passing: Mapping[int, Tensor]) -> Callable[..., Tensor]:
    def gate(_module: nn.Module, _given: Any, came: Tensor) -> Tensor:
        return came * passing[first].to(came.device).reshape(-1, *[1] * (came.ndim - 2))

    return gate


def _tensor(values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def skew(labels: NDArray[Any], classes: int) -> float:
    """The Jensen-Shannon divergence (base 2) of these labels from uniform, from 0 to 1.

    It is divided by its largest value, that of one class alone. Raises DataError without a label, and for a
    label that is no class.
    """
    if not len(labels):
        raise DataError("Expected at least one record, got none: the client abstains.")
    if labels.min() < 0 or labels.max() >= classes:
        raise DataError(
            f"Expected labels from 0 to {classes - 1}, got {labels.min()} to {labels.max()}: the client "
            "abstains. Clean them."
        )
    share = np.bincount(labels, minlength=classes) / len(labels)
    return _divergence(share) / _divergence(np.eye(1, classes)[0])


def _divergence(share: Floats) -> float:
    uniform = np.full(len(share), 1 / len(share))
    middle = (share + uniform) / 2
    return (_relative(share, middle) + _relative(uniform, middle)) / 2


def _relative(one: Floats, other: Floats) -> float:
    there = one > 0
    return float(np.sum(one[there] * np.log2(one[there] / other[there])))


_LOOKED_AT: Final = 64
"""The number of records for the importance of units, at the begin of a round and at its end."""


@dataclass(frozen=True, kw_only=True)
class Search(Ranged):
    """How rates are searched for.

    importance: what units are ranked by: "slim", "activation" or "lrp".
    initial: the rate of every layer at the begin of a round. 1 keeps all units and searches for nothing: it
        is unweighted FedAvg.
    min_rate: the smallest rate of a layer.
    optimizer, rate: of the steps on the rates. Adam's steps hardly depend on lambda, since it divides by
        their size. Those of "sgd" do, so that a larger skew gives a smaller subnet in few steps.
    mask_temperature, cooling: the inexactness of masks in round 1 (the paper's epsilon), and the factor on it
        in each round.
    validation: share of a client's records that rates are searched on. It is redrawn in every round.
    lambda_offset: lambda is the skew of the client's labels, from 0 to 1, plus this.
    fixed_lambda: lambda of every client, whatever its labels (the paper's Figures 6 and 7), in place of that.
    resample_per_pass: whether the lots of units are drawn for each pass, as in the paper, or once a round.
    scaled: whether masks are divided by their means, as in dropout. The paper's are not.

    Raises ValueError for values out of range.

    >>> from securefl.protocols.adds import Search
    >>> Search(optimizer="sgd").initial
    0.9
    """

    importance: Criterion = "lrp"
    initial: Fraction = 0.9
    min_rate: Fraction = 0.1
    optimizer: Literal["adam", "sgd"] = "adam"
    rate: Positive = 0.01
    mask_temperature: Positive = 1.0
    cooling: Fraction = 0.98
    validation: Annotated[float, Range("(0, 1)")] = 0.1
    lambda_offset: Weight = 0.5
    fixed_lambda: Weight | None = None
    resample_per_pass: bool = False
    scaled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_rate > self.initial:
            raise ValueError(
                f"Expected min_rate of at most initial, got {self.min_rate} and {self.initial}: lower it."
            )

    def lambda_of(self, skew: float) -> float:
        """Lambda, the weight of the squared rates in the loss, of a client with this skew of labels.

        Raises nothing.
        """
        return skew + self.lambda_offset if self.fixed_lambda is None else self.fixed_lambda


@dataclass(frozen=True, kw_only=True, eq=False)
class Subnet:
    """The result of a search.

    Attributes:
        model: the supernet's trained values, float32 (d,).
        units: the units that are kept, bool (J,).
        alpha: the rate of each sampled layer, float64 (L,).
        skew: the divergence of the client's labels from uniform. It stays with the client.

    Raises nothing.

    >>> import numpy as np
    >>> from securefl.protocols.adds import Subnet
    >>> Subnet(model=np.zeros(3, np.float32), units=np.array([True]), alpha=np.ones(1), skew=0.0).skew
    0.0
    """

    model: Float32s
    units: Mask
    alpha: Floats
    skew: float


def search(supernet: Supernet, config: Search, context: ClientContext) -> Subnet:
    """The `bilevel` search from the broadcast supernet on the client's records."""
    return bilevel(
        supernet, context.broadcast, context.x, context.y, context.rng, search=config, number=context.round
    )


def bilevel(
    supernet: Supernet,
    model: Float32s,
    x: NDArray[Any],
    y: NDArray[np.integer[Any]],
    rng: np.random.Generator,
    *,
    search: Search = Search(),
    number: int = 1,
) -> Subnet:
    """Train a supernet on records and find their subnet (ADDS, Eqs. 4 to 9).

    Steps on the rates and on the weights take turns. A step on the rates follows the loss on held-out records
    plus lambda times the squared rates. A step on the weights is one of the problem's local training. The
    search is of first order.

    The result depends on all records without bound: it is no statistic of known sensitivity.

    Args:
        supernet: the layers whose units are sampled.
        model: the supernet's values before training, float32 (d,).
        x: records, (n, *shape), as the model reads them.
        y: classes, integers (n,).
        rng: draws the held-out records, lots and mini-batches.
        search: how rates are searched for, with initial < 1.
        number: of the round, from 1. The temperature and the learning rate follow from it.

    Returns:
        The trained supernet and the units of its subnet.

    Raises:
        DataError: there are fewer than two records, a label is no class, or the training diverges.

    >>> import numpy as np
    >>> from securefl.protocols.adds import Supernet, bilevel
    >>> from securefl.training import LocalTraining, ModelConfig
    >>> local = LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1, batch_size=8)
    >>> net = Supernet.of(ModelConfig(kind="mlp", hidden=(6, 4)), local, shape=(3,), classes=2)
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.random((20, 3), np.float32), rng.integers(0, 2, 20)
    >>> bilevel(net, net.problem.initial, x, y, rng).units.shape
    (10,)
    """
    problem, config = supernet.problem, search
    module = problem.module(model)
    uneven = skew(y, problem.outputs)
    learning, held = redrawn(len(x), config.validation, rng)
    seen = (x[learning], y[learning])
    steps = _Steps(supernet, config, module, seen, (x[held], y[held]), config.lambda_of(uneven), rng, number)
    steps.look()
    with masked(module, supernet, steps.gates.draw):
        train(module, *seen, problem.local, problem.loss, rng, number - 1, before=steps)
    steps.look()
    alpha = steps.alpha.detach().numpy().copy()
    return Subnet(model=to_vector(module), units=steps.gates.subnet(), alpha=alpha, skew=uneven)


def whole(supernet: Supernet, context: ClientContext, trained: TrainingResult) -> Subnet:
    """The subnet of all units, from a training without a search. Raises DataError if there is no model."""
    if isinstance(trained, DataError):
        raise trained
    uneven, ones = skew(context.y, supernet.problem.outputs), np.ones(len(supernet.sampled))
    return Subnet(model=trained, units=supernet.whole, alpha=ones, skew=uneven)


def redrawn(n: int, share: float, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of a client's n records to learn from, and of those held back, at least one of each.

    Raises DataError for fewer than two records.
    """
    if n < 2:
        raise DataError(
            f"Expected two records or more, one of them for validation, got {n}: the client abstains. Give "
            "it more records, or set initial = 1, which needs no validation."
        )
    return hold_out(n, min(max(share, 0.51 / n), 1 - 0.51 / n), rng)


class _Steps:
    """The steps on the rates. Called before each mini-batch of the weights. `weight` is lambda."""

    def __init__(
        self,
        supernet: Supernet,
        config: Search,
        model: nn.Module,
        seen: tuple[NDArray[Any], NDArray[Any]],
        held: tuple[NDArray[Any], NDArray[Any]],
        weight: float,
        rng: np.random.Generator,
        number: int,
    ) -> None:
        problem = supernet.problem
        self._supernet, self._config, self._model = supernet, config, model
        self._rng, self._number = rng, number
        self._seen = records(*seen, problem.loss, problem.hardware.device)
        self._held = records(*held, problem.loss, problem.hardware.device)
        self._criterion = criterion_of(problem.loss)
        self._weight = weight
        adam = config.optimizer == "adam"
        self._optimizer = Adam(rate=config.rate) if adam else SGD(rate=config.rate, momentum=0.0)
        initial = min(config.initial, MOST)
        self.alpha = torch.full((len(supernet.sampled),), initial, dtype=torch.float64, requires_grad=True)
        self.gates = Gates(
            supernet,
            self.alpha,
            config.mask_temperature * config.cooling ** (number - 1),
            rng,
            resample_per_pass=config.resample_per_pass,
            scaled=config.scaled,
        )

    def __call__(self) -> None:
        # In evaluation mode, so that validation does not change the running statistics of batch norm.
        problem = self._supernet.problem
        with in_mode(self._model, training=False):
            x, y = self._drawn(self._held, problem.local.batch_size)
            loss = self._criterion(self._model(x), y) + self._weight * (self.alpha**2).sum()
            (slope,) = torch.autograd.grad(loss, self.alpha)
        if not bool(torch.isfinite(slope).all()):
            # raised before the step: a rate that is nan gives no chances
            raise diverged(problem.local.rate(self._number - 1))
        with torch.no_grad():
            self._optimizer.step(self.alpha, slope)
            self.alpha.clamp_(min(self._config.min_rate, MOST), MOST)

    def look(self) -> None:
        """Rank the units again, on some of the records that the weights are trained on."""
        seen = self._drawn(self._seen, _LOOKED_AT)
        self.gates.importance = importance(self._config.importance, self._supernet, self._model, *seen)

    def _drawn(self, columns: tuple[Tensor, Tensor], size: int) -> tuple[Tensor, Tensor]:
        """At most `size` of these records, drawn at random."""
        x, y = columns
        chosen = torch.from_numpy(self._rng.permutation(len(x))[:size]).to(x.device)
        return x[chosen], y[chosen]
