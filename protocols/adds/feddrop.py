"""Federated dropout (Caldas et al. 2018): in each round the cohort trains one random subnet.

The server draws the units and publishes them. It sends only the subnet's values, and the sum has only its
entries. So the choice of units tells nothing of a client, and a round has one query. ADDS is compared with
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import numpy as np

from securefl.algorithm import (
    Algorithm,
    ClientContext,
    CohortQuery,
    Contribution,
    Float32s,
    Population,
    Sum,
    Value,
    ValueSpec,
)
from securefl.core.ranges import Fraction
from securefl.errors import DataError
from securefl.protocols.adds.contributions import packed, unpacked
from securefl.protocols.adds.part import OfSupernet
from securefl.protocols.adds.supernet import Mask, Supernet
from securefl.protocols.averaging import Averaging, Options
from securefl.protocols.contributions import CLIPPED, UNSAMPLED, Sampling, bounded, update_sends
from securefl.protocols.parts import Gathering, step_of
from securefl.training import Problem, to_vector, train
from securefl.training.jobs import usable

UNITS: Final = "units"
"""The name of the public array of the units that are trained."""


@dataclass(frozen=True, kw_only=True)
class FedDrop(Options):
    """Federated dropout.

    keep: share of every layer's units that is trained in a round, drawn at random.

    Raises ValueError unless 0 < fraction <= 1 and 0 < keep <= 1.

    >>> from securefl.protocols.adds import FedDrop
    >>> FedDrop(fraction=0.1).keep
    0.75
    """

    keep: Fraction = 0.75

    def build(self, problem: Problem) -> Algorithm:
        part = Dropped(problem, keep=self.keep)
        part.supernet  # noqa: B018 -- raises the error of a problem without one
        return Averaging(problem=problem, fraction=self.fraction, part=part)


@dataclass(frozen=True, kw_only=True, eq=False)
class Dropped(OfSupernet):
    """The same subnet of random units for the whole cohort. The other entries keep their values.

    It is for one round of training. A client uses the whole model.
    """

    keep: float

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        return (DroppedUpdate(self.supernet, sampling),)

    def gather(
        self,
        query: CohortQuery,
        population: Population,
        rng: np.random.Generator,
        contributions: Sequence[Contribution],
    ) -> Gathering:
        (update,) = contributions
        units = self.drawn(rng)
        there = self.supernet.entries(self.supernet.kept_groups(units))
        answers = yield replace(
            query,
            broadcast=query.broadcast[there],
            sums=(Sum(update.spec, int(there.sum())),),
            public={**query.public, UNITS: packed(units)},
        )
        if not answers.survivors:
            return None, answers
        step = np.zeros(len(there))
        step[there] = step_of(query, answers.totals[update.spec.name])
        return step, answers

    def drawn(self, rng: np.random.Generator) -> Mask:
        """The units (J,) of one round: ceil(keep C) of each layer."""
        units = np.zeros(self.supernet.units, np.bool_)
        for layer in self.supernet.sampled:
            count = max(1, ceil(self.keep * layer.units - 1e-9))
            units[layer.own.start + rng.permutation(layer.units)[:count]] = True
        return units


@dataclass(frozen=True, eq=False)
class DroppedUpdate:
    """The update of the subnet that was broadcast."""

    supernet: Supernet
    sampling: Sampling = UNSAMPLED

    @property
    def spec(self) -> ValueSpec:
        own = update_sends(self.supernet.problem, self.sampling)
        return replace(own, bounded_by=CLIPPED)

    def compute(self, context: ClientContext) -> Value:
        supernet, problem = self.supernet, self.supernet.problem
        units = unpacked(context.public.get(UNITS, np.zeros(0)), supernet.units)
        there = supernet.entries(supernet.kept_groups(units))
        empty = not all(units[layer.own].any() for layer in supernet.sampled)
        if empty or context.broadcast.shape != (there.sum(),):
            raise DataError(
                f"Expected units of every layer and the {there.sum()} values of their subnet, got others: "
                "the client abstains. Send the values of these units."
            )
        start = np.zeros(len(there), np.float32)
        start[there] = context.broadcast
        model = problem.hardware.put(supernet.sliced(start, units))
        own = context if problem.local.update_bound is None else usable(problem, context)
        trained: Float32s | DataError
        try:
            train(model, own.x, own.y, problem.local, problem.loss, context.rng, context.round - 1)
            trained = to_vector(model)
        except DataError as error:
            trained = error
        return replace(bounded(problem, context.broadcast, trained), new_state={UNITS: units})
