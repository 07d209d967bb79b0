"""The base of personalised protocols: clients share a part of what they train, and keep the rest.

`Personal` turns three hooks of a protocol into a part of federated averaging: it bounds the update, answers
for a training that failed, tests each client's model on records like its own, and exports it. What a client
keeps is client state, which never leaves its device.

`SharedLayers` shares layers: LG-FedAvg the last ones, FedPer, FedRep and FedBABU all but these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import nan
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from securefl.algorithm import ClientContext, ClientState, Device, Evaluation, Float32s
from securefl.errors import ConfigError, DataError
from securefl.protocols.contributions import training_job
from securefl.protocols.local_accuracy import Tested, local_accuracy
from securefl.protocols.parts import Part, ReadsState
from securefl.training import Learnt, ModelConfig, Problem, evaluate, pooled
from securefl.training.heads import entries, last_layers, output_layer, places
from securefl.training.jobs import TrainingJob, kept_values
from securefl.training.task import Bodies

__all__ = ["Personal"]


@dataclass(frozen=True, eq=False)
class Personal(Part):
    """A `Part` under which each client has a model of its own.

    A protocol says what a client trains (`fit`), what of it is shared and what its client keeps (`split`),
    and which model the client then has (`model`).

    Raises nothing when it is made.

    >>> import numpy as np
    >>> from securefl.protocols.personal import Personal
    >>> class Kept(Personal):
    ...     def split(self, context, trained):
    ...         return trained, {"model": trained.copy()}
    ...     def model(self, client, shared, kept):
    ...         return kept.get("model", shared)
    >>> Kept(None).model(0, np.zeros(1, np.float32), {"model": np.ones(1, np.float32)})
    array([1.], dtype=float32)
    """

    reads_state: ClassVar[ReadsState] = "unbound"

    def of(self, client: int) -> Problem:
        """The problem of a client."""
        return self.problem

    def model(self, client: int, shared: Float32s, kept: ClientState) -> Float32s:
        """Return a client's model.

        Args:
            client: the client's number.
            shared: the shared values, float32 (d,).
            kept: the client's state. Empty before it trained.

        Returns:
            The whole model, float32 (m,).
        """
        raise NotImplementedError

    def common(self, shared: Float32s) -> Float32s | None:
        """Return the whole model of all clients, of which reports have the accuracy too.

        Args:
            shared: the shared values, float32 (d,).

        Returns:
            float32 (m,). By default None: clients share no whole model.
        """
        return None

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation:
        """Test each client's own model on records like its own.

        Args:
            shared: the shared values, float32 (d,).
            devices: the observer's view of each client.

        Returns:
            The means over clients, and figures by name, float64 (N,). If there is a common model, they have
            its "global accuracy" on each client's records.
        """

        # Each client's own model is tested on records like its own.
        def tested(client: int, kept: ClientState, x: NDArray[Any], y: NDArray[Any]) -> Evaluation:
            problem = self.of(client)
            return evaluate(problem.module(self.model(client, shared, kept)), x, y, problem.kind)

        found = each_on_its_own(devices, tested)
        if (common := self.common(shared)) is None:
            return found
        module, kind = self.problem.module(common), self.problem.kind
        whole = [evaluate(module, own.x, own.y, kind).accuracy if len(own.x) else nan for own in devices]
        return replace(found, figures={"global accuracy": np.array(whole), **found.figures})

    def learnt(self, shared: Float32s, client: int | None, kept: ClientState) -> Learnt:
        """Return the model that a user exports (see `training.learnt.Exportable`).

        Args:
            shared: the shared values, float32 (d,).
            client: the client whose model it is. None is the common one.
            kept: that client's state.

        Raises:
            ConfigError: no client is named, and clients share no whole model.
        """
        if client is None:
            return super().learnt(shared, client, kept)
        return Learnt(problem=self.of(client), vector=self.model(client, shared, kept))


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedLayers(Personal):
    """Clients share some layers, and each keeps its whole model.

    layers: a number of dense layers, counted from the last.
    side: "head": these layers are shared. "body": all others are.
    shorter: as for `Bodies`.

    Raises ConfigError unless the shared layers have equal shapes in the bodies of both lengths.
    """

    keeps_trained = True
    layers: int = 1
    side: Literal["head", "body"] = "body"
    shorter: float = 0.0

    def __post_init__(self) -> None:
        if not self.shorter:
            return
        long, short = (
            [tuple(layer.weight.shape) for layer in last_layers(problem.layers, self.layers)]
            for problem in (self.problem, self.problem.shorter)
        )
        if long != short:
            raise ConfigError(
                "Expected shared layers of equal shapes in bodies of both lengths, got "
                f"{', '.join(map(str, long))} and {', '.join(map(str, short))}. Share fewer `layers`, give "
                "`hidden` equal widths, or leave `shorter` out."
            )

    def of(self, client: int) -> Problem:
        return Bodies(self.problem, self.shorter).of(client)

    @cached_property
    def initial(self) -> Float32s:
        return self.problem.initial[self.places(self.problem)]

    def fit(self, context: ClientContext) -> TrainingJob:
        start = self.under_shared(context.client, context.broadcast, context.kept)
        return training_job(self.of(context.client), context, start)

    def split(self, context: ClientContext, trained: Float32s) -> tuple[Float32s, ClientState | None]:
        return trained[self.places(self.of(context.client))], {"model": trained.copy()}

    def model(self, client: int, shared: Float32s, kept: ClientState) -> Float32s:
        averaged = self.under_shared(client, shared, kept)
        return kept_values(kept, "model", averaged) if self.problem.tested_at == "own" else averaged

    def under_shared(self, client: int, shared: Float32s, kept: ClientState) -> Float32s:
        """The client's model (d,) with the shared layers that the server sent: the start of its training."""
        problem = self.of(client)
        vector = kept_values(kept, "model", problem.initial)
        places = self.places(problem)
        # Bodies differ in length, and their shared layers do not.
        if shared.shape != places.shape or not np.isfinite(shared).all():
            raise DataError(
                f"Expected {len(places)} finite shared values, got the shape {shared.shape}, or values that "
                "are not finite."
            )
        vector[places] = shared
        return vector

    def learnt(self, shared: Float32s, client: int | None, kept: ClientState) -> Learnt:
        if client is not None:
            return super().learnt(shared, client, kept)
        vector, module = self.problem.initial.copy(), self.problem.layers
        vector[self.places(self.problem)] = shared
        names = entries(module, last_layers(module, self.layers))
        if self.side == "body":
            names = frozenset(n for n, v in module.state_dict().items() if v.is_floating_point()) - names
        return Learnt(problem=self.problem, vector=vector, shared=names)

    def statistics(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        shared = self.places(self.problem)
        averaged, variances = (np.flatnonzero(np.isin(shared, own)) for own in self.problem.averaged)
        return averaged, variances

    @cached_property
    def places(self) -> Callable[[Problem], NDArray[np.int64]]:
        """`_places`, which is found once for each body."""
        return cache(self._places)

    def _places(self, problem: Problem) -> NDArray[np.int64]:
        """The positions of the shared values in the model's vector, int64.

        Raises ConfigError if the model has no such layer.
        """
        module = problem.layers
        output_layer(module, problem.outputs, biased=False)
        head = places(module, last_layers(module, self.layers))
        if self.side == "head":
            return head
        rest = np.setdiff1d(np.arange(len(problem.initial)), head)
        if not len(rest):
            raise ConfigError(
                f"Expected a model with trained layers before its last {self.layers} dense one(s), which "
                "clients share, got none. Set `hidden` under [model], set `layers` in the arm if it or its "
                "`preset` has more than 1, leave one free if the model freezes them, or take another model."
            )
        return rest


def each_on_its_own(devices: Sequence[Device], tested: Tested) -> Evaluation:
    """The accuracy and loss of each client's model on its test records, all records together.

    A client without test records does not count. All is nan if no client has any. The figure is that of local
    accuracy, on each client's own held-out records.
    """
    there = [(client, own) for client, own in enumerate(devices) if len(own.x)]
    found = pooled([(len(own.x), tested(client, own.kept, own.x, own.y)) for client, own in there])
    return replace(found, figures=local_accuracy(devices, tested))


@dataclass(frozen=True, eq=False)
class HeadAlone:
    """The training of the head alone, the last dense layers, under a frozen body in evaluation mode.

    epochs: the passes over the records. Private training has its own number of steps.
    rate: the learning rate, in multiples of the problem's.
    layers: the number of dense layers, from the last, that are the head.
    Raises ConfigError for a model whose head cannot be trained alone.
    """

    whole: Problem
    epochs: int
    rate: float = 1.0
    layers: int = 1

    def __post_init__(self) -> None:
        output_layer(self.whole.layers, self.whole.outputs)
        if self.layers > 1 and not isinstance(self.whole.model, ModelConfig):
            raise ConfigError(
                "Expected a packaged model for a head of several layers, between which ReLU is known to be, "
                f"got another one with layers = {self.layers}. Set layers = 1, or take `kind = "
                '"mlp"` or a packaged CNN under [model].'
            )

    @property
    def _dense(self) -> Sequence[nn.Linear]:
        return last_layers(self.whole.layers, self.layers)

    def before(self, training: TrainingJob) -> TrainingJob:
        """The training, before which the head of its start is trained alone."""
        head = training.start[self.whole.last(self.layers)]
        return replace(
            training, head_first=TrainingJob(problem=self._head, start=head, context=training.context)
        )

    @cached_property
    def _head(self) -> Problem:
        """The problem of the head. Its records are features."""
        whole, rate = self.whole, self.rate
        local, private = whole.local, whole.private
        if private is not None:
            private = replace(private, learning_rate=rate * private.learning_rate)
        return replace(
            whole,
            model=ModelConfig(
                kind="mlp",
                hidden=tuple(layer.out_features for layer in self._dense[:-1]),
                dropout=getattr(whole.model, "dropout", 0.0) if self.layers > 1 else 0.0,
            ),
            shape=(self._dense[0].in_features,),
            local=replace(local, learning_rate=rate * local.learning_rate, epochs=self.epochs, steps=None),
            private=private,
        )
