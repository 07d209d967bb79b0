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
drawn for each pass, and are 0 or 1: the preset "paper", which also has its 3 epochs. With few steps, that
trains units which the final subnet drops. And the
whole supernet then adds up more than any of its subnets did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Annotated, Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, rel_entr
from torch import Tensor, nn

from securefl.algorithm import ClientContext, Float32s, Floats
from securefl.core.ranges import Fraction, Positive, Range, Ranged, Weight
from securefl.data.dataset import hold_out
from securefl.errors import DataError
from securefl.protocols.adds.importance import Criterion, importance
from securefl.protocols.adds.supernet import Mask, Supernet
from securefl.training.cohorts import rows_of
from securefl.training.devices import as_tensor, in_mode
from securefl.training.jobs import TrainingJob, TrainingResult
from securefl.training.local import diverged
from securefl.training.losses import criterion_of, records
from securefl.training.products import widened
from securefl.training.run_jobs import run_job
from securefl.training.stack import Stack
from securefl.training.vector import SGD, Adam

Masks = Callable[[], Tensor | None]
"""The newest masks of all units, float32 (J,), or None without any."""
MOST: Final = 1 - 1e-3
"""The largest rate of a search. At 1 every unit would be kept, and nothing would be drawn."""
_CLOSE: Final = 1e-9
_LEAST_LOT: Final = 1e-9
_LEAST_TEMPERATURE: Final = 1e-6
"""The least temperature. Masks are hard at larger ones. Below it, floats have no beta between equal units."""
_LEAST_SPREAD: Final = 1e-12
"""The least sum of p (1 - p), which is near 0 if the temperature is so low that no unit is in doubt."""


def probabilities(
    importance: Floats,
    alpha: Floats,
    temperature: float,
    starts: Sequence[int] = (0,),
    near: Floats | None = None,
) -> tuple[Floats, Floats]:
    """The chance of each unit (rows, J) to be kept, and beta (rows, L), of L layers in each row.

    The chances of a layer sum to alpha C, to 1e-9 a unit. They depend on no other row or layer.

    importance: finite. alpha: (rows, L). temperature: from 1e-6 on. Below it the sum is as close as floats
    allow. starts: each layer's first unit. near: a guess of beta, such as that of rates nearby.
    """
    units = np.diff([*starts, importance.shape[1]])
    layer = np.repeat(np.arange(len(units)), units)
    # At the ends of this interval all chances are below alpha, or all above. The paper asks for beta > 0,
    # which is impossible at temperature 1 and alpha 0.75.
    reach = temperature * (np.abs(np.log(alpha / (1 - alpha))) + 1)
    low = np.minimum.reduceat(importance, starts, 1) - reach
    high = np.maximum.reduceat(importance, starts, 1) + reach
    middle, ended = (low + high) / 2, np.zeros(alpha.shape, np.bool_)
    beta = middle if near is None else np.where((low < near) & (near < high), near, middle)
    while True:
        chances: Floats = expit((importance - beta[:, layer]) / temperature)
        excess = np.add.reduceat(chances, starts, 1) / units - alpha
        low, high = np.where(excess > 0, beta, low), np.where(excess > 0, high, beta)
        # Newton's step where it stays inside, else half of the interval
        slope = np.add.reduceat(chances * (1 - chances), starts, 1) / units / temperature
        after = beta + excess / np.maximum(slope, np.finfo(np.float64).tiny)
        after = np.where((low < after) & (after < high), after, (low + high) / 2)
        ended |= (np.abs(excess) <= _CLOSE) | (high - low <= _CLOSE * temperature)
        ended |= (after <= low) | (high <= after)  # neighbouring floats
        if ended.all():
            return chances, beta
        beta = np.where(ended, beta, after)


def _rate_slopes(chances: Floats, slopes: Floats, starts: Sequence[int] = (0,)) -> Floats:
    """dL / d alpha over C of each layer (rows, L) from g_c = dL / d p_c, (rows, J) (Eq. 18)."""
    spread = chances * (1 - chances)
    found: Floats = np.add.reduceat(slopes * spread, starts, 1)
    return found / np.maximum(np.add.reduceat(spread, starts, 1), _LEAST_SPREAD)


def _passing(chances: Floats, lots: Floats, starts: Sequence[int] = (0,)) -> Mask:
    """The units that pass, (rows, J): those whose lots are below their chances, and one of each layer."""
    kept: Mask = lots < chances
    for row, layer in np.argwhere(~np.logical_or.reduceat(kept, starts, 1)):  # nothing would pass it
        own = slice(starts[layer], [*starts, None][layer + 1])
        kept[row, own.start + np.argmin((lots - chances)[row, own])] = True
    return kept


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
        """Return dL / d alpha, the slope of the loss in the layer's rate (Eq. 18).

        Args:
            slopes: g_c = dL / d p_c, float64 (C,).
        """
        return len(self.chances) * float(_rate_slopes(self.chances[None], np.asarray(slopes)[None])[0, 0])


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
    chances, _ = probabilities(importance[None], np.array([[alpha]]), temperature)
    return Gate(chances=chances[0], kept=_passing(chances, lots[None])[0])


def most_important(importance: Floats, alpha: float) -> Mask:
    """The ceil(alpha C) most important units, at least one. Of equals the first ones."""
    # 0.7 * 10 is a little above 7 in floats, and must not become 8
    count = min(len(importance), max(1, ceil(alpha * len(importance) - 1e-9)))
    kept = np.zeros(len(importance), np.bool_)
    kept[np.argsort(-importance, kind="stable")[:count]] = True
    return kept


class Gates:
    """The masks in front of a supernet's units while clients (rows) train it.

    A unit is kept if its lot, a uniform number, is below its chance p. Lots are drawn once, or for each pass.
    If they are drawn once, the same units are trained in consecutive passes, and the final subnet has those
    units: the ones with the largest b_c + temperature log((1 - lot) / lot). At a low temperature they are the
    most important ones.

    Attributes:
        alpha: the rate of each sampled layer, float64 (rows, L).
        importance: of each unit, at most 1, float64 (rows, J).
        lots: of each unit, (rows, J).
        masks: of each unit, float32 (rows, J).
        scales: those of the masks that are not 0, (rows, L).
    """

    def __init__(self, supernet: Supernet, alpha: Tensor, temperature: float, *, scaled: bool) -> None:
        self.alpha, self._supernet, self._scaled = alpha, supernet, scaled
        self.importance, self.lots = np.ones((2, len(alpha), supernet.units))
        self._temperature = max(temperature, _LEAST_TEMPERATURE)
        self._starts = [layer.own.start for layer in supernet.sampled]
        self._units = np.array([layer.units for layer in supernet.sampled])
        self._beta: Floats | None = None

    def draw(self, rng: np.random.Generator, passes: int = 1) -> Floats:
        """Lots of all units of a row, (passes, J)."""
        return rng.uniform(_LEAST_LOT, 1 - _LEAST_LOT, (passes, self.lots.shape[1]))

    def solve(self) -> None:
        """Set the chances of these rates."""
        rates = self.alpha.numpy()
        self._chances, self._beta = probabilities(
            self.importance, rates, self._temperature, self._starts, self._beta
        )

    def passes(self) -> None:
        """Set the masks of these chances and lots."""
        kept = _passing(self._chances, self.lots, self._starts)
        self.scales = np.ones(self.alpha.shape)
        if self._scaled:
            # as in dropout: on the mean, the whole supernet then gives each layer the input its subnets gave
            self.scales = self._units / np.add.reduceat(kept, self._starts, 1, dtype=np.int64)
        self.masks = torch.from_numpy((kept * np.repeat(self.scales, self._units, 1)).astype(np.float32))

    def slopes(self, of_masks: Floats) -> Floats:
        """dL / d alpha (rows, L) from the slopes of the masks (rows, J)."""
        return self._units * self.scales * _rate_slopes(self._chances, of_masks, self._starts)

    def subnet(self, row: int, *, by_lots: bool) -> Mask:
        """The units (J,) of the final subnet. by_lots: whether lots were drawn once."""
        ranks = self.importance[row]
        if by_lots:
            ranks = ranks + self._temperature * np.log(1 / self.lots[row] - 1)
        pairs = zip(self._supernet.sampled, self.alpha[row].tolist(), strict=True)
        return np.concatenate([most_important(ranks[layer.own], alpha) for layer, alpha in pairs])


@contextmanager
def masked(model: nn.Module, supernet: Supernet, masks: Masks) -> Iterator[None]:
    """Multiply the units of `model` by these masks within this context."""

    def gate(own: slice, _module: nn.Module, _given: Any, came: Tensor) -> Tensor:
        if (now := masks()) is None:
            return came
        return came * now[own].to(came.device).reshape(-1, *[1] * (came.ndim - 2))

    with ExitStack() as hooks:
        for layer in supernet.layers:
            if layer.first is not None:
                gated = model.get_submodule(layer.gate)
                hooks.enter_context(gated.register_forward_hook(partial(gate, layer.own)))
        yield


def fixed_masks(supernet: Supernet, units: Mask, *, scaled: bool) -> Tensor:
    """The masks (J,) that keep these units (J,), for the passes of a finished subnet.

    scaled: whether they are divided by their means, as the masks that the subnet was trained under.
    """
    kept = [units[layer.own] for layer in supernet.sampled]
    parts = [own / own.mean() if scaled else own for own in kept]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))


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
    """In units that the quotient of two cancels."""
    uniform = np.full(len(share), 1 / len(share))
    middle = (share + uniform) / 2
    return float((rel_entr(share, middle) + rel_entr(uniform, middle)).sum())


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


def search_job(supernet: Supernet, config: Search, context: ClientContext) -> TrainingJob:
    """The search from the broadcast supernet on the client's records. Rates of 1 keep all units."""
    hook = Searching(supernet, config) if config.initial < 1 else None
    return TrainingJob(problem=supernet.problem, start=context.broadcast, context=context, hook=hook)


def subnet_of(supernet: Supernet, context: ClientContext, trained: TrainingResult) -> Subnet:
    """The subnet of the result of `search_job`. Raises DataError if there is none."""
    if isinstance(trained, DataError):
        raise trained
    d = len(supernet.problem.initial)
    model, kept, rates = np.split(np.array(trained), [d, d + supernet.units])
    alpha = rates.copy().view(np.float64) if len(rates) else np.ones(len(supernet.sampled))
    units = kept > 0 if len(kept) else supernet.whole
    return Subnet(model=model, units=units, alpha=alpha, skew=skew(context.y, supernet.problem.outputs))


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
    context = ClientContext(client=0, round=number, x=x, y=y, broadcast=model, public={}, rng=rng)
    return subnet_of(supernet, context, run_job(search_job(supernet, search, context)))


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


@dataclass(frozen=True)
class Searching:
    """The steps on the rates beside a training (`Hook`). Behind the model stand the units and the rates."""

    supernet: Supernet
    config: Search

    @property
    def values(self) -> int:
        return self.supernet.units + 2 * len(self.supernet.sampled)

    @contextmanager
    def alone(self, job: TrainingJob, model: nn.Module) -> Iterator[Steps]:
        masks: list[Tensor] = []
        with masked(model, self.supernet, lambda: masks[0] if masks else None):
            yield _StepsAlone(self, [job], model, masks)

    def together(self, jobs: Sequence[TrainingJob], stack: Stack) -> Steps:
        return _StepsTogether(self, jobs, stack)


class Steps:
    """The steps on the rates of clients (slots) that train side by side, or of one."""

    def __init__(self, search: Searching, jobs: Sequence[TrainingJob]) -> None:
        supernet, config, problem = search.supernet, search.config, search.supernet.problem
        self._supernet, self._config, self._jobs = supernet, config, jobs
        number = jobs[0].context.round
        self._rate = problem.local.rate(number - 1)
        skews = [skew(job.context.y, problem.outputs) for job in jobs]
        self._lambda = torch.tensor([[config.lambda_of(own)] for own in skews], dtype=torch.float64)
        self._fine = np.ones(len(jobs), np.bool_)
        self._drawn: list[deque[tuple[Any, ...]]] = [deque() for _ in jobs]
        adam = config.optimizer == "adam"
        self._optimizer = Adam(rate=config.rate) if adam else SGD(rate=config.rate, momentum=0.0)
        alpha = torch.full((len(jobs), len(supernet.sampled)), min(config.initial, MOST), dtype=torch.float64)
        temperature = config.mask_temperature * config.cooling ** (number - 1)
        self.gates = Gates(supernet, alpha, temperature, scaled=config.scaled)
        self.seen: Sequence[tuple[NDArray[Any], NDArray[Any]]] = (seen := [])
        self.held: list[tuple[NDArray[Any], NDArray[Any]]] = []
        for slot, job in enumerate(jobs):
            x, y, rng = job.context.x, job.context.y, job.context.rng
            learning, held = redrawn(len(x), config.validation, rng)
            seen.append((x[learning], y[learning]))
            self.held.append((x[held], y[held]))
            if not config.resample_per_pass:
                self.gates.lots[slot] = self.gates.draw(rng)
            self._look(slot, job.start)
        self._set()

    def draw(self, slot: int) -> None:
        """Draw what the next mini-batch of this slot needs: validation records, and lots of two passes."""
        rng, resampled = self._jobs[slot].context.rng, self._config.resample_per_pass
        chosen = rng.permutation(len(self.held[slot][0]))[: self._supernet.problem.local.batch_size]
        self._drawn[slot].append((chosen, self.gates.draw(rng, 2) if resampled else None))

    def before(self) -> None:
        """A step on the rates, before a mini-batch of the weights."""
        drawn = {slot: own.popleft() for slot, own in enumerate(self._drawn) if own}
        if self._config.resample_per_pass:
            self.gates.lots[list(drawn)] = [first for _, (first, _) in drawn.values()]
            self._set()
        found = self.gates.slopes(self._slopes({slot: chosen for slot, (chosen, _) in drawn.items()}))
        slope = torch.from_numpy(found) + 2 * self._lambda * self.gates.alpha
        # A rate that is nan gives no chances.
        self._fine &= torch.isfinite(slope).all(1).numpy()
        self._optimizer.step(self.gates.alpha, slope.nan_to_num_(0.0, 0.0, 0.0))
        self.gates.alpha.clamp_(min(self._config.min_rate, MOST), MOST)
        if self._config.resample_per_pass:
            self.gates.lots[list(drawn)] = [second for _, (_, second) in drawn.values()]
        self._set()

    def result(self, slot: int, model: Float32s) -> Float32s:
        """The slot's units and rates, behind its trained model. Raises DataError if its search diverged."""
        if not self._fine[slot]:
            raise diverged(self._rate)
        self._look(slot, model)
        units = self.gates.subnet(slot, by_lots=not self._config.resample_per_pass)
        rates = self.gates.alpha[slot].numpy().view(np.float32)
        return np.concatenate([model, units.astype(np.float32), rates])

    def _set(self) -> None:
        """Set the masks of the next passes."""
        self.gates.solve()
        self.gates.passes()
        self._masks()

    def _masks(self) -> None:
        """Put the masks in front of the models' units."""
        raise NotImplementedError

    def _slopes(self, chosen: Mapping[int, NDArray[Any]]) -> Floats:
        """The slopes of the masks (slots, J) in the mean loss of these held-out records, by slot."""
        raise NotImplementedError

    def _look(self, slot: int, model: Float32s) -> None:
        """Rank the units of a model again, on some of the records that the weights are trained on."""
        problem, (x, y) = self._supernet.problem, self.seen[slot]
        chosen = self._jobs[slot].context.rng.permutation(len(x))[:_LOOKED_AT]
        columns = records(x[chosen], y[chosen], problem.loss, problem.hardware.device)
        found = importance(self._config.importance, self._supernet, problem.module(model), *columns)
        self.gates.importance[slot] = np.concatenate(found)


class _StepsAlone(Steps):
    """The steps of a client whose model has the masks in hooks."""

    def __init__(
        self, search: Searching, jobs: Sequence[TrainingJob], model: nn.Module, masks: list[Tensor]
    ) -> None:
        self._model, self._in_front = model, masks
        super().__init__(search, jobs)

    def result(self, slot: int, model: Float32s) -> Float32s:
        self._in_front.clear()
        return super().result(slot, model)

    def _masks(self) -> None:
        self._in_front[:] = self.gates.masks

    def _slopes(self, chosen: Mapping[int, NDArray[Any]]) -> Floats:
        problem, (x, y), masks = self._supernet.problem, self.held[0], self.gates.masks.requires_grad_()
        self._masks()
        columns = records(x[chosen[0]], y[chosen[0]], problem.loss, problem.hardware.device)
        # In evaluation mode, so that validation does not change the running statistics of batch norm.
        with in_mode(self._model, training=False):
            (found,) = torch.autograd.grad(
                criterion_of(problem.loss)(self._model(columns[0]), columns[1]), masks
            )
        return found.numpy()


class _StepsTogether(Steps):
    """The steps of clients in a stack."""

    def __init__(self, search: Searching, jobs: Sequence[TrainingJob], stack: Stack) -> None:
        self._stack = stack
        super().__init__(search, jobs)
        most, batch = max(len(y) for _, y in self.held), search.supernet.problem.local.batch_size
        # The last row is zero, and stands where a slot has no record.
        self._x = torch.zeros(stack.slots, most + 1, self.held[0][0][0].size)
        self._y = torch.zeros(stack.slots, most + 1, dtype=torch.int64)
        self._weights = torch.zeros(stack.slots, rows_of(search.supernet.problem))
        self._places = torch.full(self._weights.shape, most)
        for slot, (x, y) in enumerate(self.held):
            self._x[slot, : len(y)] = as_tensor(x).flatten(1)
            self._y[slot, : len(y)] = as_tensor(y)
            self._weights[slot, : min(len(y), batch)] = 1 / min(len(y), batch)
        self._x = widened(self._x)
        self._slots = torch.arange(stack.slots)[:, None]

    def _masks(self) -> None:
        self._stack.multiply([self.gates.masks[:, own.own] for own in self._supernet.sampled])

    def _slopes(self, chosen: Mapping[int, NDArray[Any]]) -> Floats:
        places = self._places.numpy()
        for slot, own in chosen.items():
            places[slot, : len(own)] = own
        x, y = self._x[self._slots, self._places], self._y[self._slots, self._places]
        layers, scales = self._stack.back(x, y, self._weights).layers, self.gates.scales
        found = [
            # The slope is that of the unit before its mask, and what is given is the unit behind it.
            (slope * given).sum(1)[: len(scales), : layer.units].numpy() / scales[:, at, None] ** 2
            for at, (layer, ((_, slope), (given, _))) in enumerate(
                zip(self._supernet.sampled, pairwise(layers), strict=True)
            )
        ]
        return np.concatenate(found, 1)
