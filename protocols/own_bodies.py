"""Bodies that clients train and keep, of FedLog and FedProto: their features, and their models under a head.

If a body was trained on the records, one record can change each feature of all records. The theorem of
FedLog's paper assumes a fixed phi, and gives no guarantee for such a statistic (specification of DP, 2.12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray
from torch import nn

from securefl.algorithm import ClientContext, ClientState, Device, Evaluation, Float32s, Floats, Schedule
from securefl.errors import DataError
from securefl.protocols.personal import each_on_its_own
from securefl.training import Learnt, Problem, evaluate
from securefl.training.heads import Bounded, activated, entries, last_dense
from securefl.training.jobs import TrainingJob, TrainingResult, kept_values, usable
from securefl.training.local import Pull
from securefl.training.task import Bodies


@dataclass(frozen=True, eq=False)
class OwnBodies:
    """The featurizer of bodies that clients train and keep.

    If the problem's training is private, a body is the output of a private mechanism. Given that body, the
    statistic has the sensitivity of a public body's, and the two costs compose.
    """

    bodies: Bodies
    activation: Bounded | None
    under_head: ClassVar[int] = 0
    keeps_trained: ClassVar[bool] = True
    reads_state: ClassVar[Literal["unbound"]] = "unbound"
    schedule = Schedule()

    @property
    def depends_on(self) -> Literal["records", "trained-state"]:
        return "trained-state" if self.training is None else "records"

    @property
    def training(self) -> DpEvent | None:
        private = self.bodies.problem.private
        return None if private is None else private.event

    def start(self, context: ClientContext) -> Float32s:
        """The client's model before training, (d,)."""
        return self._own(self.bodies.of(context.client), context.kept)

    def penalty(self, broadcast: Float32s) -> Pull | None:
        """What is added to the loss."""
        raise NotImplementedError

    def fit(self, context: ClientContext) -> TrainingJob | None:
        if context.initial:
            return None
        problem = self.bodies.of(context.client)
        return TrainingJob(
            problem=problem,
            start=self.start(context),
            context=usable(problem, context),
            under_head=self.under_head,
            activation=self.activation,
            penalty=self.penalty(context.broadcast),
        )

    def prepared(
        self, context: ClientContext, trained: TrainingResult | None
    ) -> tuple[nn.Module, ClientState | None]:
        problem = self.bodies.of(context.client)
        # An initial query is about the initial body, whenever it comes: that of a body trained since would be
        # the statistic of the client's newest sum once more, over another cohort.
        if trained is None:
            return problem.module(problem.initial), None
        # If training diverged, the client keeps its body and answers: silence would tell of the records.
        vector = self.start(context) if isinstance(trained, DataError) else np.array(trained)
        return problem.module(vector), {"model": vector}

    def evaluate(self, head: Floats | None, devices: Sequence[Device]) -> Evaluation:
        """Each client's model under the head, or under its own, on records like its own."""

        def tested(client: int, kept: ClientState, x: NDArray[Any], y: NDArray[Any]) -> Evaluation:
            problem = self.bodies.of(client)
            model = problem.module(self._under(problem, head, kept))
            with activated(model, self.activation):
                return evaluate(model, x, y, problem.kind)

        return each_on_its_own(devices, tested)

    def learnt(self, head: Floats | None, client: int | None, kept: ClientState) -> Learnt:
        """The model that a user exports (see `training.learnt.Exportable`)."""
        problem = self.bodies.problem if client is None else self.bodies.of(client)
        shared = entries(problem.layers, [last_dense(problem.layers)]) if client is None else None
        vector = self._under(problem, head, {} if client is None else kept)
        return Learnt(problem=problem, vector=vector, shared=shared, features=self.activation)

    def _own(self, problem: Problem, kept: ClientState) -> Float32s:
        return kept_values(kept, "model", problem.initial)

    def _under(self, problem: Problem, head: Floats | None, kept: ClientState) -> Float32s:
        return problem.under_head(self._own(problem, kept), head)
