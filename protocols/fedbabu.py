"""FedBABU (Oh et al., ICLR 2022): bodies are trained and averaged under one random head that never changes.

All clients have the same head, which follows from the public seed. At the end of a run each client fine-tunes
the averaged model on its own records, before its model is tested.

Before the last round, the tested model is the averaged body under the fixed head, on each client's test
records (the paper's initial accuracy). The figure "global accuracy" has that of every tested round.

Differences from the paper: the mean over the clients is unweighted. The head is the last dense layer.

The end is one more query of the last round. It carries the new body to all clients, and each answers 1,
whatever its records are. So their sum is the number of clients that fine-tuned, and it costs no privacy. The
fine-tuned model stays with its client, so it is trained without noise even beside [dpsgd]. A run that ends
early, as by a budget, is not fine-tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import numpy as np

from securefl.algorithm import (
    Algorithm,
    ClientContext,
    ClientState,
    CohortQuery,
    Contribution,
    Float32s,
    Grid,
    Schedule,
    Sum,
    Value,
    ValueSpec,
)
from securefl.core.ranges import Fraction, Passes
from securefl.errors import ConfigError, DataError
from securefl.protocols.averaging import Averaging, Options
from securefl.protocols.contributions import UNMOVED, Sampling, training_job
from securefl.protocols.parts import Gathering, ServerContext
from securefl.protocols.personal import HeadAlone, SharedLayers
from securefl.training import Problem
from securefl.training.chunks import body_features
from securefl.training.heads import output_layer
from securefl.training.jobs import TrainingJob, TrainingResult, kept_values, usable, with_model
from securefl.training.run_jobs import FromTraining

TUNED: Final = ValueSpec(
    name="tuned",
    reduction="sum",
    reveals="a 1, which says that it fine-tuned its model",
    depends_on="model",
    reads_state="none",
    schedule=Schedule(period=0, extra=1, once=True),
    sensitivity=UNMOVED,
)


@dataclass(frozen=True, kw_only=True)
class FedBABU(Options):
    """Options of FedBABU.

    fraction: C; K = ceil(C N) clients a round. All clients fine-tune at the end.
    fine_tuned: "full": the whole model is fine-tuned, as in the paper's tables. "head": the head alone, under
        a frozen body in evaluation mode. "never": no model is, and the run has no query at its end.
    fine_tune_epochs: passes over a client's records in its fine-tuning.
    """

    fraction: Fraction = 1.0
    fine_tuned: Literal["full", "head", "never"] = "full"
    fine_tune_epochs: Passes = 5

    def build(self, problem: Problem) -> Algorithm:
        """Raises ConfigError if private training would change the model's layers, or for another head."""
        if problem.private is not None and problem.changes:
            raise ConfigError(
                "Expected a model that [dpsgd] trains as it is, since clients fine-tune it without noise, "
                f"got one with changed layers: {problem.changes[0]}. Take a model without such layers."
            )
        if self.fine_tuned == "head":
            if len(problem.initial_norms):
                raise ConfigError(
                    'Expected fine_tuned = "full" or "never" beside buffers = "local" under [model], got '
                    '"head", which trains on features alone. Set one of these.'
                )
            output_layer(problem.layers, problem.outputs)  # raises the error of another head
        return Averaging(problem=problem, fraction=self.fraction, part=FixedHead(problem, options=self))


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedHead(SharedLayers):
    """The body is shared, under a head that is the same for all clients. At the end all clients fine-tune."""

    reads_state = "none"
    keeps_trained = False
    options: FedBABU

    def under_head(self, broadcast: Float32s) -> Float32s:
        """The whole model (d,): a body under the fixed head."""
        return self.under_shared(0, broadcast, {})

    def fit(self, context: ClientContext) -> TrainingJob:
        start = self.under_head(context.broadcast)
        return replace(training_job(self.problem, context, start), under_head=1)

    def split(self, context: ClientContext, trained: Float32s) -> tuple[Float32s, ClientState | None]:
        return super().split(context, trained)[0], None

    def model(self, client: int, shared: Float32s, kept: ClientState) -> Float32s:
        """The client's model (d,), fine-tuned if the run has ended."""
        return kept_values(kept, "tuned", self.under_head(shared))

    def common(self, shared: Float32s) -> Float32s | None:
        return None if self.options.fine_tuned == "never" else self.under_head(shared)

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        tuned = () if self.options.fine_tuned == "never" else (Tuned(self),)
        return (*super().contributions(sampling), *tuned)

    def gather(self, query: CohortQuery, here: ServerContext) -> Gathering:
        step, answers = yield from super().gather(query, here)
        if here.population.last and len(here.contributions) > 1:
            body = query.broadcast if step is None else (query.broadcast + step).astype(np.float32)
            tuned, everyone = Sum(here.contributions[1].spec, 1), here.population.everyone()
            yield CohortQuery(cohort=everyone, broadcast=body, number=1, sums=(tuned,))
        return step, answers


@dataclass(frozen=True, eq=False)
class Tuned(FromTraining):
    """The public number 1 of each client. Before a client sends it, the client fine-tunes the sent model."""

    common: FixedHead

    @property
    def spec(self) -> ValueSpec:
        problem = self.common.problem
        spec = replace(TUNED, cohort=problem.clients, grid=Grid(step=1.0, bound=float(problem.clients)))
        return with_model(spec, problem)

    def fit(self, context: ClientContext) -> TrainingJob:
        start, own = self.common.under_head(context.broadcast), usable(self._problem, context)
        whole = TrainingJob(problem=self._problem, start=start, context=own)
        if not self._head_alone:
            return whole
        head = HeadAlone(self._problem, self.common.options.fine_tune_epochs).before(whole)
        return head.on_features(body_features(self._problem.module(start), own.x))

    def value(self, context: ClientContext, trained: TrainingResult) -> Value:
        model = self.common.under_head(context.broadcast)
        # Silence would tell of the records: a client whose training diverged answers too.
        if not isinstance(trained, DataError):
            model[self._problem.head if self._head_alone else slice(None)] = trained
        return Value(clear=np.ones(1), new_state={"tuned": model})

    @property
    def _head_alone(self) -> bool:
        return self.common.options.fine_tuned == "head"

    @cached_property
    def _problem(self) -> Problem:
        problem = self.common.problem
        local = replace(problem.local, epochs=self.common.options.fine_tune_epochs, steps=None)
        return replace(problem, local=local, private=None)
