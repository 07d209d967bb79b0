"""The learning problem of a study: the model, the loss, the local training, and the server's own data.

`Bodies` assigns a model to each client, if clients have bodies of two lengths under one head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.algorithm.clients import Evaluation
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.ranges import Probability, Ranged
from securefl.data.dataset import Task
from securefl.training.devices import Hardware
from securefl.training.evaluation import evaluate
from securefl.training.heads import last_layers, output_layer, places
from securefl.training.local import LocalTraining
from securefl.training.losses import LOSS_OF, DeclaredLoss, TrainingLoss, has_code
from securefl.training.models import Architecture, ModelConfig
from securefl.training.private_layers import make_private
from securefl.training.private_steps import DPSGD
from securefl.training.row_wise import outside
from securefl.training.vector import (
    Loaded,
    kept_statistics,
    load_statistics,
    loaded,
    positions,
    running_statistics,
    statistics_vector,
    to_vector,
)

_MOST_CODES: Final = 2**31


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """One learning problem. Every party knows all of it except the server's records.

    >>> from securefl.training import LocalTraining, ModelConfig, Problem
    >>> import numpy as np
    >>> local = LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1, batch_size=8)
    >>> x, y = np.zeros((1, 3), np.float32), np.zeros(1, np.int64)
    >>> problem = Problem(model=ModelConfig(kind="mlp", hidden=()), local=local, kind="classification",
    ...     shape=(3,), outputs=2, clients=4, records=40, server_x=x, server_y=y, seed=0)
    >>> problem.initial.shape, problem.loss
    ((8,), 'cross_entropy')

    Attributes:
        model: The description of the model.
        local: The clients' training without record-level privacy.
        kind: "classification", "regression" or "multi-label".
        shape, outputs: The shape of a record, and the number of the model's outputs.
        clients: The number of clients.
        records: The declared number of records of all clients together. It is public, and no client may claim
            more.
        leaving: Whether a share of a client's own records becomes the server's, each by its content. If so,
            even under replace-one a client's number of records may change by one.
        server_x, server_y: The server's records, for evaluation and baseline profiles (D^V).
        seed: Public. The initial model and the probe inputs depend on it.
        private: The clients' training with record-level privacy, or None if they train without it.
        hardware: The device of the model. The model is built on the CPU, so its initial values are the same
            on all devices.
        planned: Gives the plan of a run in which clients send values of these specs. An algorithm reads from
            it the noise of its sums. None if no run is planned.
        rounds: The number of rounds of the run. None if it is unknown.
        norms: The running statistics of the model's norms, if each client keeps its own, float32 (b,). None
            is the initial ones.
        declared_loss: The loss of the training, if a study declares one. None is the loss of the task.
        tested_at: The shared part of a personal model that is tested and exported: "averaged", or the
            client's "own", as it was trained.

    Raises nothing. `initial` and `module` raise ConfigError if the model cannot be built.
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
    rounds: int | None = None
    norms: NDArray[np.float32] | None = None
    declared_loss: DeclaredLoss | None = None
    tested_at: Literal["own", "averaged"] = "averaged"

    @cached_property
    def bare_plan(self) -> Plan | None:
        """The plan of the run, before values give it its noise multiplier. None if no run is planned."""
        return None if self.planned is None else self.planned(())

    @property
    def loss(self) -> TrainingLoss:
        """The loss of the training."""
        return LOSS_OF[self.kind] if self.declared_loss is None else self.declared_loss

    @property
    def layer(self) -> str:
        """The name of the profiled layer."""
        return self.model.layer

    @cached_property
    def _module(self) -> nn.Module:
        return self.hardware.put(self._built()[0])

    @cached_property
    def initial(self) -> NDArray[np.float32]:
        """float32 (d,): the initial model's trained values and running statistics. See `vector.to_vector`."""
        return to_vector(self._built()[0], statistics=True)

    @cached_property
    def initial_norms(self) -> NDArray[np.float32]:
        """float32 (b,): the initial running statistics that each client keeps. Empty if they are averaged."""
        if not kept_statistics(self.layers):
            return np.empty(0, np.float32)
        return statistics_vector(self._built()[0])

    def under(self, norms: NDArray[np.float32], **changes: Any) -> Problem:
        """Return the problem of one client, with running statistics of its own.

        Args:
            norms: its statistics, float32 (b,).
            **changes: of other fields.
        """
        made = replace(self, norms=norms, **changes)
        for name in ("_module", "initial", "initial_norms"):  # no second module, which may be large
            made.__dict__[name] = getattr(self, name)
        return made

    @cached_property
    def averaged(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of running statistics in the model's vector: of all, and of the variances.

        Returns:
            int64 each. Empty for a model without batch norm.
        """
        own = running_statistics(self.layers)
        variances = [name for name in own if name.endswith("running_var")]
        return positions(self.layers, own), positions(self.layers, variances)

    @cached_property
    def frozen(self) -> int:
        """The number of the model's frozen values. No client sends them."""
        entries = self.layers.state_dict().values()
        whole: int = sum(entry.numel() for entry in entries if entry.is_floating_point())
        return whole - len(self.initial)

    @cached_property
    def changes(self) -> tuple[str, ...]:
        """The changes that private training makes to the model, a line for each layer."""
        return self._built()[1]

    def _built(self) -> tuple[nn.Module, tuple[str, ...]]:
        model = self.model.build(self.shape, self.outputs, self.seed)
        if self.private is None:
            return model, ()
        return make_private(model)

    @cached_property
    def own_code(self) -> bool:
        """Whether a pass of model or loss runs code that is neither this package's nor a listed layer's.

        Such code may keep state in an attribute or a file, which nobody can see.
        """
        if has_code(self.loss):
            return True
        return not isinstance(self.model, ModelConfig) and outside(self._built()[0].eval()) is not None

    @cached_property
    def codes(self) -> NDArray[np.int64] | None:
        """Return the number of codes, 0 and up, that a model of text reads at each place of a record.

        The model is tried on records with one code, in all places and then in one: a person's own model does
        not say how many it knows, and may have a table for each column.

        Returns:
            int64 (*shape). None if the model reads real numbers.
        """
        if not self.model.reads_text:
            return None
        model, blank = self._built()[0].eval(), self.model.blank(self.shape)

        def reads(code: int, places: Tensor) -> bool:
            try:
                model(torch.where(places, code, blank))
            except Exception:  # of a person's own layers, any
                return False
            return True

        def first_unread(places: Tensor, beyond: int) -> int:
            """The first code, at least `beyond`, that the model does not read in these places."""
            known = beyond - 1
            while beyond < _MOST_CODES and reads(beyond, places):
                known, beyond = beyond, 2 * beyond
            while beyond - known > 1:
                middle = (known + beyond) // 2
                known, beyond = (middle, beyond) if reads(middle, places) else (known, middle)
            return beyond

        with torch.no_grad():
            least = first_unread(torch.ones_like(blank, dtype=torch.bool), 1)
            found = np.full(self.shape, least, np.int64)
            for place in range(found.size if least < _MOST_CODES else 0):
                alone = (torch.arange(found.size) == place).reshape(blank.shape)
                found.flat[place] = first_unread(alone, least)
        return found

    @cached_property
    def shorter(self) -> Problem:
        """The problem without the model's first hidden dense layer. Raises ConfigError unless it has two."""
        return replace(self, model=self.model.shorter())

    def module(self, vector: NDArray[np.float32]) -> nn.Module:
        """Return the model with these values. All calls of a process return the same module.

        The next call loads other values into it, so a caller must finish with the module before that.

        Args:
            vector: the values, float32 (d,).

        Raises:
            DataError: the vector's length is not the model's.
        """
        model = loaded(self._module, vector, self.hardware)
        if len(self.initial_norms):  # also the initial ones: another client may have trained this module
            load_statistics(model, self.initial_norms if self.norms is None else self.norms)
        return model

    def to_read(self, vector: NDArray[np.float32]) -> nn.Module:
        """Return the model with these values, in evaluation mode. The caller must not change it.

        All calls of a process return the same module, which is not the one of `module`. Equal successive
        vectors are loaded once.

        Args:
            vector: the values, float32 (d,).

        Raises:
            DataError: the vector's length is not the model's.
        """
        return self._reader(vector)

    @cached_property
    def _reader(self) -> Loaded:
        model = self.hardware.put(self._built()[0].eval())
        if self.norms is not None and len(self.initial_norms):
            load_statistics(model, self.norms)
        return Loaded(model, self.hardware)

    @cached_property
    def head(self) -> NDArray[np.int64]:
        """Return the positions of the head's values in the model's vector, weights before biases.

        Returns:
            int64 (outputs * (width + 1),).

        Raises:
            ConfigError: as for `heads.output_layer`.
        """
        return places(self.layers, [output_layer(self.layers, self.outputs)])

    def last(self, layers: int) -> NDArray[np.int64]:
        """Return the positions of the last dense layers' values in the model's vector.

        Args:
            layers: their number, from 1.

        Returns:
            int64, layer after layer.

        Raises:
            ConfigError: the model has fewer dense layers.
        """
        return places(self.layers, last_layers(self.layers, layers))

    def head_of(self, vector: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the head of a model, which has biases.

        Args:
            vector: the model, float32 (d,).

        Returns:
            float64 (outputs, 1 + width), the bias first.

        Raises:
            ConfigError: as for `head`.
        """
        weights, biases = np.split(vector[self.head].astype(np.float64), [-self.outputs])
        return np.column_stack([biases, weights.reshape(self.outputs, -1)])

    def under_head(
        self, vector: NDArray[np.float32], head: NDArray[np.float64] | None
    ) -> NDArray[np.float32]:
        """Return a copy of the model under another head.

        Args:
            vector: the model, float32 (d,).
            head: in the form of `head_of`, (outputs, 1 + width). None leaves the model its own.

        Returns:
            float32 (d,).

        Raises:
            ConfigError: as for `head`.
        """
        found = vector.copy()
        if head is not None:
            found[self.head] = np.concatenate([head[:, 1:].ravel(), head[:, 0]])
        return found

    @property
    def layers(self) -> nn.Module:
        """The model, for the shapes of its layers. Its values are those of the last `module` call."""
        return self._module

    def evaluate(self, vector: NDArray[np.float32]) -> Evaluation:
        """Return the accuracy and the loss of a model on the server's records, nan if the server has none.

        Args:
            vector: the model, float32 (d,).

        Raises:
            DataError: the vector's length is not the model's.
        """
        if not len(self.server_x):
            return Evaluation(accuracy=nan, loss=nan)
        return evaluate(self.module(vector), self.server_x, self.server_y, self.kind)


@dataclass(frozen=True, eq=False)
class Bodies(Ranged):
    """The body of each client: the first `shorter` * N have one without the first hidden dense layer.

    All clients have the same head. A client's body is public: it depends on the client's number, not on
    records.
    """

    problem: Problem
    shorter: Probability = 0.0

    def of(self, client: int) -> Problem:
        """The problem with this client's body."""
        return self.problem.shorter if client < self.shorter * self.problem.clients else self.problem
