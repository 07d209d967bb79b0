"""FedRep (Collins et al., ICML 2021): each client trains its own head, and then the shared body under it.

First the head alone is trained on the features of the received body, which is in evaluation mode. Then the
body is trained under the frozen head, in training mode. The bodies are averaged.

Differences from the paper: the mean over the clients is unweighted; a client that was not drawn keeps its
head, as in the authors' code.

With [dpsgd] both trainings are private, each with the section's steps: a body that is trained under a head
tells of the records that the head was trained on. The ledger counts both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from securefl.algorithm import Algorithm, ClientContext
from securefl.core.ranges import Count, Fraction, Passes, Positive
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
    """

    fraction: Fraction = 1.0
    head_epochs: Passes = 10
    head_rate: Positive = 1.0
    layers: Count = 1

    def build(self, problem: Problem) -> Algorithm:
        """Raises ConfigError for a model without a head that can be trained alone."""
        head = HeadAlone(problem, self.head_epochs, self.head_rate, self.layers)
        part = HeadThenBody(problem, layers=self.layers, head=head)
        return Averaging(problem=problem, fraction=self.fraction, part=part)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadThenBody(SharedLayers):
    """The bodies are averaged. A client trains its head first, and then the body under it."""

    head: HeadAlone

    @property
    def charged(self) -> Problem:
        private = self.problem.private
        return replace(self.problem, private=private and replace(private, steps=2 * private.steps))

    def fit(self, context: ClientContext) -> TrainingJob:
        return self.head.before(replace(super().fit(context), under_head=self.layers))
