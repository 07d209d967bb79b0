"""Each client keeps the running statistics of its norms: FedBN's statistics (Li et al., ICLR 2021).

`buffers = "local"` under [model] takes them out of a model's vector (`vector.local_statistics`). So no
protocol sends, sums, compresses or noises them. `KeptNorms` is an algorithm around any other one: before a
client trains it puts the client's own statistics into the problem, and after that into the client's state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from securefl.algorithm.clients import (
    Algorithm,
    ClientContext,
    Contribution,
    Device,
    Evaluation,
    Population,
    RoundResult,
    State,
)
from securefl.algorithm.queries import Answers, ClientState, CohortQuery, Float32s, Floats, Value
from securefl.core.errors import ConfigError, DataError
from securefl.training.evaluation import pooled
from securefl.training.jobs import TrainedContribution, TrainingJob, TrainingResult, kept_values
from securefl.training.learnt import Exportable, Learnt
from securefl.training.run_jobs import Around
from securefl.training.task import Problem

NORMS: Final = "norms"
"""The name of the running statistics in a client's state."""


@dataclass(frozen=True, eq=False)
class KeptNorms:
    """The algorithm that `build` makes, under which each client keeps the running statistics of its norms.

    Raises ConfigError for an algorithm of which a value is computed by a model without a client's statistics.
    """

    build: Callable[[Problem], Algorithm]
    problem: Problem

    def __post_init__(self) -> None:
        for contribution in self._own.contributions:
            spec, trains = contribution.spec, isinstance(contribution, TrainedContribution)
            keeps = spec.depends_on != "trained-state" or spec.reads_state in ("unbound", "unknown")
            if not keeps or (spec.on_model and not trains):
                raise ConfigError(
                    'Expected a protocol that keeps client state, for buffers = "local" under [model], got '
                    f"{spec.name!r}, which a model without a client's running statistics computes. Take "
                    'buffers = "averaged", or a protocol such as fedavg.'
                )

    @cached_property
    def _own(self) -> Algorithm:
        return self.build(self.problem)

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        return tuple(
            KeepingNorms(own, self) if isinstance(own, TrainedContribution) else own
            for own in self._own.contributions
        )

    @property
    def keeps_trained(self) -> bool:
        """Whether each client keeps the model that it trained. Its statistics are its own in any case."""
        return getattr(self._own, "keeps_trained", False)

    @property
    def tests_trained(self) -> bool:
        """Whether local accuracy can be of the model that each client trained."""
        return getattr(self._own, "tests_trained", False)

    def start(self) -> State:
        return self._own.start()

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[CohortQuery, Answers, RoundResult]:
        return self._own.round(state, population, number, rng)

    def norms(self, kept: ClientState) -> Float32s:
        """The running statistics that a client keeps (b,), initial ones before its first training.

        Raises DataError if they are damaged.
        """
        return kept_values(kept, NORMS, self.problem.initial_norms)

    def under(self, norms: Float32s, **changes: Any) -> Algorithm:
        """The algorithm for a client with these running statistics."""
        return self.build(self.problem.under(norms, **changes))

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        """Test each client's model, under its own running statistics, on records like its own."""
        found, figures = [], dict[str, Floats]()
        for client, device in enumerate(devices):
            held = None if device.held is None else (device.held[0][:0], device.held[1][:0])
            alone = [replace(device, x=device.x[:0], y=device.y[:0], kept={}, held=held)] * len(devices)
            alone[client] = device
            algorithm = self.under(self.norms(device.kept), server_x=device.x, server_y=device.y)
            own = algorithm.evaluate(state, alone)
            if len(device.x):
                found.append((len(device.x), own))
            for name, values in own.figures.items():
                figures.setdefault(name, np.full(len(devices), np.nan))[client] = values[client]
        return replace(pooled(found), figures=figures)

    def learnt(self, state: State, client: int | None, kept: ClientState) -> Learnt:
        """The model of a client or, if none is named, what all share: the statistics are never among it."""
        algorithm = self._own if client is None else self.under(self.norms(kept))
        if not isinstance(algorithm, Exportable):
            raise ConfigError(f"Expected a protocol with a model to export, got {type(algorithm).__name__}.")
        if client is None:
            found = algorithm.learnt(state, None, {})
            names = frozenset(found.problem.layers.state_dict())
            return replace(found, shared=names if found.shared is None else found.shared & names)
        try:
            return algorithm.learnt(state, client, kept)
        except ConfigError:  # all clients have one model, but for the statistics
            return algorithm.learnt(state, None, {})


@dataclass(frozen=True, eq=False)
class KeepingNorms(Around):
    """A contribution from a training that begins and ends with the client's own running statistics."""

    algorithm: KeptNorms

    def fit(self, context: ClientContext) -> TrainingJob | None:
        return self._under(self.algorithm.norms(context.kept)).fit(context)

    def value(self, context: ClientContext, trained: TrainingResult | None) -> Value:
        if trained is None:
            return self.plain.value(context, None)
        norms = self.algorithm.norms(context.kept)
        if not isinstance(trained, DataError):
            trained, norms = np.split(trained, [len(trained) - len(norms)])
        value = self._under(norms).value(context, trained)
        kept = context.kept if value.new_state is None else value.new_state
        return replace(value, new_state={**kept, NORMS: norms.copy()})

    def _under(self, norms: Float32s) -> TrainedContribution:
        """The contribution of the algorithm under these statistics."""
        for own in self.algorithm.under(norms).contributions:
            if own.spec.name == self.spec.name and isinstance(own, TrainedContribution):
                return own
        raise ConfigError(f"Expected one contribution {self.spec.name!r} of each build, got none.")
