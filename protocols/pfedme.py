"""pFedMe (Dinh et al., NeurIPS 2020): each client trains a personal model theta near the global model w.

On each mini-batch, K steps reduce f(theta) + lambda / 2 |theta - w_k|^2. Then w_k <- w_k - eta lambda (w_k -
theta), a gradient step on the Moreau envelope of f. The server takes w <- (1 - beta) w + beta mean w_k.

Both models are tested on records like the client's own: theta gives the accuracy of a run, and the figure
"global accuracy" is that of w.

Differences from the paper: the mean is over the clients that were drawn, and a client that was not drawn
sends nothing. In the paper all clients train, and some are averaged. [local] has the solver of the inner
problem: its `learning_rate` is the paper's personal learning rate, and `steps` its R local rounds. Theta
begins at w in each round and is not reset between mini-batches, as in the authors' code. That code also adds
0.001 theta to each gradient of theta, which the paper has not: the preset "authors".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from securefl.algorithm import Algorithm, ClientContext, ClientState, Float32s
from securefl.core.ranges import Fraction, Passes, Positive
from securefl.errors import ConfigError
from securefl.protocols.averaging import Averaging, Options, Scaled
from securefl.protocols.contributions import training_job
from securefl.protocols.personal import Personal
from securefl.training import Problem
from securefl.training.jobs import TrainingJob, kept_values
from securefl.training.local import Envelope


@dataclass(frozen=True, kw_only=True)
class PFedMe(Options):
    """Options of pFedMe.

    fraction: C; K = ceil(C N) clients a round. The paper's S over N.
    lamda: lambda, the weight of |theta - w|^2 / 2. A large one keeps personal models near the global one.
    personal_steps: K, the steps on each mini-batch towards the personal model.
    eta: the learning rate of w_k. eta times lamda is the share of the way from w_k to theta, at most 1.
    beta: the share of the mean of the clients' models in the next global model. 1 is the plain mean.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "authors": {"local": {"weight_decay": 0.001}},
    }
    fraction: Fraction = 1.0
    lamda: Positive = 15.0
    personal_steps: Passes = 5
    eta: Positive = 0.005
    beta: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eta * self.lamda > 1:
            raise ValueError(
                f"Expected eta * lamda in (0, 1], got {self.eta} * {self.lamda}: a larger step passes the "
                "personal model. Lower eta."
            )

    def build(self, problem: Problem) -> Algorithm:
        """Raises ConfigError for private training, and for steps of SGD that would diverge."""
        if problem.private is not None:
            raise ConfigError(
                "Expected no [dpsgd] with pFedMe, got one: its K steps on one mini-batch have no private "
                'form. Leave [dpsgd] out, or add noise to bounded updates (unit = "client", `update_bound`).'
            )
        local = problem.local
        if local.optimizer == "sgd" and local.learning_rate * self.lamda >= 2 * (1 + local.momentum):
            raise ConfigError(
                "Expected learning_rate * lamda below 2 with SGD, so that steps near the proximal point, got "
                f"{local.learning_rate:g} * {self.lamda:g}. Lower `learning_rate` under [local]."
            )
        envelope = Envelope(steps=self.personal_steps, weight=self.lamda, rate=self.eta)
        part, server = NearGlobal(problem, envelope=envelope), Scaled(factor=self.beta)
        return Averaging(problem=problem, fraction=self.fraction, server=server, part=part)


@dataclass(frozen=True, kw_only=True, eq=False)
class NearGlobal(Personal):
    """The whole model w is shared. Each client keeps its theta, which begins at w in each round."""

    reads_state = "none"
    keeps_trained = True
    envelope: Envelope

    def fit(self, context: ClientContext) -> TrainingJob:
        both = np.tile(context.broadcast, 2)
        return replace(training_job(self.problem, context, both), envelope=self.envelope)

    def split(self, context: ClientContext, trained: Float32s) -> tuple[Float32s, ClientState | None]:
        theta, w = np.split(trained, 2)
        return w, {"personal": theta.copy()}

    def model(self, client: int, shared: Float32s, kept: ClientState) -> Float32s:
        return kept_values(kept, "personal", shared)

    def common(self, shared: Float32s) -> Float32s | None:
        return shared
