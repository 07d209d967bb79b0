"""FedLog and FedLog-C: a Bayesian logistic head from the clients' sufficient statistics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from securefl.algorithm.clients import Algorithm
from securefl.core.errors import ConfigError
from securefl.protocols.fedlog.algorithm import Heads
from securefl.protocols.fedlog.bodies import Body, Public, Trained
from securefl.protocols.fedlog.head import Prior
from securefl.protocols.fedlog.statistic import Clipping, Statistic
from securefl.training.heads import last_dense
from securefl.training.task import Bodies, Problem

_BODIES = {"public": "public body", "private": "private body", "dp-sgd": "DP-SGD body"}


@dataclass(frozen=True, kw_only=True)
class FedLog:
    """Options of FedLog.

    body: "public" is the model's body from its public seed, frozen. "private" is trained by each client on
        its records. That voids the record-level guarantee of the paper's theorem: epsilon per record is
        infinite, and per client it is finite with `client_bound`. "dp-sgd" is trained as [dpsgd] says. Its
        cost and the statistic's compose to a finite epsilon per record.
    clip: how features are bounded. Noise is scaled to it.
    client_bound: the largest norm of a client's whole statistic. A longer one is scaled down.
    alpha, beta: FedLog-C's pull to the mean of the own class and push from the others (0.01 and 0 or 5e-4).
    shorter: share of the clients whose body lacks its first hidden dense layer.
    prior: of the head (Eq. 10 and 14), `{ chi, nu }`. It is public: no charge depends on it.
    """

    body: Literal["public", "private", "dp-sgd"] = field(default="public", metadata={"words": _BODIES.get})
    clip: Clipping = field(default_factory=Clipping)
    client_bound: float | None = None
    alpha: float = 0.0
    beta: float = 0.0
    shorter: float = 0.0
    prior: Prior = field(default_factory=Prior)

    def __post_init__(self) -> None:
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
        if not (0 <= self.alpha < np.inf and 0 <= self.beta < np.inf and 0 <= self.shorter <= 1):
            raise ValueError(
                "Expected alpha >= 0, beta >= 0 and 0 <= shorter <= 1, all finite, got "
                f"{self.alpha}, {self.beta} and {self.shorter}."
            )
        if self.client_bound is not None and not 0.01 <= self.client_bound <= 2**20:
            raise ValueError(f"Expected 0.01 <= client_bound <= 2^20, got {self.client_bound}.")

    def build(self, problem: Problem) -> Algorithm:
        if problem.kind != "classification":
            raise ConfigError(
                "Expected a data set with classes for FedLog, got numeric targets. Take another protocol."
            )
        width = last_dense(problem.module(problem.initial)).in_features
        body = self._body(problem)
        statistic = Statistic(body, self.clip, problem.outputs, width, problem.clients, self.client_bound)
        return Heads(problem, body, statistic, self.prior)

    def _body(self, problem: Problem) -> Body:
        activation = self.clip.activation()
        if self.body == "public":
            return Public(problem, activation)
        # A study may have [dpsgd] for its other arms: this body is trained without it.
        if self.body == "private":
            problem = replace(problem, private=None)
        elif problem.private is None:
            raise ConfigError(
                'Expected a section [dpsgd] with body = "dp-sgd", got none. Say there how bodies are trained.'
            )
        bodies = Bodies(problem, self.shorter)
        bodies.of(0)  # a body that cannot be shortened is told here
        return Trained(bodies, activation, self.alpha, self.beta, self.prior)
