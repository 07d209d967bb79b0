"""The learning problem of a study: the model, the loss, the local training, and the server's own data.

`Bodies` says which model each client has, where there are two lengths of them under one head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from securefl.algorithm.clients import Evaluation
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.training.devices import Hardware
from securefl.training.evaluation import Task, evaluate
from securefl.training.local import LocalTraining
from securefl.training.losses import Loss
from securefl.training.models import Architecture
from securefl.training.private_layers import make_private
from securefl.training.private_steps import DPSGD
from securefl.training.vector import Loaded, loaded, to_vector


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """One learning problem. Every party knows all of it except the server's records.

    Attributes:
        shape, outputs: the shape of a record, and how many numbers the model puts out.
        clients: how many there are.
        records: how many records all clients together are declared to have. It is public, and no client may
            claim more.
        leaving: whether a share of a client's own records becomes the server's, each by what is in it. So
            even under replace-one a client's number of records may change by one.
        server_x, server_y: records the server owns, for evaluation and baseline profiles (D^V).
        seed: public; the initial model and probe inputs follow from it.
        private: how clients train with record-level privacy. None if they train without it.
        hardware: where the model is computed. It is built on the CPU, so its first values are the same.
        planned: the plan of a run in which clients send these values, so that an algorithm knows how much
            noise its sums will carry. None where no run is planned.
    """

    model: Architecture
    local: LocalTraining
    kind: Task
    shape: tuple[int, ...]
    outputs: int
    clients: int
    records: int
    server_x: NDArray[Any]
    server_y: NDArray[Any]
    seed: int
    private: DPSGD | None = None
    leaving: bool = False
    hardware: Hardware = field(default_factory=Hardware)
    planned: Callable[[Sequence[ValueSpec]], Plan] | None = None

    @property
    def loss(self) -> Loss:
        return "cross_entropy" if self.kind == "classification" else "mse"

    @property
    def layer(self) -> str:
        """Name of the profiled layer."""
        return self.model.layer

    @cached_property
    def _module(self) -> nn.Module:
        return self.hardware.put(self._built()[0])

    @cached_property
    def initial(self) -> NDArray[np.float32]:
        """The initial model as a vector (d,), float32."""
        return to_vector(self._built()[0])

    @cached_property
    def changes(self) -> tuple[str, ...]:
        """The changes that private training had to make in the model, a line for each layer."""
        return self._built()[1]

    def _built(self) -> tuple[nn.Module, tuple[str, ...]]:
        model = self.model.build(self.shape, self.outputs, self.seed)
        if self.private is None:
            return model, ()
        return make_private(model)

    @cached_property
    def shorter(self) -> Problem:
        """The same problem for a model without its first hidden dense layer."""
        return replace(self, model=self.model.shorter())

    def module(self, vector: NDArray[np.float32]) -> nn.Module:
        """The model with these values. Every call returns the one module of this problem and process."""
        # A caller must be done with the module before the next call, which loads other values into it.
        return loaded(self._module, vector, self.hardware)

    def to_read(self, vector: NDArray[np.float32]) -> nn.Module:
        """The model with these values, which must only be read. It is loaded once for equal vectors in a row.

        It is another module than `module` gives, and every call returns the one of this problem and process.
        """
        return self._reader(vector)

    @cached_property
    def _reader(self) -> Loaded:
        return Loaded(self.hardware.put(self._built()[0].eval()), self.hardware)

    @property
    def layers(self) -> nn.Module:
        """The model for the shapes of its layers, with whatever values it holds."""
        return self._module

    def evaluate(self, vector: NDArray[np.float32]) -> Evaluation:
        """Accuracy and loss on the server's records, nan if it has none."""
        if not len(self.server_x):
            return Evaluation(accuracy=nan, loss=nan)
        return evaluate(self.module(vector), self.server_x, self.server_y, self.kind)


@dataclass(frozen=True, eq=False)
class Bodies:
    """The first `shorter` * N clients have a body without its first hidden dense layer. All have one head.

    Who has which body is public. It follows from the client's number, and tells nothing of its records.
    """

    problem: Problem
    shorter: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.shorter <= 1:
            raise ValueError(f"Expected 0 <= shorter <= 1, got {self.shorter}.")

    def of(self, client: int) -> Problem:
        """The problem as this client has it."""
        return self.problem.shorter if client < self.shorter * self.problem.clients else self.problem
