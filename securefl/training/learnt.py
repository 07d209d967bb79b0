"""A model as a run leaves it: which architecture, which values, and which of them everybody has."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.algorithm.clients import State
from securefl.algorithm.queries import ClientState, Float32s
from securefl.core.errors import ConfigError
from securefl.training.heads import Bounded, last_dense
from securefl.training.task import Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class Learnt:
    """A model that can be taken away.

    Attributes:
        problem: says how the model is built.
        vector: its values, float32 (d,), as `to_vector` orders them.
        shared: the entries of its state dict that all clients have alike, if clients keep the others. Those
            then have the values that the public seed gives. None: all values are the model's.
        features: how the head's input is bounded, or None.
    """

    problem: Problem
    vector: Float32s
    shared: frozenset[str] | None = None
    features: Bounded | None = None

    def module(self) -> nn.Module:
        """A module of its own, on the CPU and in evaluation mode."""
        made = copy.deepcopy(self.problem.module(self.vector)).cpu().eval()
        bound_features(made, self.features)
        return made

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Its values by the names of its state dict. Whole numbers, which nothing here uses, are left out."""
        entries = self.problem.module(self.vector).state_dict()
        return {
            name: entry.detach().cpu().float().numpy().copy()
            for name, entry in entries.items()
            if entry.is_floating_point() and (self.shared is None or name in self.shared)
        }


@runtime_checkable
class Exportable(Protocol):
    """An algorithm whose models can be taken away."""

    def learnt(self, state: State, client: int | None, kept: ClientState) -> Learnt:
        """The model of a state: what all clients share, or that of one client, with what it kept.

        Raises ConfigError if a client is named and all have the same model.
        """
        ...


def common(problem: Problem, vector: Float32s, client: int | None, features: Bounded | None = None) -> Learnt:
    """The one model that all clients have. Raises ConfigError if a client is named."""
    if client is not None:
        raise ConfigError(
            f"Expected no client, got client {client}: all clients have the same model. Leave the client out."
        )
    return Learnt(problem=problem, vector=vector, features=features)


def bound_features(model: nn.Module, features: Bounded | None) -> None:
    """Let the input of the model's head pass `features` first, for good."""
    if features is None:
        return
    head, projection = last_dense(model), features.projection
    if projection is not None and projection.features != head.in_features:
        raise ConfigError(
            f"Expected a model whose head reads {projection.features} features, got {head.in_features}."
        )

    def bounded(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (features(inputs[0]),)

    head.register_forward_pre_hook(bounded)
