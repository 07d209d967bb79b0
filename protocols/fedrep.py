"""FedRep (Collins et al., ICML 2021): each client trains its own head, and then the shared body under it.

First the head alone is trained on the features of the received body, which is in evaluation mode. Then the
body is trained under the frozen head, in training mode. The bodies are averaged.

Differences from the paper: the mean over the clients is unweighted; a client that was not drawn keeps its
head, as in the authors' code. FedLog's authors compare with a FedRep that keeps two dense layers and trains
the head before each epoch of the body: the preset "authors". Here each of these epochs has a new optimizer.

With [dpsgd] both trainings are private, each with the section's steps: a body that is trained under a head
tells of the records that the head was trained on. The ledger counts both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from securefl.algorithm import Algorithm, ClientContext
from securefl.core.ranges import Count, Fraction, Passes, Positive
from securefl.errors import ConfigError
from securefl.protocols.averaging import Averaging, Options
from securefl.protocols.personal import HeadAlone, SharedLayers
from securefl.training import Problem
from securefl.training.jobs import TrainingJob


@dataclass(frozen=True, kw_only=True)
class FedRep(Options):
    """Options of FedRep.

    head_epochs: passes over the records in which the head alone is trained. The body is then trained as
        [local] says.
    head_rate: the head's learning rate, in multiples of that in [local]. The authors' code takes 5 on MNIST.
    layers: the number of dense layers, from the last, that are the head. Own models have 1.
    alternating: whether the head's passes come before each epoch of the body, or once before all of them.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "authors": {"layers": 2, "alternating": True},
    }
    fraction: Fraction = 1.0
    head_epochs: Passes = 10
    head_rate: Positive = 1.0
    layers: Count = 1
    alternating: bool = False

    def build(self, problem: Problem) -> Algorithm:
        """Raises ConfigError for a model whose head cannot be trained alone, or turns without epochs."""
        counted = problem.private is None and problem.local.epochs is not None
        if self.alternating and (not counted or len(problem.initial_norms)):
            raise ConfigError(
                "Expected `epochs` under [local], no [dpsgd] and no running statistics that clients keep, "
                "since head and body take turns by epochs, got others. Or set alternating = false."
            )
        head = HeadAlone(problem, self.head_epochs, self.head_rate, self.layers)
        part = HeadThenBody(problem, layers=self.layers, head=head, alternating=self.alternating)
        return Averaging(problem=problem, fraction=self.fraction, part=part)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadThenBody(SharedLayers):
    """The bodies are averaged. A client trains its head first, and then the body under it."""

    head: HeadAlone
    alternating: bool

    @cached_property
    def epoch(self) -> Problem:
        """The problem with one epoch of the body."""
        return replace(self.problem, local=replace(self.problem.local, epochs=1))

    @property
    def charged(self) -> Problem:
        private = self.problem.private
        return replace(self.problem, private=private and replace(private, steps=2 * private.steps))

    def fit(self, context: ClientContext) -> TrainingJob:
        job = replace(super().fit(context), under_head=self.layers)
        if self.alternating:
            job = replace(job, problem=self.epoch, turns=self.problem.local.epochs or 1)
        return self.head.before(job)
