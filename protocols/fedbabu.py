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

from collections.abc import Sequence
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
    Device,
    Evaluation,
    Float32s,
    Grid,
    Population,
    Schedule,
    Sum,
    Value,
    ValueSpec,
)
from securefl.core.ranges import Count, Fraction, Ranged
from securefl.errors import ConfigError, DataError
from securefl.protocols.averaging import Averaging, Uniform
from securefl.protocols.client_state import kept_values
from securefl.protocols.contributions import Sampling, to_fit
from securefl.protocols.parts import Gathering, Part
from securefl.protocols.personal import (
    HeadAlone,
    Personal,
    SharedLayers,
    accuracies,
    by_model,
    each_on_its_own,
)
from securefl.training import Learnt, Problem
from securefl.training.fit import Fit, Fitted, usable, with_model
from securefl.training.fitting import fitted
from securefl.training.heads import last_dense, output_layer, places
from securefl.training.task import Bodies

TUNED: Final = ValueSpec(
    name="tuned",
    reduction="sum",
    reveals="a 1, which says that it fine-tuned its model",
    depends_on="model",
    reads_state="none",
    schedule=Schedule(period=0, extra=1, once=True),
    sensitivity={
        ("record", "add-remove"): 0.0,
        ("record", "replace-one"): 0.0,
        ("client", "zero-out"): 0.0,
        ("client", "replace-one"): 0.0,
    },
)


@dataclass(frozen=True, kw_only=True)
class FedBABU(Ranged):
    """Options of FedBABU.

    fraction: C; K = ceil(C N) clients a round. All clients fine-tune at the end.
    fine_tuned: "full": the whole model is fine-tuned, as in the paper's tables. "head": the head alone, under
        a frozen body in evaluation mode. "never": no model is, and the run has no query at its end.
    fine_tune_epochs: passes over a client's records in its fine-tuning.
    """

    fraction: Fraction = 1.0
    fine_tuned: Literal["full", "head", "never"] = "full"
    fine_tune_epochs: Count = 5

    def build(self, problem: Problem) -> Algorithm:
        """Raises ConfigError if private training would change the model's layers, or for another head."""
        if problem.private is not None and problem.changes:
            raise ConfigError(
                "Expected a model that [dpsgd] trains as it is, since clients fine-tune it without noise, "
                f"got one with changed layers: {problem.changes[0]}. Take a model without such layers."
            )
        shared = SharedLayers(layers=1, side="body")
        common = Personal(Bodies(problem), shared, under_fixed_head, keeps=False)
        part: Part = common
        if self.fine_tuned == "head":
            output_layer(problem.layers, problem.outputs)  # raises the error of another head
        if self.fine_tuned != "never":
            part = FixedHead(common, Tuned(common, self.fine_tuned, self.fine_tune_epochs))
        return Averaging(
            problem=problem,
            selection=Uniform(),
            fraction=self.fraction,
            aggregation="partial",
            part=part,
        )


def under_fixed_head(problem: Problem, context: ClientContext, start: Float32s) -> Fit:
    """The training of the body under the head of the start."""
    return replace(to_fit(problem, context, start), under_head=True)


@dataclass(frozen=True, eq=False)
class FixedHead:
    """The body is shared, under a head that is the same for all clients. At the end all clients fine-tune."""

    common: Personal
    tuned: Tuned

    @property
    def initial(self) -> Float32s:
        return self.common.initial

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        return (*self.common.contributions(sampling), self.tuned)

    def gather(
        self,
        query: CohortQuery,
        population: Population,
        rng: np.random.Generator,
        contributions: Sequence[Contribution],
    ) -> Gathering:
        step, answers = yield from self.common.gather(query, population, rng, contributions)
        if population.last:
            body = query.broadcast if step is None else (query.broadcast + step).astype(np.float32)
            everyone = population.everyone()
            yield CohortQuery(cohort=everyone, broadcast=body, number=1, sums=(Sum(self.tuned.spec, 1),))
        return step, answers

    def evaluate(self, shared: Float32s, devices: Sequence[Device]) -> Evaluation:
        problem = self.common.bodies.problem
        found = each_on_its_own(
            devices, by_model(lambda client, kept: (problem, self._own(client, shared, kept)))
        )
        first = accuracies(
            devices, by_model(lambda client, kept: (problem, self.common.model(client, shared, {})))
        )
        return replace(found, figures={"global accuracy": first, **found.figures})

    def learnt(self, shared: Float32s, client: int | None, kept: ClientState) -> Learnt:
        if client is None:
            return self.common.learnt(shared, None, kept)
        return Learnt(problem=self.common.bodies.problem, vector=self._own(client, shared, kept))

    def _own(self, client: int, shared: Float32s, kept: ClientState) -> Float32s:
        """The client's model (d,), fine-tuned if the run has ended."""
        return kept_values(kept, "tuned", self.common.model(client, shared, {}))


@dataclass(frozen=True, eq=False)
class Tuned:
    """The public number 1 of each client. Before a client sends it, the client fine-tunes the sent model.

    trained: "full" or "head". epochs: of the fine-tuning.
    """

    common: Personal
    trained: Literal["full", "head"]
    epochs: int

    @property
    def spec(self) -> ValueSpec:
        problem = self.common.bodies.problem
        spec = replace(TUNED, cohort=problem.clients, grid=Grid(step=1.0, bound=float(problem.clients)))
        return with_model(spec, problem)

    def fit(self, context: ClientContext) -> Fit:
        problem, start = self._problem, self._start(context)
        own = usable(problem, context)
        if self.trained == "head":
            return self._head.fit(own, start)
        return Fit(problem=problem, start=start, context=own)

    def value(self, context: ClientContext, trained: Fitted) -> Value:
        model = self._start(context)
        # Silence would tell of the records: a client whose training diverged answers too.
        if not isinstance(trained, DataError):
            module = self._problem.module(model)
            model[places(module, [last_dense(module)]) if self.trained == "head" else slice(None)] = trained
        return Value(clear=np.ones(1), new_state={"tuned": model})

    def compute(self, context: ClientContext) -> Value:
        return self.value(context, fitted(self.fit(context)))

    def _start(self, context: ClientContext) -> Float32s:
        return self.common.model(context.client, context.broadcast, {})

    @cached_property
    def _problem(self) -> Problem:
        problem = self.common.bodies.problem
        local = replace(problem.local, epochs=self.epochs, steps=None)
        return replace(problem, local=local, private=None)

    @cached_property
    def _head(self) -> HeadAlone:
        return HeadAlone(self._problem, self.epochs)
