"""The trained model of a run (`Learnt`): its architecture, its values, and those that all clients share."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import nn

from securefl.algorithm.clients import State
from securefl.algorithm.queries import ClientState, Float32s
from securefl.core.errors import ConfigError
from securefl.training.heads import Bounded, bound_features
from securefl.training.task import Problem
from securefl.training.vector import kept_statistics


@dataclass(frozen=True, kw_only=True, eq=False)
class Learnt:
    """A trained model that can be exported.

    >>> from securefl.training import Learnt, LocalTraining, ModelConfig, Problem
    >>> import numpy as np
    >>> local = LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1, batch_size=8)
    >>> x, y = np.zeros((1, 3), np.float32), np.zeros(1, np.int64)
    >>> problem = Problem(model=ModelConfig(kind="mlp", hidden=()), local=local, kind="classification",
    ...     shape=(3,), outputs=2, clients=4, records=40, server_x=x, server_y=y, seed=0)
    >>> sorted(Learnt(problem=problem, vector=problem.initial).tensors())
    ['fc1.bias', 'fc1.weight']

    Attributes:
        problem: Builds the model.
        vector: The model's values, float32 (d,), in the order of `to_vector`.
        shared: The entries of the state dict that all clients share, if clients keep the other entries. The
            others then have the values that the public seed gives. None if all values are the model's.
        features: The bound of the head's input, or None.

    Raises nothing. `module` and `tensors` raise DataError if the vector's length is not the model's.
    """

    problem: Problem
    vector: Float32s
    shared: frozenset[str] | None = None
    features: Bounded | None = None

    def module(self) -> nn.Module:
        """A new module with these values, on the CPU and in evaluation mode."""
        made = copy.deepcopy(self.problem.module(self.vector)).cpu().eval()
        bound_features(made, self.features)
        return made

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Return the floating values by their names in the state dict. Integers are left out: none has a use.

        Returns:
            float32 arrays of the entries' shapes, which the caller may change.

        Raises:
            DataError: the vector's length is not the model's.
        """
        module = self.problem.module(self.vector)
        return {
            name: entry.detach().cpu().float().numpy().copy()
            for name, entry in (module.state_dict() | kept_statistics(module)).items()
            if entry.is_floating_point() and (self.shared is None or name in self.shared)
        }


@runtime_checkable
class Exportable(Protocol):
    """An algorithm whose models can be exported."""

    def learnt(self, state: State, client: int | None, kept: ClientState) -> Learnt:
        """The model of a state: the shared part or, with a client's state `kept`, that client's model.

        Raises ConfigError if a client is named and all clients have the same model.
        """
        ...


def common(problem: Problem, vector: Float32s, client: int | None, features: Bounded | None = None) -> Learnt:
    """The model that all clients share. Raises ConfigError if a client is named."""
    if client is not None:
        raise ConfigError(
            f"Expected no client, got client {client}: all clients have the same model. Leave the client out."
        )
    return Learnt(problem=problem, vector=vector, features=features)
