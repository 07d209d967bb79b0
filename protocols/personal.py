"""Models of which clients share some layers and keep the others: the parts of LG-FedAvg, FedPer and FedRep.

    shared layers  x  local training

LG-FedAvg shares the last layers, and FedPer, FedRep and FedBABU share all but these. A client keeps the
values of its model that it does not share. They are client state, which never leaves its device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import (
    ClientContext,
    ClientState,
    CohortQuery,
    Contribution,
    Device,
    Evaluation,
    Float32s,
    Floats,
    Population,
    Value,
    ValueSpec,
)
from securefl.errors import ConfigError, DataError
from securefl.protocols.client_state import kept_values
from securefl.protocols.contributions import UNSAMPLED, Sampling, bounded, to_fit, update_sends
from securefl.protocols.local_accuracy import Tested, local_accuracy
from securefl.protocols.parts import Gathering, gather_mean
from securefl.training import Learnt, ModelConfig, Problem, evaluate, pooled
from securefl.training.chunks import body_features
from securefl.training.fit import Fit, Fitted
from securefl.training.fitting import fitted
from securefl.training.heads import entries, last_dense, last_layers, output_layer
from securefl.training.heads import places as places_of
from securefl.training.task import Bodies

Training = Callable[[Problem, ClientContext, Float32s], Fit]
"""The local training of a client: from its problem, its context and its whole model (d,)."""


@dataclass(frozen=True, kw_only=True)
class SharedLayers:
    """The layers that clients share.

    layers: a number of dense layers, counted from the last.
    side: "head": these layers are shared. "body": all others are.
    """

    layers: int
    side: Literal["head", "body"]

    def places(self, problem: Problem) -> NDArray[np.int64]:
        """The positions of the shared values in the model's vector, int64.

        Raises ConfigError if the model has no such layer.
        """
        module = problem.layers
        output_layer(module, problem.outputs, biased=False)
        head = places_of(module, last_layers(module, self.layers))
        if self.side == "head":
            return head
        rest = np.ones(len(problem.initial), np.bool_)
        rest[head] = False
        if not rest.any():
            raise ConfigError(
                f"Expected a model with layers before its last {self.layers} dense one(s), which clients "
                "share, got none. Set `hidden` under [model], lower `layers` of the arm if it has more than "
                "1, or take another model."
            )
        return np.flatnonzero(rest)

    def require_alike(self, bodies: Bodies) -> None:
        """Raises ConfigError unless the last layers have equal shapes in the bodies of both lengths."""
        if not bodies.shorter:
            return
        long, short = (
            [tuple(layer.weight.shape) for layer in last_layers(problem.layers, self.layers)]
            for problem in (bodies.problem, bodies.problem.shorter)
        )
        if long != short:
            raise ConfigError(
                "Expected shared layers of equal shapes in bodies of both lengths, got "
                f"{', '.join(map(str, long))} and {', '.join(map(str, short))}. Share fewer `layers`, give "
                "`hidden` equal widths, or leave `shorter` out."
            )

    def names(self, problem: Problem) -> frozenset[str]:
        """The names of the shared values in the model's state dict."""
        module = problem.layers
        head = entries(module, last_layers(module, self.layers))
        if self.side == "head":
            return head
        return frozenset(n for n, v in module.state_dict().items() if v.is_floating_point()) - head


@dataclass(frozen=True, eq=False)
class Personal:
    """Some layers are shared. Each client keeps the rest of its model.

    bodies: the problem of each client. The shared layers of all have equal shapes.
    train: the local training.
    charged: the problem whose private training the ledger counts, if that is not the problem's own.
    keeps: whether clients keep the layers that they do not share. Otherwise these have their first values.
    """

    bodies: Bodies
    shared: SharedLayers
    train: Training = to_fit
    charged: Problem | None = None
    keeps: bool = True

    @cached_property
    def initial(self) -> Float32s:
        problem = self.bodies.problem
        return problem.initial[self.shared.places(problem)]

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        return (SharedUpdate(self, sampling),)

    def gather(
        self,
        query: CohortQuery,
        population: Population,
        rng: np.random.Generator,
        contributions: Sequence[Contribution],
    ) -> Gathering:
        return gather_mean(query, contributions[0])

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation:
        # There is no common model to test: each client's own model is tested on records like its own.
        return each_on_its_own(
            devices,
            by_model(lambda client, kept: (self.bodies.of(client), self.model(client, shared, kept))),
        )

    def learnt(self, shared: Float32s, client: int | None, kept: ClientState) -> Learnt:
        if client is not None:
            return Learnt(problem=self.bodies.of(client), vector=self.model(client, shared, kept))
        problem = self.bodies.problem
        vector = problem.initial.copy()
        vector[self.shared.places(problem)] = shared
        return Learnt(problem=problem, vector=vector, shared=self.shared.names(problem))

    def model(self, client: int, shared: Float32s, kept: ClientState) -> Float32s:
        """The client's whole model (d,): its own layers beside the shared ones."""
        problem = self.bodies.of(client)
        vector = kept_values(kept if self.keeps else {}, "model", problem.initial)
        places = self.shared.places(problem)
        # Bodies differ in length, and their shared layers do not.
        if shared.shape != places.shape or not np.isfinite(shared).all():
            raise DataError(
                f"Expected {len(places)} finite shared values, got the shape {shared.shape}, or values that "
                "are not finite."
            )
        vector[places] = shared
        return vector

    def taken(self, client: int, model: Float32s) -> Float32s:
        """The shared layers of a client's model."""
        return model[self.shared.places(self.bodies.of(client))]


@dataclass(frozen=True, eq=False)
class SharedUpdate:
    """The update of the shared layers in local training. The client keeps the rest of its model."""

    part: Personal
    sampling: Sampling = UNSAMPLED

    @property
    def spec(self) -> ValueSpec:
        spec = update_sends(self.part.charged or self.part.bodies.problem, self.sampling)
        return replace(spec, reads_state="unbound") if self.part.keeps else spec

    def fit(self, context: ClientContext) -> Fit:
        start = self.part.model(context.client, context.broadcast, context.kept)
        return self.part.train(self.part.bodies.of(context.client), context, start)

    def value(self, context: ClientContext, trained: Fitted) -> Value:
        problem = self.part.bodies.problem
        if isinstance(trained, DataError):  # the client keeps its layers of before
            return bounded(problem, context.broadcast, trained)
        update = bounded(problem, context.broadcast, self.part.taken(context.client, trained))
        return replace(update, new_state={"model": trained.copy()}) if self.part.keeps else update

    def compute(self, context: ClientContext) -> Value:
        return self.value(context, fitted(self.fit(context)))


Model = Callable[[int, ClientState], tuple[Problem, Float32s]]
"""The problem and the model (d,) of a client with this state."""


def by_model(model: Model) -> Tested:
    """The evaluation of each client's model."""

    def tested(client: int, kept: ClientState, x: NDArray[Any], y: NDArray[Any]) -> Evaluation:
        problem, vector = model(client, kept)
        return evaluate(problem.module(vector), x, y, problem.kind)

    return tested


def each_on_its_own(devices: Sequence[Device], tested: Tested) -> Evaluation:
    """The accuracy and loss of each client's model on its test records, all records together.

    A client without test records does not count. All is nan if no client has any. The figure is that of local
    accuracy, on each client's own held-out records.
    """
    there = [(client, own) for client, own in enumerate(devices) if len(own.x)]
    found = pooled([(len(own.x), tested(client, own.kept, own.x, own.y)) for client, own in there])
    return replace(found, figures=local_accuracy(devices, tested))


def accuracies(devices: Sequence[Device], tested: Tested) -> Floats:
    """Each client's accuracy on its test records, float64 (N,), nan for a client without any."""
    found = np.full(len(devices), nan)
    for client, own in enumerate(devices):
        if len(own.x):
            found[client] = tested(client, own.kept, own.x, own.y).accuracy
    return found


@dataclass(frozen=True, eq=False)
class HeadAlone:
    """The training of the head alone, the last dense layer, under a frozen body in evaluation mode.

    epochs: the passes over the records. Private training has its own number of steps.
    rate: the learning rate, in multiples of the problem's.
    Raises ConfigError for a model whose head cannot be trained alone.
    """

    whole: Problem
    epochs: int
    rate: float = 1.0

    def __post_init__(self) -> None:
        output_layer(self.whole.layers, self.whole.outputs)

    def fit(self, context: ClientContext, start: Float32s) -> Fit:
        """The training that begins at the model `start` (d,). Its result has the head's values alone."""
        model = self.whole.module(start)
        head = start[places_of(model, last_layers(model, 1))]
        # Such a body gives a record the same features in every pass.
        features = body_features(model, context.x).astype(np.float32)
        return Fit(problem=self._head, start=head, context=replace(context, x=features))

    @cached_property
    def _head(self) -> Problem:
        """The problem of the head. Its records are features."""
        whole, rate = self.whole, self.rate
        local, private = whole.local, whole.private
        if private is not None:
            private = replace(private, learning_rate=rate * private.learning_rate)
        return replace(
            whole,
            model=ModelConfig(kind="mlp", hidden=()),
            shape=(last_dense(whole.layers).in_features,),
            local=replace(local, learning_rate=rate * local.learning_rate, epochs=self.epochs, steps=None),
            private=private,
        )
