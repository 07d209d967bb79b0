"""Training several clients in one computation, where their models can stand side by side.

Each client draws its own batches from its own stream, as it would alone, and takes its own number of steps.
Beside others only the last bits of its model differ, by the order in which a product is summed. Where a
record's bits matter, in private training, they do not change either (`private_cohorts`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from securefl.core.errors import DataError
from securefl.training.fit import Fit, Fitted, Trainer
from securefl.training.local import LocalTraining, diverged, optimizer_of, passes
from securefl.training.losses import records
from securefl.training.models import MLP
from securefl.training.private_cohorts import SLOTS, fit_privately
from securefl.training.stack import Back, Stack, stackable, tail_of
from securefl.training.task import Problem

AT_ONCE: Final = 20
"""Clients in one computation. More gain little, and each of them takes memory."""
_GATHERED: Final = 2**20
"""Values of records that are gathered at a time: 4 MB."""


def why_alone(problem: Problem) -> str:
    """Why the clients of this problem cannot stand side by side. Empty if they can."""
    model = problem.module(problem.initial)
    if problem.hardware.gpu is not None:
        return "their models are on a GPU"
    return "" if stackable(model) else f"{type(model).__name__} has other layers than dense ones"


class Batched:
    """The trainer that runs alike fits side by side, and leaves the others to `rest`."""

    def __init__(self, rest: Trainer) -> None:
        self._rest = rest
        self._stackable: dict[Problem, bool] = {}

    def __call__(self, fits: Sequence[Fit]) -> list[Fitted]:
        came: dict[int, Fitted] = {}
        groups: dict[Hashable, list[int]] = {}
        for place, fit in enumerate(fits):
            groups.setdefault(self._alike(fit), []).append(place)
        alone = groups.pop(None, [])
        for places in groups.values():
            private = fits[places[0]].problem.private is not None
            # Clients of like sizes stand together, and few rows of a batch are empty.
            places.sort(key=lambda place: -len(fits[place].job.x))
            most = SLOTS if private else AT_ONCE
            for together in (places[at : at + most] for at in range(0, len(places), most)):
                own = [fits[place] for place in together]
                came |= zip(together, fit_privately(own) if private else fit_together(own), strict=True)
        came |= zip(alone, self._rest([fits[place] for place in alone]) if alone else [], strict=True)
        return [came[place] for place in range(len(fits))]

    def _alike(self, fit: Fit) -> Hashable:
        """What fits must share to run side by side. None for a fit that must run alone, as on a GPU."""
        problem, x, y = fit.problem, fit.job.x, fit.job.y
        if problem not in self._stackable:
            self._stackable[problem] = not why_alone(problem)
        if not self._stackable[problem] or (fit.under_head and problem.model.hidden == ()):
            return None
        try:
            records(x, y, problem.loss)
        except DataError:  # said by the training that runs alone
            return None
        classes = problem.outputs if problem.kind == "classification" else None
        known = classes is None or bool(((y >= 0) & (y < classes)).all())
        # Without records nothing happens, and torch tells of a label that it does not know. Private training
        # drops such a record.
        if problem.private is None and not (len(x) and known):
            return None
        return (problem, fit.job.round, fit.under_head, fit.activation, fit.penalty)


def fit_together(fits: Sequence[Fit]) -> list[Fitted]:
    """Train these clients side by side, without privacy. They are alike, and each has records."""
    problem, config = fits[0].problem, fits[0].problem.local
    # The longest training comes first: who still trains is always in the first slots.
    order = sorted(range(len(fits)), key=lambda place: -config.batches(len(fits[place].job.x)))
    fits = [fits[place] for place in order]
    model = problem.module(fits[0].start)
    assert isinstance(model, MLP)
    optimizer = optimizer_of(config, fits[0].job.round - 1)
    total = torch.zeros(len(fits))
    with torch.no_grad():
        stack = Stack(model, [fit.start for fit in fits], tail_of(fits[0]), slots=len(fits))
        start = stack.values.clone() if config.proximal else None
        for x, y, weights in _batches(fits):
            active = len(x)
            values = stack.values[:active]
            back = stack.back(x, y, weights)
            total[:active] += (back.losses * weights).sum(1)
            if config.plain:
                stack.descend(back, optimizer.rate)
                continue
            gradient = _gradient(stack, back, values)
            if config.weight_decay:
                gradient.add_(values, alpha=config.weight_decay)
            if start is not None:
                gradient.add_(values - start[:active], alpha=config.proximal)
            optimizer.step(values, gradient)
        fine = torch.isfinite(total) & stack.finite()
    came = [stack.vector(slot) if fine[slot] else diverged(optimizer.rate) for slot in range(len(fits))]
    return [came[order.index(place)] for place in range(len(fits))]


def _gradient(stack: Stack, back: Back, values: Tensor) -> Tensor:
    """The gradients of the first m slots, in the form of their values (m, trained)."""
    gradient = torch.empty_like(values)
    for (given, slope), (weight, bias) in zip(back.layers, stack.views(gradient), strict=True):
        torch.bmm(slope.transpose(1, 2), given, out=weight)
        torch.sum(slope, 1, out=bias)
    return gradient


def _batches(fits: Sequence[Fit]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Mini-batches of the first m clients, those that still train: records, targets and weights.

    Rows without a record are zero and weigh nothing. A record weighs 1 / (records of its mini-batch).
    """
    config = fits[0].problem.local
    columns = [records(fit.job.x, fit.job.y, fit.problem.loss) for fit in fits]
    columns = [(x.flatten(1), y) for x, y in columns]
    draws = [list(_places(len(fit.job.x), config, fit.job.rng)) for fit in fits]
    rows = max(len(batch) for own in draws for batch in own)
    # Several steps are gathered at a time: small ones would take longer to gather than to compute.
    steps = max(1, _GATHERED // (len(fits) * rows * columns[0][0].shape[1]))
    for at in range(0, len(draws[0]), steps):
        here = [own[at : at + steps] for own in draws if len(own) > at]
        x, y = (column.new_empty((len(here), steps * rows, *column.shape[1:])) for column in columns[0])
        weights = torch.zeros(len(here), steps * rows)
        for slot, (own, (inputs, targets)) in enumerate(zip(here, columns, strict=False)):
            places, chosen = _rows(own, rows), torch.cat(own)
            _gather(inputs, chosen, places, x[slot])
            _gather(targets, chosen, places, y[slot])
            weights[slot, places] = torch.cat([torch.full((len(batch),), 1 / len(batch)) for batch in own])
        for step in range(len(here[0])):
            active, part = sum(len(own) > step for own in here), slice(step * rows, (step + 1) * rows)
            yield x[:active, part], y[:active, part], weights[:active, part]


def _gather(column: Tensor, chosen: Tensor, places: Tensor, to: Tensor) -> None:
    """Put the chosen records into these rows, and zeros into all others."""
    n = len(chosen)
    if int(places[-1]) == n - 1:  # no gaps: nothing is copied twice
        torch.index_select(column, 0, chosen, out=to[:n])
        to[n:] = 0
    else:
        to.zero_().index_copy_(0, places, column[chosen])


def _rows(batches: Sequence[Tensor], rows: int) -> Tensor:
    """The row of each record: every mini-batch begins at a multiple of `rows`."""
    return torch.cat([torch.arange(at * rows, at * rows + len(own)) for at, own in enumerate(batches)])


def _places(n: int, config: LocalTraining, rng: np.random.Generator) -> Iterator[Tensor]:
    """Each mini-batch's places among a client's n records."""
    for order in passes(n, config, rng):
        yield from torch.split(order, config.batch_size)
