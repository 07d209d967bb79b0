"""Training several clients in one computation, where their models can stand side by side.

Each client draws its own batches from its own stream, as it would alone, and takes its own number of steps.
Compared with training alone the last bits of its model differ, by the order in which a product is summed.
Such a difference grows where a record lies on the kink of a ReLU and falls on its other side, or where a
training is unstable, as it would between two machines.

Those bits must not depend on the other clients. Noise covers what one client or record may move. If all
others moved with it, over the kinks of their ReLUs, no noise would be sized for that. So all passes have one
shape: as many slots as follow from the plan (`slots_for`), of as many rows as a mini-batch may have, with
zeros where there is no record. A client has the same bits whoever else is in the wave, and in whichever slot
it stands.

With privacy per record the mechanism is that of `dpsgd`, client by client: each draws records and noise
from its own source, its own records' gradients are clipped, and it is charged alone. One record must move its
own gradient and nothing else (`chunks`), so there all passes have one shape too:

- There are always as many slots, of `chunk` rows each. Slots and rows that are left over hold zeros.
- Pass c has the c-th chunk of every client, of zeros where a client has no more records.
- Every slot's memory begins at the same alignment, and every row's within it (`products`).

A record's clipped gradient then has the same bits whatever else is in its batch, whoever else is in the wave
and in whichever slot its client stands. `require_alike` tries that on public records.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securefl.algorithm.queries import Float32s
from securefl.core.errors import ConfigError, DataError
from securefl.dp.noise import Source
from securefl.training.devices import as_tensor, one_thread
from securefl.training.fit import Fit, Fitted, Trainer
from securefl.training.local import LocalTraining, diverged, optimizer_of, passes
from securefl.training.losses import records, require_records
from securefl.training.models import MLP, ModelConfig
from securefl.training.per_record import SLACK
from securefl.training.private_steps import DPSGD, Records, private_steps
from securefl.training.private_steps import diverged as diverged_privately
from securefl.training.probes import probes_of, stay_apart
from securefl.training.products import UNIT, widened
from securefl.training.stack import Stack, Tail, stackable
from securefl.training.task import Problem

SLOTS: Final = 10
"""Clients in one pass, whether there are as many or not: of a large cohort, or of one that no plan tells."""


MOST_ROWS: Final = 1024
"""Rows of a pass. Clients with larger mini-batches gain nothing by standing side by side."""
MOST_SLOTS: Final = 16
"""Clients of a cohort that still stand in one pass."""
_GATHERED: Final = 2**20
"""Values of records that are gathered at a time: 4 MB."""


def slots_for(cohort: int) -> int:
    """How many clients stand in a pass. It follows from the plan, and never from who takes part in a round.

    cohort: the least number of clients that are asked at once, as `ValueSpec.cohort` has it, 0 if no plan
        says.
    """
    if not cohort:
        return SLOTS
    # Up to MOST_SLOTS one pass takes less time than two. Of more clients, passes of some SLOTS are fastest.
    passes = 1 if cohort <= MOST_SLOTS else -(-cohort // SLOTS)
    return -(-cohort // passes)


def why_alone(problem: Problem) -> str:
    """Why the clients of this problem cannot stand side by side. Empty if they can."""
    if problem.hardware.gpu is not None:
        return "their models are on a GPU"
    if problem.private is None and problem.local.batch_size > MOST_ROWS:
        return f"mini-batches of more than {MOST_ROWS:,} records gain nothing side by side"
    if stackable(problem.model):
        return ""
    if not isinstance(problem.model, ModelConfig):
        return "the model is not one of this package's"
    return f"{type(problem.layers).__name__} is not the packaged stack of dense layers"


class Batched:
    """The trainer that runs alike fits side by side, and leaves the others to `rest`.

    slots: how many stand in each pass, the same in a whole run.

    Raises ConfigError where torch's kernels do not keep slots and rows apart.
    """

    def __init__(self, rest: Trainer, slots: int = SLOTS) -> None:
        self._rest, self.slots = rest, slots
        self._stackable: dict[Problem, bool] = {}
        self._tried: set[tuple[Problem, bool]] = set()

    def __call__(self, fits: Sequence[Fit]) -> list[Fitted]:
        came: dict[int, Fitted] = {}
        groups: dict[Hashable, list[int]] = {}
        for place, fit in enumerate(fits):
            groups.setdefault(self._alike(fit), []).append(place)
        alone = groups.pop(None, [])
        for places in groups.values():
            self._try(fits[places[0]])
            run = fit_together if fits[places[0]].problem.private is None else fit_privately
            # Clients of like sizes stand together, and few slots wait for the others.
            places.sort(key=lambda place: -len(fits[place].context.x))
            for at in range(0, len(places), self.slots):
                together = places[at : at + self.slots]
                came |= zip(together, run([fits[place] for place in together], self.slots), strict=True)
        came |= zip(alone, self._rest([fits[place] for place in alone]) if alone else [], strict=True)
        return [came[place] for place in range(len(fits))]

    def _try(self, fit: Fit) -> None:
        """Try the kernels that this training takes, once in a run."""
        if (kind := (fit.problem, fit.under_head)) not in self._tried:
            require_alike(fit, _rows_of(fit.problem), self.slots)
            self._tried.add(kind)

    def _alike(self, fit: Fit) -> Hashable:
        """What fits must share to run side by side. None for a fit that must run alone, as on a GPU."""
        problem, x, y = fit.problem, fit.context.x, fit.context.y
        if problem not in self._stackable:
            self._stackable[problem] = not why_alone(problem)
        if not self._stackable[problem] or (fit.under_head and problem.model.hidden == ()):
            return None
        if fit.start.shape != problem.initial.shape:  # the training that runs alone says so
            return None
        try:
            require_records(x, y, problem.loss)
        except DataError:  # said by the training that runs alone
            return None
        # Without records nothing happens, and torch tells of a label that it does not know. Private training
        # drops such a record.
        if problem.private is None and not (len(x) and _known(problem, y)):
            return None
        forms = (x.dtype, x.shape[1:], y.shape[1:])
        return (problem, fit.context.round, fit.under_head, fit.activation, fit.penalty, forms)


def fit_together(fits: Sequence[Fit], slots: int) -> list[Fitted]:
    """Train at most `slots` alike clients side by side, without privacy per record. Each has records."""
    config = fits[0].problem.local
    lasts = [config.batches(len(fit.context.x)) for fit in fits]
    optimizer = optimizer_of(config, fits[0].context.round - 1)
    came: dict[int, Fitted] = {}
    with torch.no_grad(), one_thread():
        stack = stack_of(fits[0], [fit.start for fit in fits], slots)
        start = stack.values.clone() if config.proximal else None
        total = torch.zeros(slots, _rows_of(fits[0].problem))
        for number, batch in enumerate(_batches(fits, slots), start=1):
            back = stack.back(*batch)
            total.addcmul_(back.losses, batch.weights)
            if config.plain:
                stack.descend(back, optimizer.rate)
            else:
                gradient = stack.gradient(back)
                if config.weight_decay:
                    gradient.add_(stack.values, alpha=config.weight_decay)
                if start is not None:
                    gradient.add_(stack.values - start, alpha=config.proximal)
                optimizer.step(stack.values, gradient)
            # Taken at its last step: the slot moves on, by momentum or decay, until all have ended.
            if ended := [slot for slot, last in enumerate(lasts) if last == number]:
                fine = stack.finite() & torch.isfinite(total).all(1)
                for slot, vector in stack.vectors(ended).items():
                    came[slot] = vector if fine[slot] else diverged(optimizer.rate)
    return [came[slot] for slot in range(len(fits))]


def _known(problem: Problem, y: NDArray[Any]) -> bool:
    """Whether the model has an output for each of these labels, of which there is one at least."""
    return problem.kind != "classification" or bool(y.min() >= 0 and y.max() < problem.outputs)


def _rows_of(problem: Problem) -> int:
    """The rows of a pass: a public number, and a multiple of UNIT (`chunks`)."""
    if problem.private is not None:
        return problem.private.chunk
    return -(-problem.local.batch_size // UNIT) * UNIT


class Batch(NamedTuple):
    """A mini-batch of every slot, as `Stack.back` takes it."""

    x: Tensor
    y: Tensor
    weights: Tensor
    there: Tensor | None


def _batches(fits: Sequence[Fit], slots: int) -> Iterator[Batch]:
    """Mini-batches of all slots, until no client has one left.

    Rows without a record are zero and weigh nothing. A record weighs 1 / (records of its mini-batch).
    """
    problem, rows = fits[0].problem, _rows_of(fits[0].problem)
    columns = [(fit.context.x.reshape(len(fit.context.x), -1), fit.context.y) for fit in fits]
    sizes = [_sizes(len(y), problem.local.batches(len(y)), problem.local.batch_size) for _, y in columns]
    orders = [_order(len(fit.context.x), problem.local, fit.context.rng) for fit in fits]
    # Several steps are gathered at a time: small ones would take longer to gather than to compute.
    most = max(map(len, sizes))
    steps = min(most, max(1, _GATHERED // (slots * rows * columns[0][0].shape[1])))
    for at in range(0, most, steps):
        # Tensors, since torch aligns their memory. They are written to as arrays, which is faster.
        block = [
            as_tensor(column[:0]).new_empty((slots, steps * rows, *column.shape[1:])) for column in columns[0]
        ]
        block.append(torch.empty(slots, steps * rows))
        x, y, weights = (part.numpy() for part in block)
        x[len(fits) :] = y[len(fits) :] = weights[len(fits) :] = 0
        for slot, (own, order, (inputs, targets)) in enumerate(zip(sizes, orders, columns, strict=True)):
            first, last, places, weights[slot] = _places(own, at, steps, rows)
            _gather(inputs, order[first:last], places, x[slot])
            _gather(targets, order[first:last], places, y[slot])
        block[0] = widened(block[0])
        there = (block[2] > 0).float()[:, :, None]
        # Slots without a client need no care: their models are zero, and nobody takes what comes of them.
        full: NDArray[np.bool_] = np.all(weights[: len(fits)].reshape(len(fits), steps, rows), (0, 2))
        parts = (part.view(slots, steps, rows, *part.shape[2:]).unbind(1) for part in (*block, there))
        for step, filled in zip(islice(zip(*parts, strict=True), most - at), full, strict=False):
            yield Batch(step[0], step[1], step[2], None if filled else step[3])


def _gather(
    column: NDArray[Any], chosen: NDArray[np.int64], places: NDArray[np.int64] | None, to: NDArray[Any]
) -> None:
    """Put the chosen records into these rows, or into the first ones. All other rows become zero."""
    if places is None:
        # "clip" writes at once, where "raise" keeps a copy; every place is one of a permutation
        np.take(column, chosen, 0, out=to[: len(chosen)], mode="clip")
        to[len(chosen) :] = 0
    else:
        to[...] = 0
        to[places] = column[chosen]


def _order(n: int, config: LocalTraining, rng: np.random.Generator) -> NDArray[np.int64]:
    """A client's n records in the order in which it trains on them, pass after pass."""
    shuffled = list(passes(n, config, rng))
    return shuffled[0] if len(shuffled) == 1 else np.concatenate(shuffled)


@lru_cache(maxsize=256)
def _sizes(n: int, batches: int, size: int) -> tuple[int, ...]:
    """The records of each mini-batch. The last one of a pass may have fewer."""
    of_a_pass = [min(size, n - at) for at in range(0, n, size)]
    return tuple(of_a_pass[number % len(of_a_pass)] for number in range(batches))


@lru_cache(maxsize=256)
def _places(
    sizes: tuple[int, ...], at: int, steps: int, rows: int
) -> tuple[int, int, NDArray[np.int64] | None, NDArray[np.float32]]:
    """Where the records of mini-batches `at` to `at + steps` stand: both arrays must only be read.

    Every mini-batch begins at a multiple of `rows`.

    Returns:
        The first record and the one after the last, in the order of training; their rows, None for the first
        rows without a gap; and all rows' weights.
    """
    here = sizes[at : at + steps]
    weights = np.zeros((steps, rows), np.float32)
    for own, size in zip(weights, here, strict=False):
        own[:size] = 1 / size
    first, count = sum(sizes[:at]), sum(here)
    places = np.flatnonzero(weights)
    return first, first + count, None if count == 0 or places[-1] == count - 1 else places, weights.ravel()


# With privacy per record ----------------------------------------------------------------------------


def fit_privately(fits: Sequence[Fit], slots: int) -> list[Fitted]:
    """Train at most `slots` clients side by side, each with record-level privacy. They are alike."""
    problem = fits[0].problem
    config = problem.private
    assert config is not None
    with torch.no_grad(), one_thread():
        stack = stack_of(fits[0], [fit.start for fit in fits], slots)
        columns = [records(fit.context.x, fit.context.y, problem.loss) for fit in fits]
        private_steps(
            stack.values,
            config,
            [(x.flatten(1), y) for x, y in columns],
            [fit.context.source or Source() for fit in fits],
            lambda batches: stack.layout.rows(clipped_sums(stack, batches, config)),
            stack.layout.flat,
        )
        fine = stack.finite()
        vectors = stack.vectors(range(len(fits)))
    return [own if fine[slot] else diverged_privately(config.learning_rate) for slot, own in vectors.items()]


def stack_of(fit: Fit, vectors: Sequence[Float32s], slots: int) -> Stack:
    """These models (d,) in the first slots, as this fit and those alike train them."""
    model = fit.problem.layers
    assert isinstance(model, MLP)
    return Stack(model, vectors, tail_of(fit), slots=slots)


def clipped_sums(stack: Stack, batches: Sequence[Records], config: DPSGD) -> Tensor:
    """Each slot's sum of clipped gradients over its batch, float64 in the form of the stack's values.

    A record with a non-finite loss or gradient norm is dropped: the sum has the same bits as without it.
    """
    sums = torch.zeros(len(stack.values), dtype=torch.float64)
    layers = stack.layout.layers(sums)
    for at in range(0, max(len(x) for x, _ in batches), config.chunk):
        x, y, there = _chunk(batches, at, (stack.slots, config.chunk))
        # Zero times nan is nan: who is dropped must not be in the products at all.
        if not (known := stack.known(y)).all():
            _drop(~known, x, y, there)
        parts, usable = _clipped(stack, x, y, there, config)
        if not usable[there].all():
            _drop(~usable, x, y, there)
            parts, _ = _clipped(stack, x, y, there, config)
        for (given, slope), layer in zip(parts, layers, strict=True):
            layer.weight.baddbmm_(slope.transpose(1, 2), given)
            layer.bias.add_(slope.sum(1))
    return sums


def _chunk(batches: Sequence[Records], at: int, shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """The chunk that begins at record `at` of each batch: records, targets, and which rows hold a record.

    shape: slots and rows.
    """
    x, y = (column.new_zeros((*shape, *column.shape[1:])) for column in batches[0])
    there, rows = torch.zeros(shape, dtype=torch.bool), shape[1]
    for slot, (inputs, targets) in enumerate(batches):
        n = len(inputs[at : at + rows])
        x[slot, :n], y[slot, :n], there[slot, :n] = inputs[at : at + rows], targets[at : at + rows], True
    return x, y, there


def _drop(rows: Tensor, x: Tensor, y: Tensor, there: Tensor) -> None:
    """Make these rows, (slots, rows), rows without a record."""
    there[rows] = False
    x[rows] = 0
    y[rows] = 0


def _clipped(
    stack: Stack, x: Tensor, y: Tensor, there: Tensor, config: DPSGD
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Every record's clipped gradient as factors in float64, layer by layer, and which records are usable."""
    weights = there.float()
    back = stack.back(widened(x), y, weights, weights[:, :, None])
    # |slope x input|^2 = |slope|^2 |input|^2, and a bias is one more input that is always 1
    squares = [slope.square().sum(2) * (given.square().sum(2) + 1) for given, slope in back.layers]
    norms = torch.stack(squares).sum(0).sqrt()
    scale = (config.clip_norm * (1 - SLACK) / norms).clamp_(max=1)[:, :, None]
    parts = [(given.double(), (slope * scale).double()) for given, slope in back.layers]
    return parts, torch.isfinite(norms) & torch.isfinite(back.losses)


def require_alike(fit: Fit, rows: int, slots: int) -> None:
    """Try two public records in all places of all slots, and one of them among zeros.

    Of the fit's records only shapes and types are used. Raises ConfigError if a record's gradient depends on
    its place, on its slot, or on other records. Torch is then built with kernels that slots cannot use.
    """
    columns = records(fit.context.x, fit.context.y, fit.problem.loss)
    stack = stack_of(fit, [fit.problem.initial] * slots, slots)
    full, alone = (_factors(stack, probe) for probe in probes_of(columns, slots * rows))
    if not stay_apart(full, alone):
        raise ConfigError(
            "Expected kernels that compute each record of a product on its own, got others: clients cannot "
            'be trained side by side here. Set training = "sequential" under [runtime], in a new folder.'
        )


def _factors(stack: Stack, probe: Sequence[Tensor]) -> Tensor:
    """What a record's gradient is made of, (slots * rows, ...)."""
    x, y = (column.flatten(1) if column.ndim > 1 else column for column in probe)
    x, y = (column.view(stack.slots, -1, *column.shape[1:]) for column in (x, y))
    back = stack.back(widened(x), y, torch.ones(x.shape[:2]))
    return torch.cat([part.flatten(0, 1) for layer in back.layers for part in layer], dim=1)


def tail_of(fit: Fit) -> Tail:
    """The tail of this training. A penalty is none of private training's."""
    return Tail(
        loss=fit.problem.loss,
        activation=fit.activation,
        penalty=fit.penalty if fit.problem.private is None else None,
        under_head=fit.under_head,
    )
