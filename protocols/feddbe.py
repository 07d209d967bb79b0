"""FedDBE (Zhang et al., NeurIPS 2023): a client's bias leaves the features, and is learnt apart.

The whole model is averaged. Each client keeps a vector that is added to the features before the head (the
personalised representation bias memory, PRBM), and learns it with the model. A term of the local loss pulls
the client's mean features to a consensus of all clients (the mean regularisation, MR).

The consensus is collected once, before the first training: each client sends the mean of its features under
the first model, and the mean over the clients is the consensus. This is a sum of its own with its own charge.

Differences from the paper: the authors collect the consensus after one local training without the two parts.
Such features depend on trained state, so one record would move the consensus without bound. Here it is that
of the public first model. The means over the clients are unweighted. [local] trains the bias too, where the
authors have a second SGD. As in their code, the running mean begins at 0 in each round, and the
regularisation is kappa times half the mean squared distance over the features.

The consensus bounds features if `mean_bound` is set. Then one record or client moves it by a known distance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from securefl.algorithm import (
    Algorithm,
    ClientContext,
    ClientState,
    CohortQuery,
    Contribution,
    Float32s,
    Schedule,
    Sum,
    Value,
    ValueSpec,
)
from securefl.core.ranges import Fraction, Range, Weight
from securefl.dp import clipping
from securefl.errors import ConfigError, DataError
from securefl.mechanisms import grid_within
from securefl.protocols.averaging import Averaging, Options
from securefl.protocols.contributions import Sampling, Sensitivity, of_client, training_job
from securefl.protocols.parts import Gathering, ServerContext, gather_mean
from securefl.protocols.personal import Personal
from securefl.training import Problem
from securefl.training.chunks import body_features
from securefl.training.heads import last_dense, output_layer, shifted
from securefl.training.jobs import TrainingJob, kept_values, usable, with_model
from securefl.training.models import Changed

_BY: Final = "`mean_bound` in its arm, and noise"
CONSENSUS: Final = ValueSpec(
    name="consensus",
    reduction="sum",
    reveals="the mean of its features under the first model",
    form="real",
    reads_state="none",
    on_model=False,
    bounded_by={"record": _BY, "client": _BY},
    schedule=Schedule(once=True),
)


@dataclass(frozen=True, kw_only=True)
class FedDBE(Options):
    """Options of FedDBE.

    kappa: the weight of the mean regularisation.
    momentum: mu, the share of a mini-batch's mean in the running mean of the features.
    mean_bound: largest norm of a record's features in the consensus; longer ones are scaled down. Without it
        the consensus cannot be noised.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # Their script, for convolutions on Fashion-MNIST (github.com/TsingZ0/DBE, run_me.sh).
        "authors": {"kappa": 50.0, "momentum": 1.0, "local": {"batch_size": 10}}
    }
    fraction: Fraction = 1.0
    kappa: Weight = 1.0
    momentum: Fraction = 0.1
    mean_bound: Annotated[float, Range("[2^-10, 2^10]")] | None = None

    def build(self, problem: Problem) -> Algorithm:
        """Raises ConfigError for private training, and for a model that does not end in its head."""
        if problem.private is not None:
            raise ConfigError(
                "Expected no [dpsgd] with FedDBE, got one: its mean regularisation is of a whole mini-batch, "
                "so no record's gradient can be clipped alone. Leave [dpsgd] out, or add noise to bounded "
                'updates (unit = "client", `update_bound`).'
            )
        output_layer(problem.layers, problem.outputs)
        part = WithBias(problem, options=self)
        last_dense(part.trained.layers)  # raises the error of a model that has no place for the bias
        return Averaging(problem=problem, fraction=self.fraction, part=part)


@dataclass(frozen=True, kw_only=True, eq=False)
class WithBias(Personal):
    """The whole model is shared. Each client keeps the bias of its features.

    The shared vector is the model (d,), the consensus (m,), and 1 if the consensus is known, else 0.
    """

    options: FedDBE

    @property
    def initial(self) -> Float32s:
        return np.concatenate([self.problem.initial, np.zeros(self.features + 1, np.float32)])

    @cached_property
    def features(self) -> int:
        """m."""
        return last_dense(self.problem.layers).in_features

    @property
    def size(self) -> int:
        return len(self.problem.initial)

    def contributions(self, sampling: Sampling) -> tuple[Contribution, ...]:
        return (*super().contributions(sampling), Consensus(self.problem, self.options.mean_bound))

    def gather(self, query: CohortQuery, here: ServerContext) -> Gathering:
        update, consensus = here.contributions[0], here.contributions[1].spec
        step, sent = np.zeros(len(query.broadcast)), query.broadcast
        if not sent[-1]:
            asked = Sum(consensus, self.features)
            told = yield CohortQuery(cohort=here.population.everyone(), broadcast=sent[:0], sums=(asked,))
            if told.survivors:
                total = told.totals[consensus.name]
                step[self.size :] = [*(total.value / total.weight), 1.0]
                sent = (sent + step).astype(np.float32)
        own, answers = yield from gather_mean(replace(query, broadcast=sent), update, self.size)
        if own is not None:
            step[: self.size] = own
        return (step if step.any() or answers.survivors else None), answers

    def fit(self, context: ClientContext) -> TrainingJob:
        start = np.concatenate([self.before(context.broadcast), self.bias(context.kept)])
        fit, (*consensus, known) = training_job(self.trained, context, start), context.broadcast[self.size :]
        if not known:
            return fit
        sent = np.array(consensus, np.float32).tobytes()
        return replace(fit, penalty=MeanPull(sent, self.options.kappa, self.options.momentum))

    def split(self, context: ClientContext, trained: Float32s) -> tuple[Float32s, ClientState | None]:
        model, bias = np.split(trained, [self.size])
        return model, {"bias": bias.copy()}

    def before(self, broadcast: Float32s) -> Float32s:
        if broadcast.shape != self.initial.shape:
            raise DataError(f"Expected {len(self.initial)} shared values, got the shape {broadcast.shape}.")
        return broadcast[: self.size]

    def common(self, shared: Float32s) -> Float32s | None:
        return self.before(shared)

    def model(self, client: int, shared: Float32s, kept: ClientState) -> Float32s:
        """The client's model (d,). Its head has the bias of its features in its own bias: W (f + e) + b."""
        model = self.before(shared)
        head = self.problem.head_of(model)
        head[:, 0] += head[:, 1:] @ self.bias(kept)
        return self.problem.under_head(model, head)

    def bias(self, kept: ClientState) -> Float32s:
        """The client's bias (m,), 0 before its first training."""
        return kept_values(kept, "bias", np.zeros(self.features, np.float32))

    @cached_property
    def trained(self) -> Problem:
        """The problem of a model with a bias on its features."""
        return replace(self.problem, model=Changed(self.problem.model, shifted))


@dataclass(unsafe_hash=True)
class MeanPull:
    """The mean regularisation of one local training: a penalty of a mini-batch, the same of each record.

    It is kappa times half the mean over the features of (running mean - consensus)^2. The running mean is
    (1 - momentum) times that of the mini-batch before, which is 0 at first, plus momentum times the mean of
    this mini-batch. The gradient flows through the latter.

    consensus: float32 (m,), as bytes.
    """

    consensus: bytes
    kappa: float
    momentum: float
    running: Tensor | float = field(default=0.0, compare=False)

    def __call__(self, features: Tensor, targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        mean = (features * weights[..., None]).sum(1, keepdim=True)
        self.running = (1 - self.momentum) * self.running + self.momentum * mean
        apart = self.running - torch.frombuffer(bytearray(self.consensus), dtype=mean.dtype).to(mean.device)
        pull = (self.kappa / 2 * apart.square().mean(2)).expand(weights.shape)
        return pull, self.kappa * self.momentum / apart.shape[2] * apart * weights[..., None]


# The consensus ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Consensus:
    """The mean of a client's features under the first model, (m,). 0 if no record can be used.

    bound: the largest norm of a record's features. The mean is that of bounded integers, towards 0. Let B be
    the bound in grid units. A record more moves a mean of n by |f - mean| / (n + 1) <= 2 B / (n + 1) for n >=
    1, and by B for n = 0: by at most B. Another record moves it by at most 2 B / n. Dropping the fraction of
    m entries moves two means apart by less than sqrt(m) units.
    """

    problem: Problem
    bound: float | None

    @cached_property
    def spec(self) -> ValueSpec:
        spec = with_model(replace(CONSENSUS, cohort=self.problem.clients), self.problem)
        if self.bound is None:
            return spec
        of_record: Sensitivity = {
            ("record", "add-remove"): self.bound,
            ("record", "replace-one"): 2 * self.bound,
        }
        spec = replace(spec, sensitivity={**of_record, **of_client(self.bound)})
        grid = grid_within(self.bound, spec, self.problem.bare_plan)
        fraction = sqrt(last_dense(self.problem.layers).in_features) * grid.step
        of_record = {key: own + fraction for key, own in of_record.items()}
        return replace(spec, sensitivity={**spec.sensitivity, **of_record}, grid=grid)

    def compute(self, context: ClientContext) -> Value:
        own = usable(self.problem, context)
        found = body_features(self.problem.module(self.problem.initial), own.x)
        found = found[clipping.finite(found)]
        if self.bound is None:
            return Value(clear=found.sum(0) / max(1, len(found)))
        step = self.spec.grid.step
        rows = clipping.to_grid(found, step, int(self.bound / step))
        total = rows.sum(0)
        # exact: a quotient of floats could be rounded up to the next integer
        mean = np.sign(total) * (np.abs(total) // max(1, len(rows)))
        return Value(integers=mean, step=step)
