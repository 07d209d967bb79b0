"""LG-FedAvg (Liang et al. 2020): the last layers are averaged, and each client keeps its own body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    Algorithm,
    ClientContext,
    ClientState,
    CohortQuery,
    Contribution,
    Device,
    Evaluation,
    Float32s,
    Population,
    Value,
    ValueSpec,
)
from securefl.errors import DataError
from securefl.protocols.averaging import Averaging, Uniform, check_fraction
from securefl.protocols.contributions import UNSAMPLED, Sampling, bounded, to_fit, update_sends
from securefl.protocols.parts import Gathering, gather_mean
from securefl.training import Learnt, Problem, evaluate, pooled
from securefl.training.fit import Fit, Fitted, fitted
from securefl.training.heads import entries, last_layers
from securefl.training.heads import places as places_of
from securefl.training.task import Bodies


@dataclass(frozen=True, kw_only=True)
class LGFedAvg:
    """Options of LG-FedAvg: the last `layers` dense layers are averaged (1 or 2 in the FedLog paper).

    fraction: C; K = ceil(C N) clients a round.
    layers: the number of dense layers, from the last, that are shared. The others stay at their client.
    shorter: share of the clients whose body lacks its first hidden dense layer.
    """

    fraction: float = 1.0
    layers: int = 1
    shorter: float = 0.0

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        if self.layers < 1:
            raise ValueError(f"Expected layers >= 1, got {self.layers}.")

    def build(self, problem: Problem) -> Algorithm:
        part = LastLayers(Bodies(problem, self.shorter), self.layers)
        return Averaging(
            problem=problem,
            selection=Uniform(),
            fraction=self.fraction,
            aggregation="partial",
            part=part,
        )


@dataclass(frozen=True, eq=False)
class LastLayers:
    """The last dense layers are shared. Each client keeps the rest of its model."""

    bodies: Bodies
    layers: int

    @cached_property
    def initial(self) -> Float32s:
        problem = self.bodies.problem
        return problem.initial[self._shared(problem)]

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        return (LastLayersUpdate(self, sampling),)

    def gather(
        self,
        query: CohortQuery,
        population: Population,
        rng: np.random.Generator,
        contributions: Sequence[Contribution],
    ) -> Gathering:
        return gather_mean(query, *contributions)

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation:
        # There is no common model to test: each client's own model is tested on records like its own.
        return pooled(
            [
                (len(device.x), self._evaluated(client, shared, device))
                for client, device in enumerate(devices)
                if len(device.x)
            ]
        )

    def _evaluated(self, client: int, shared: Float32s, device: Device) -> Evaluation:
        problem = self.bodies.of(client)
        vector = self.model(client, shared, device.kept)
        return evaluate(problem.module(vector), device.x, device.y, problem.kind)

    def learnt(self, shared: Float32s, client: int | None, kept: ClientState) -> Learnt:
        if client is not None:
            return Learnt(problem=self.bodies.of(client), vector=self.model(client, shared, kept))
        problem = self.bodies.problem
        module = problem.module(problem.initial)
        names = entries(module, last_layers(module, self.layers))
        vector = problem.initial.copy()
        vector[self._shared(problem)] = shared
        return Learnt(problem=problem, vector=vector, shared=names)

    def model(self, client: int, shared: Float32s, kept: ClientState) -> Float32s:
        """The client's whole model (d,): its own body under the shared layers."""
        problem = self.bodies.of(client)
        vector: Float32s = np.array(kept.get("model", problem.initial), dtype=np.float32)
        places = self._shared(problem)
        # Bodies differ in length, and their shared layers do not.
        if shared.shape != places.shape:
            raise DataError(f"Expected {len(places)} shared values, got the shape {shared.shape}.")
        vector[places] = shared
        return vector

    def taken(self, client: int, model: Float32s) -> Float32s:
        """The shared layers of a client's model."""
        return model[self._shared(self.bodies.of(client))]

    def _shared(self, problem: Problem) -> NDArray[np.int64]:
        module = problem.module(problem.initial)
        return places_of(module, last_layers(module, self.layers))


@dataclass(frozen=True, eq=False)
class LastLayersUpdate:
    """The update of the shared layers in local training. The client keeps the rest of its model."""

    part: LastLayers
    sampling: Sampling = UNSAMPLED

    @property
    def spec(self) -> ValueSpec:
        return update_sends(self.part.bodies.problem, self.sampling)

    def fit(self, context: ClientContext) -> Fit:
        start = self.part.model(context.client, context.broadcast, context.kept)
        return to_fit(self.part.bodies.of(context.client), context, start)

    def value(self, context: ClientContext, trained: Fitted) -> Value:
        problem = self.part.bodies.problem
        if isinstance(trained, DataError):  # the client keeps its body of before
            return bounded(problem, context.broadcast, trained)
        shared = self.part.taken(context.client, trained)
        return replace(bounded(problem, context.broadcast, shared), new_state={"model": trained.copy()})

    def compute(self, context: ClientContext) -> Value:
        return self.value(context, fitted(self.fit(context)))
