"""Federated dropout (Caldas et al. 2018): in each round the cohort trains one random subnet.

The server draws the units and publishes them. It sends only the subnet's values, and the sum has only its
entries. So the choice of units tells nothing of a client, and a round has one query. ADDS is compared with
it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Final

import numpy as np

from securefl.algorithm import (
    Algorithm,
    ClientContext,
    ClientState,
    CohortQuery,
    Value,
    ValueSpec,
)
from securefl.core.ranges import Fraction
from securefl.errors import DataError
from securefl.protocols.adds.contributions import packed, unpacked
from securefl.protocols.adds.part import OfSupernet
from securefl.protocols.adds.supernet import Layer, Mask
from securefl.protocols.averaging import Averaging, Options
from securefl.protocols.contributions import CLIPPED, Sampling, bounded, training_job
from securefl.protocols.local_accuracy import TRAINED, kept_trained
from securefl.protocols.parts import Gathering, ServerContext, gather_mean
from securefl.training import ModelConfig, Problem
from securefl.training.jobs import TrainingJob, TrainingResult
from securefl.training.models import Changed

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

    It is for one round of training. A client uses the whole model, unless models are tested as trained.
    """

    keep: float

    def used(self, kept: ClientState) -> Mask:
        return super().used(kept if TRAINED in kept else {})

    def spec(self, sampling: Sampling) -> ValueSpec:
        # Each round has entries of its own: noise that cancels over rounds would lie on others, and stay.
        return replace(super().spec(sampling), bounded_by=CLIPPED, accumulates=False)

    @cached_property
    def thin(self) -> Problem:
        """The problem of a subnet. Those of all rounds have the same shapes."""
        model, first = self.problem.model, self.drawn(np.random.default_rng(0))
        if isinstance(model, ModelConfig) and model.kind == "mlp":  # such a subnet is trained side by side
            widths = tuple(int(first[layer.own].sum()) for layer in self.supernet.sampled)
            return replace(self.problem, model=replace(model, hidden=widths))
        return replace(self.problem, model=Changed(model, lambda own: self.supernet.slice(own, first)))

    def units(self, context: ClientContext) -> Mask:
        """The units whose values were broadcast. Raises DataError unless they are of such a subnet."""
        units = unpacked(context.public.get(UNITS, np.zeros(0)), self.supernet.units)
        counts = [int(units[layer.own].sum()) for layer in self.supernet.sampled]
        expected = [self._count(layer) for layer in self.supernet.sampled]
        if counts != expected or context.broadcast.shape != self.thin.initial.shape:
            raise DataError(
                f"Expected {expected} units of the layers and {len(self.thin.initial)} values, got {counts} "
                f"and {context.broadcast.shape}: the client abstains. Send the values of these units."
            )
        return units

    def fit(self, context: ClientContext) -> TrainingJob:
        self.units(context)
        return training_job(self.thin, context, context.broadcast)

    def value(self, context: ClientContext, trained: TrainingResult) -> Value:
        value = bounded(self.problem, context.broadcast, trained)
        kept = {UNITS: self.units(context), **kept_trained(self.problem, trained)}
        return replace(value, new_state=kept)

    def gather(self, query: CohortQuery, here: ServerContext) -> Gathering:
        units = self.drawn(here.rng)
        there = self.supernet.entries(self.supernet.kept_groups(units))
        public = {**query.public, UNITS: packed(units)}
        asked = replace(query, broadcast=query.broadcast[there], public=public)
        own, answers = yield from gather_mean(asked, here.contributions[0])
        if own is None:
            return None, answers
        step = np.zeros(len(there))
        step[there] = own
        return step, answers

    def drawn(self, rng: np.random.Generator) -> Mask:
        """The units (J,) of one round: ceil(keep C) of each layer."""
        units = np.zeros(self.supernet.units, np.bool_)
        for layer in self.supernet.sampled:
            units[layer.own.start + rng.permutation(layer.units)[: self._count(layer)]] = True
        return units

    def _count(self, layer: Layer) -> int:
        return max(1, ceil(self.keep * layer.units - 1e-9))
