"""Batched local training of several clients' dense models, side by side in one computation, also by DP-SGD.

Each client draws its own batches from its own stream and takes its own number of steps, as in training alone.
The last bits of its model differ from training alone, since a product is summed in another order. Such a
difference grows if a record lies on the kink of a ReLU and changes its side, or if the training is unstable.
The same happens between two machines.

A client's bits must not depend on the other clients. The noise covers the change that one client or record
can cause. If it also moved all other clients over the kinks of their ReLUs, the noise would be too small. So
all passes have the same shape: a number of slots that follows from the plan (`slots_for`), each with as many
rows as a mini-batch may have. Rows without a record hold zeros. A client's bits then depend neither on the
other clients of the wave nor on its slot.

With record-level privacy, each client runs the mechanism of `dpsgd`: it draws records and noise from its own
source, its own records' gradients are clipped, and it alone is charged. One record must change no gradient
but its own (`chunks`), so all these passes have the same shape too:

- The number of slots is fixed, with `chunk` rows each. Unused slots and rows hold zeros.
- Pass c has the c-th chunk of every client, or zeros if the client has no more records.
- Every slot's memory begins at the same alignment, and so does every row in it (`products`).

The bits of a record's clipped gradient then do not depend on the rest of its batch, on the other clients of
the wave, or on its client's slot. `require_alike` tests this on public records.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from securefl.algorithm.queries import Float32s
from securefl.core.errors import ConfigError, DataError
from securefl.dp.noise import Source
from securefl.training.clipped import Outer, clip
from securefl.training.devices import as_tensor, one_thread
from securefl.training.heads import shifted
from securefl.training.jobs import HookSteps, Trainer, TrainingJob, TrainingResult
from securefl.training.local import LocalTraining, diverged, passes
from securefl.training.losses import name_of, records, require_records
from securefl.training.models import MLP, Changed, ModelConfig
from securefl.training.private_steps import DPSGD, Records, private_steps
from securefl.training.private_steps import diverged as diverged_privately
from securefl.training.probes import probes_of, stay_apart
from securefl.training.products import UNIT, widened
from securefl.training.stack import Stack, Tail
from securefl.training.task import Problem
from securefl.training.vector import optimizer_of

SLOTS: Final = 10
"""The slots of a pass for a large cohort, or if no plan gives the size of the cohort."""


MOST_ROWS: Final = 1024
"""The most rows of a pass. With larger mini-batches, training side by side is not faster."""
MOST_SLOTS: Final = 16
"""The largest cohort that trains in one pass."""
_MOST_WEIGHTS: Final = 2**23
"""The most weights of a pass: 32 MB. Beyond, they leave the processor's last cache between two steps."""
_GATHERED: Final = 2**20
"""The number of record values that are gathered at a time: 4 MB."""


def slots_for(cohort: int) -> int:
    """The number of slots of a pass. It follows from the plan, not from the clients of a round.

    cohort: the smallest cohort of a query, `ValueSpec.cohort`, or 0 if no plan gives it.
    """
    if not cohort:
        return SLOTS
    # Up to MOST_SLOTS clients, one pass is faster than two. Above, passes of about SLOTS clients are fastest.
    passes = 1 if cohort <= MOST_SLOTS else -(-cohort // SLOTS)
    return -(-cohort // passes)


def slots_within(slots: int, weights: int) -> int:
    """The number of slots of a pass for models of so many weights: `slots`, or fewer for wide models.

    It is public: it follows from the plan and from the shape of the model.

    >>> from securefl.training.cohorts import slots_within
    >>> slots_within(10, 159_010), slots_within(10, 1_590_010), slots_within(10, 10**7)
    (10, 5, 1)
    """
    passes = -(-slots // max(1, _MOST_WEIGHTS // weights))
    return -(-slots // passes)


def why_alone(problem: Problem) -> str:
    """The reason why the clients of this problem cannot train side by side, or "" if they can."""
    if problem.hardware.gpu is not None:
        return "their models are on a GPU"
    if problem.private is None and problem.local.batch_size > MOST_ROWS:
        return f"mini-batches of more than {MOST_ROWS:,} records gain nothing side by side"
    if problem.declared_loss is not None:
        return "the study declares a loss"
    model = problem.model
    if isinstance(model, Changed) and model.change is shifted:  # a stack has room for the shift
        model = model.of
    # By the description: a user's own one may build this package's `MLP` and then change or hook its layers.
    if not isinstance(model, ModelConfig):
        return "the model is not one of this package's"
    if model.train is not None:
        return "some of the model's values are frozen"
    if model.draws:
        return "dropout or augmentation draws from each client's own generator"
    # Other models may keep state between batches, which slots would share. Convolutions are not faster on a
    # CPU.
    stacked = model.kind == "mlp"
    return "" if stacked else f"{type(problem.layers).__name__} is not the packaged stack of dense layers"


class Batched:
    """A trainer that runs fits of the same shape side by side, and passes all others to the trainer `rest`.

    slots: the number of slots of each pass, constant in a run. Wide models have fewer (`slots_within`).

    Raises ConfigError if torch's kernels do not keep slots and rows apart.
    """

    def __init__(self, rest: Trainer, slots: int = SLOTS) -> None:
        self._rest, self.slots = rest, slots
        self._tried: set[tuple[Problem, int]] = set()

    def __call__(self, fits: Sequence[TrainingJob]) -> list[TrainingResult]:
        came: dict[int, TrainingResult] = {}
        fits = self._under_heads(fits, came)
        groups = self._groups({place: fit for place, fit in enumerate(fits) if place not in came})
        alone = groups.pop(None, [])
        for slots, places in self._waves(fits, groups):
            run = fit_together if fits[places[0]].problem.private is None else fit_privately
            came |= zip(places, run([fits[place] for place in places], slots), strict=True)
        if alone:
            came |= zip(alone, self._rest([fits[place] for place in alone]), strict=True)
        return [came[place] for place in range(len(fits))]

    def _groups(self, fits: Mapping[int, TrainingJob]) -> dict[Hashable, list[int]]:
        """The places of fits that can run side by side, by what they share. Under None those that cannot."""
        groups: dict[Hashable, list[int]] = {}
        for place, fit in fits.items():
            groups.setdefault(self._alike(fit), []).append(place)
        return groups

    def _waves(
        self, fits: Sequence[TrainingJob], groups: Mapping[Hashable, list[int]]
    ) -> Iterator[tuple[int, list[int]]]:
        """The slots and the places of each pass, whose kernels have been tested."""
        for places in groups.values():
            slots = slots_within(self.slots, len(fits[places[0]].problem.initial))
            self._try(fits[places[0]], slots)
            # Clients of similar sizes share a pass, so few slots wait for others.
            places.sort(key=lambda place: -len(fits[place].context.x))
            for at in range(0, len(places), slots):
                yield slots, places[at : at + slots]

    def _under_heads(self, fits: Sequence[TrainingJob], came: dict[int, TrainingResult]) -> list[TrainingJob]:
        """The fits, under the heads that are trained first, side by side too. Errors go into `came`."""
        found, heads = list(fits), dict[int, TrainingJob]()
        # Whole models, so that the test of the kernels covers the features too.
        whole = [replace(fit, under_head=0) for fit in fits]
        groups = self._groups({place: whole[place] for place, fit in enumerate(fits) if fit.head_first})
        # A fit that runs alone trains its own head: one attempt on a GPU then covers both trainings.
        groups.pop(None, None)
        for slots, places in self._waves(whole, groups):
            layers = fits[places[0]].under_head or 1
            features = features_together([whole[place] for place in places], slots, layers)
            for place, own in zip(places, features, strict=True):
                heads[place] = fits[place].on_features(own)
        for place, head in zip(heads, self([*heads.values()]) if heads else (), strict=True):
            if isinstance(head, DataError):
                came[place] = head
            else:
                found[place] = fits[place].under(head)
        return found

    def _try(self, fit: TrainingJob, slots: int) -> None:
        """Test the kernels of this kind of training, once in a run."""
        if (kind := (fit.problem, fit.under_head)) not in self._tried:
            with one_thread():
                require_alike(replace(fit, penalty=None), rows_of(fit.problem), slots)
            self._tried.add(kind)

    def _alike(self, fit: TrainingJob) -> Hashable:
        """The key that fits must share to run side by side. None if a fit must run alone, as on a GPU."""
        problem, x, y = fit.problem, fit.context.x, fit.context.y
        if why_alone(problem) or (fit.under_head and problem.model.hidden == ()):
            return None
        # The training that runs alone raises the error.
        if fit.turns > 1 or fit.model.shape != problem.initial.shape:
            return None
        try:
            require_records(x, y, problem.loss)
        except DataError:  # the training that runs alone raises it
            return None
        # Without records there is no step, and an unknown label makes torch raise. Private training drops a
        # record with an unknown label.
        # A hook holds a record back.
        if problem.private is None and not (len(x) > (fit.hook is not None) and _known(problem, y)):
            return None
        forms = (x.dtype, x.shape[1:], y.shape[1:])
        how = (fit.under_head, fit.activation, fit.penalty, fit.envelope, fit.hook)
        return (problem, fit.context.round, *how, forms)


def fit_together(fits: Sequence[TrainingJob], slots: int) -> list[TrainingResult]:
    """Train at most `slots` clients of one shape side by side, without DP-SGD. Each must have records."""
    config, hook = fits[0].problem.local, fits[0].hook
    came: dict[int, TrainingResult] = {}
    with torch.no_grad(), one_thread():
        stack = stack_of(fits[0], [fit.model for fit in fits], slots)
        steps = None if hook is None else hook.together(fits, stack)
        seen = [(fit.context.x, fit.context.y) for fit in fits] if steps is None else steps.seen
        lasts = [config.batches(len(y)) for _, y in seen]
        envelope = fits[0].envelope
        pull = config.proximal if envelope is None else envelope.weight
        near = stack.values.clone() if pull else None
        optimizer = optimizer_of(config, config.rate(fits[0].context.round - 1), near, pull)
        total = torch.zeros(slots, rows_of(fits[0].problem))
        for number, batch in enumerate(_batches(fits, seen, slots, steps), start=1):
            if steps is not None:
                steps.before()
            for _ in range(1 if envelope is None else envelope.steps):
                back = stack.back(*batch)
                total.addcmul_(back.losses, batch.weights)
                if config.plain and near is None:
                    stack.descend(back, optimizer.rate)
                    continue
                optimizer.step(stack.values, stack.gradient(back))
            if envelope is not None and near is not None:
                envelope.move(near, stack.values)
            # Copy a slot at its last step: momentum or decay still moves it until all slots have ended.
            if ended := [slot for slot, last in enumerate(lasts) if last == number]:
                fine = (stack.finite() & torch.isfinite(total).all(1)).tolist()
                moved = None if envelope is None or near is None else stack.layout.rows(near).numpy()
                for slot in ended:
                    model = stack.vector(slot)
                    if not fine[slot]:
                        came[slot] = diverged(optimizer.rate)
                    elif steps is not None:
                        came[slot] = _ended(steps, slot, model)
                    else:
                        came[slot] = model if moved is None else np.concatenate([model, moved[slot]])
    return [came[slot] for slot in range(len(fits))]


def features_together(fits: Sequence[TrainingJob], slots: int, layers: int = 1) -> list[Float32s]:
    """The features (n, width) that the body of each fit's start has of its records.

    layers: the number of dense layers, from the last, that are the head.

    Its passes have the shape of those in which at most `slots` clients train.
    """
    problem, rows = fits[0].problem, rows_of(fits[0].problem)
    columns = [records(fit.context.x, fit.context.y, problem.loss) for fit in fits]
    with torch.no_grad(), one_thread():
        stack = stack_of(fits[0], [fit.start for fit in fits], slots)
        batches = [(x.flatten(1), y) for x, y in columns]
        chunks = range(0, max(1, *(len(y) for _, y in columns)), rows)
        passes = [stack.features(widened(_chunk(batches, at, (slots, rows))[0]), layers) for at in chunks]
        whole = torch.cat(passes, 1).numpy()
    return [own[: len(y)] for own, (_, y) in zip(whole, columns, strict=False)]


def _ended(steps: HookSteps, slot: int, model: Float32s) -> TrainingResult:
    try:
        return steps.result(slot, model)
    except DataError as error:
        return error


def _known(problem: Problem, y: NDArray[Any]) -> bool:
    """Whether the model has an output for each of these labels. There must be at least one."""
    return problem.kind != "classification" or bool(y.min() >= 0 and y.max() < problem.outputs)


def rows_of(problem: Problem) -> int:
    """The number of rows of a pass: public, and a multiple of UNIT (`chunks`)."""
    if problem.private is not None:
        return problem.private.chunk
    return -(-problem.local.batch_size // UNIT) * UNIT


class Batch(NamedTuple):
    """A mini-batch of every slot: the arguments of `Stack.back`."""

    x: Tensor
    y: Tensor
    weights: Tensor
    there: Tensor | None


def _batches(
    fits: Sequence[TrainingJob],
    seen: Sequence[tuple[NDArray[Any], NDArray[Any]]],
    slots: int,
    beside: HookSteps | None,
) -> Iterator[Batch]:
    """The mini-batches of all slots of the records `seen`, until no client has one left.

    Rows without a record are zero and have weight 0. A record has weight 1 / (records of its mini-batch).
    """
    problem, rows = fits[0].problem, rows_of(fits[0].problem)
    columns = [(x.reshape(len(x), -1), y) for x, y in seen]
    sizes = [_sizes(len(y), problem.local.batches(len(y)), problem.local.batch_size) for _, y in columns]
    orders = [
        _order(len(y), problem.local, fit.context.rng, None if beside is None else partial(beside.draw, slot))
        for slot, (fit, (_, y)) in enumerate(zip(fits, seen, strict=True))
    ]
    # Gather several steps at a time: for small steps, gathering would take longer than computing.
    most, gathered = max(map(len, sizes)), max(1, _GATHERED // (slots * rows * columns[0][0].shape[1]))
    for at, end in pairwise([*range(0, most, gathered), most]):
        steps = end - at
        # Tensors, since torch aligns their memory. Writing to them as arrays is faster.
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
        # Slots without a client are not checked: their results are discarded.
        full: NDArray[np.bool_] = np.all(weights[: len(fits)].reshape(len(fits), steps, rows), (0, 2))
        parts = (part.view(slots, steps, rows, *part.shape[2:]).unbind(1) for part in (*block, there))
        for step, filled in zip(zip(*parts, strict=True), full, strict=True):
            yield Batch(step[0], step[1], step[2], None if filled else step[3])


def _gather(
    column: NDArray[Any], chosen: NDArray[np.int64], places: NDArray[np.int64] | None, to: NDArray[Any]
) -> None:
    """Write the chosen records into the rows `places`, or into the first rows. All other rows become zero."""
    if places is None:
        # "clip" writes directly and "raise" makes a copy first. No index is out of range here.
        np.take(column, chosen, 0, out=to[: len(chosen)], mode="clip")
        to[len(chosen) :] = 0
    else:
        to[...] = 0
        to[places] = column[chosen]


def _order(
    n: int, config: LocalTraining, rng: np.random.Generator, draw: Callable[[], None] | None
) -> NDArray[np.int64]:
    """The positions of a client's n records in the order of training, over all passes.

    draw: called for each mini-batch, when a client that trains alone comes to it.
    """
    shuffled = []
    for order in passes(n, config, rng):
        shuffled.append(order)
        if draw is not None:
            for _ in range(0, len(order), config.batch_size):
                draw()
    return shuffled[0] if len(shuffled) == 1 else np.concatenate(shuffled)


@lru_cache(maxsize=256)
def _sizes(n: int, batches: int, size: int) -> tuple[int, ...]:
    """The number of records of each mini-batch. The last one of a pass may have fewer."""
    of_a_pass = [min(size, n - at) for at in range(0, n, size)]
    return tuple(of_a_pass[number % len(of_a_pass)] for number in range(batches))


@lru_cache(maxsize=256)
def _places(
    sizes: tuple[int, ...], at: int, steps: int, rows: int
) -> tuple[int, int, NDArray[np.int64] | None, NDArray[np.float32]]:
    """The rows of the records of mini-batches `at` to `at + steps`. The caller must not write to the arrays.

    Every mini-batch begins at a multiple of `rows`.

    Returns:
        The first record and the one after the last, in the order of training. Their rows, or None if these
        are the first rows without a gap. The weights of all rows.
    """
    here = sizes[at : at + steps]
    weights = np.zeros((steps, rows), np.float32)
    for own, size in zip(weights, here, strict=False):
        own[:size] = 1 / size
    first, count = sum(sizes[:at]), sum(here)
    places = np.flatnonzero(weights)
    return first, first + count, None if count == 0 or places[-1] == count - 1 else places, weights.ravel()


# With privacy per record ----------------------------------------------------------------------------


def fit_privately(fits: Sequence[TrainingJob], slots: int) -> list[TrainingResult]:
    """Train at most `slots` clients of the same shape side by side, each with record-level privacy."""
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
            lambda rows: stack.layout.place([*rows.numpy()]),
        )
        fine = stack.finite().tolist()
        return [
            stack.vector(slot) if fine[slot] else diverged_privately(config.learning_rate)
            for slot in range(len(fits))
        ]


def stack_of(fit: TrainingJob, vectors: Sequence[Float32s], slots: int) -> Stack:
    """A stack with these models (d,) in the first slots, for this fit and others of the same shape."""
    model = fit.problem.layers
    assert isinstance(model, MLP)
    return Stack(model, vectors, tail_of(fit), slots=slots)


def clipped_sums(stack: Stack, batches: Sequence[Records], config: DPSGD) -> Tensor:
    """Each slot's sum of clipped gradients over its batch, float64, in the layout of the stack's values.

    A record with a non-finite loss or gradient norm is dropped: the sum has the same bits as without it.
    """
    sums = torch.zeros(len(stack.values), dtype=torch.float64)
    layers = stack.layout.layers(sums)
    for at in range(0, max(len(x) for x, _ in batches), config.chunk):
        x, y, there = _chunk(batches, at, (stack.slots, config.chunk))
        if not (known := stack.known(y)).all():
            there[~known] = False
            x[~known], y[~known] = 0, 0
        for part, layer in zip(_clipped(stack, x, y, there, config), layers, strict=True):
            layer.weight.baddbmm_(part.slope.transpose(1, 2), part.input)
            layer.bias.add_(part.slope.sum(1))
    return sums


def _chunk(batches: Sequence[Records], at: int, shape: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """The chunk that begins at record `at` of each batch: records, targets, and a mask of the used rows.

    shape: (slots, rows).
    """
    x, y = (column.new_zeros((*shape, *column.shape[1:])) for column in batches[0])
    there, rows = torch.zeros(shape, dtype=torch.bool), shape[1]
    for slot, (inputs, targets) in enumerate(batches):
        n = len(inputs[at : at + rows])
        x[slot, :n], y[slot, :n], there[slot, :n] = inputs[at : at + rows], targets[at : at + rows], True
    return x, y, there


def _clipped(stack: Stack, x: Tensor, y: Tensor, there: Tensor, config: DPSGD) -> list[Outer]:
    """Each record's clipped gradient as factors, by layer. Those of a dropped record are zero."""
    weights = there.float()
    back = stack.back(widened(x), y, weights, weights[:, :, None])
    parts = [Outer.of(given, slope) for given, slope in back.layers]
    # Rows without a record are dropped too: under weights that are not finite, they are nan.
    scale = clip(parts, back.losses, config.clip_norm)
    return [part.scaled(scale) for part in parts]


def require_alike(fit: TrainingJob, rows: int, slots: int) -> None:
    """Test two public records in all places of all slots, and one of them among zeros.

    Only shapes and types of the fit's records are used. Raises ConfigError if a record's gradient depends on
    its place, on its slot, or on other records. Then this build of torch has kernels that slots cannot use.
    """
    columns = records(fit.context.x, fit.context.y, fit.problem.loss)
    stack = stack_of(fit, [fit.problem.initial] * slots, slots)
    probes = probes_of(columns, slots * rows)
    if not stay_apart(*(_factors(stack, probe) for probe in probes)):
        raise ConfigError(
            "Expected kernels that compute each record of a product on its own, got some that do not: "
            'clients cannot be trained side by side here. Set training = "sequential" under [runtime], in a '
            "new folder."
        )


def _factors(stack: Stack, probe: Sequence[Tensor]) -> Tensor:
    """The factors of each record's gradient, (slots * rows, ...)."""
    x, y = (column.flatten(1) if column.ndim > 1 else column for column in probe)
    x, y = (column.view(stack.slots, -1, *column.shape[1:]) for column in (x, y))
    back = stack.back(widened(x), y, torch.ones(x.shape[:2]))
    return torch.cat([part.flatten(0, 1) for layer in back.layers for part in layer], dim=1)


def tail_of(fit: TrainingJob) -> Tail:
    """The tail of this training. Private training has no penalty."""
    return Tail(
        loss=name_of(fit.problem.loss),
        activation=fit.activation,
        penalty=copy.copy(fit.penalty) if fit.problem.private is None else None,
        under_head=fit.under_head,
    )
