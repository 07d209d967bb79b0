"""FedLog and FedLog-C: their options, and the algorithm of a Bayesian logistic head.

The server asks for the sum of the clients' sufficient statistics. The head maximises the sum's posterior.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from securefl.algorithm import Algorithm, Float32s, Floats, State
from securefl.core.ranges import Probability, Ranged, Weight
from securefl.errors import ConfigError, DataError
from securefl.protocols.class_sums import ClassSums, Clipping, Featurizer, Statistic
from securefl.protocols.contributions import ClientBound, require_classes
from securefl.protocols.fedlog.bodies import Public, Trained, head_of, means_of
from securefl.protocols.fedlog.head import PAPER, Prior
from securefl.training import Problem
from securefl.training.heads import output_layer
from securefl.training.task import Bodies


@dataclass(frozen=True, eq=False)
class Heads(ClassSums):
    """In every round the clients' statistics are summed. The head maximises the posterior of the sum.

    The server broadcasts the sum itself. Every client solves it for the same head, and in FedLog-C reads the
    class means from it. So a statistic travels in both directions, and neither a head nor a body does. Counts
    are read from the noised sum and are not sent beside it; in hidden sums without noise each client sends
    them once, apart (`class_counts`). If bodies are trained, one initial query on the initial bodies precedes
    the first round. With a frozen body the statistic is constant. One query then spends the whole epsilon,
    and later rounds ask only the clients that were absent.
    """

    prior: Prior = PAPER

    def learn(self, state: State, total: Floats, survivors: int) -> State:
        # The head is solved from the float32 values that the server broadcasts, so all have the same head.
        found = total.astype(np.float32)
        try:
            self.head(found)
        except DataError:  # the noise outweighs the records: the head stays
            return state
        return State(found, state.memory)

    def head(self, sent: Float32s) -> Floats:
        if not sent.size:
            return self.problem.head_of(self.problem.initial)
        return head_of(sent.tobytes(), self.problem.outputs, self.prior)


_BODIES = {"public": "public body", "private": "private body", "dp-sgd": "DP-SGD body"}


@dataclass(frozen=True, kw_only=True)
class FedLog(Ranged):
    """Options of FedLog.

    body: "public" is the model's body from its public seed, frozen. "private" is trained by each client on
        its records. Then the record-level guarantee of the paper's theorem does not hold: epsilon per record
        is infinite, and per client it is finite with `client_bound`. "dp-sgd" is trained as [dpsgd] says. Its
        cost and the statistic's compose to a finite epsilon per record.
    clip: how features are bounded. Noise is scaled to this bound.
    client_bound: the largest norm of a client's whole statistic. A longer one is scaled down. It is left out
        where counts travel apart, in hidden sums without noise.
    alpha, beta: FedLog-C's pull to the mean of the own class and push from the others (0.01 and 0 or 5e-4).
    shorter: share of the clients whose body lacks its first hidden dense layer.
    prior: of the head (Eq. 10 and 14), `{ chi, nu }`. It is public: no charge depends on it.

    Raises ValueError for options out of range, and for options that the body does not use.

    >>> from securefl.protocols.fedlog import FedLog
    >>> FedLog(client_bound=8.0).body
    'public'
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "authors": {"prior": {"nu": 0.0}}}
    body: Literal["public", "private", "dp-sgd"] = field(default="public", metadata={"words": _BODIES.get})
    clip: Clipping = field(default_factory=Clipping)
    client_bound: ClientBound = None
    alpha: Weight = 0.0
    beta: Weight = 0.0
    shorter: Probability = 0.0
    prior: Prior = field(default_factory=Prior)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.body == "dp-sgd" and (self.alpha or self.beta):
            raise ValueError(
                'Expected alpha and beta with body = "private" only, got them with "dp-sgd", which clips the '
                "gradients of the loss alone."
            )
        if self.body == "public" and (self.alpha or self.beta or self.shorter):
            raise ValueError(
                'Expected alpha, beta and shorter with body = "private" only, got them with "public", which '
                "is not trained."
            )

    def build(self, problem: Problem) -> Algorithm:
        require_classes(problem, "FedLog")
        width = output_layer(problem.layers, problem.outputs).in_features
        statistic = Statistic(
            self._body(problem), self.clip, problem.outputs, width, problem.clients, self.client_bound
        )
        centres = partial(means_of, problem.outputs, width)
        return Heads(problem, statistic.counts_apart(problem, centres), self.prior)

    def _body(self, problem: Problem) -> Featurizer:
        activation = self.clip.activation()
        if self.body == "public":
            if problem.declared_loss is not None:
                raise ConfigError(
                    'Expected no section [loss] with body = "public", got one: the head is computed in '
                    'closed form, by no loss. Leave [loss] out, or train the body by it with "private".'
                )
            return Public(problem, activation)
        # A study may have [dpsgd] for its other arms: this body is trained without it.
        if self.body == "private":
            problem = replace(problem, private=None)
        elif problem.private is None:
            raise ConfigError(
                'Expected a section [dpsgd] with body = "dp-sgd", got none. Set there how bodies are trained.'
            )
        if len(problem.head) == len(problem.initial):
            raise ConfigError(
                f'Expected a model with a body to train under the head for body = "{self.body}", got none, '
                'or one that is frozen. Set body = "public", or leave a layer before the last one free.'
            )
        bodies = Bodies(problem, self.shorter)
        bodies.of(0)  # raises the error of a body that cannot be shortened
        return Trained(bodies, activation, self.alpha, self.beta, self.prior)
