"""SAFA's cache of stale models (Wu et al. 2021), an option of full aggregation.

    w_t = sum over all clients k of (n_k / n) w_k, where w_k is the model of k's last training, before it w_0

Without the cache an absent client counts with the round's own broadcast, so a round moves the model by the
share of the selected alone. In SAFA the server holds all w_k. Here each client keeps its own, and sends the
difference of its new model to it. It is the same sum. It hides less than a sum of updates: one w_k stands in
two opened sums, over two cohorts. So a server that lies about the model reads it from their difference. One
that follows the protocol reads the first w_k of a client from one sum, to which clients that were asked
before add only what two of their trainings differ by. So it is refused in hidden sums without noise.

If a sum is lost after a client trained, or a client loses the model that it keeps, server and client disagree
on its w_k from then on. SAFA's bound on the lag of a model is left out: no model is too old.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from securefl.algorithm import ClientContext, Value
from securefl.errors import DataError
from securefl.protocols.averaging import Aggregation, Options, aggregated
from securefl.protocols.buffers import whole_model
from securefl.protocols.contributions import bounded
from securefl.protocols.parts import Part
from securefl.training import Problem
from securefl.training.jobs import TrainingResult, kept_values


class Cached(Part):
    """The whole model. A client sends its new model less that of its last training, which it keeps."""

    reads_state = "repeated"

    def value(self, context: ClientContext, trained: TrainingResult) -> Value:
        last = kept_values(context.kept, "model", self.problem.initial)
        found = bounded(self.problem, last, trained)
        if isinstance(trained, DataError):  # it sends 0, and its last model stays
            return found
        if found.integers is None:
            return replace(found, new_state={"model": trained.copy()})
        # Under a bound it keeps what the sum has of it, and not what it trained.
        sent = (last + found.floats()).astype(np.float32)
        return replace(found, new_state={"model": sent})


def part_of(problem: Problem, stale: bool) -> Part:
    """The part that is averaged: the whole model, with or without the cache."""
    return Cached(problem) if stale else whole_model(problem)


def with_stale(stale: bool) -> str | None:
    """The option in the words of a plot's legend."""
    return "stale models" if stale else None


@dataclass(frozen=True, kw_only=True)
class Aggregating(Options):
    """Options of a protocol with either aggregation.

    aggregation: "full" keeps the old model for absent clients, "partial" is the mean over the selected.
    stale: under full aggregation, absent clients count with the model of their last training (SAFA's cache).

    Raises ValueError for a cache under partial aggregation, which has no place for absent clients.
    """

    aggregation: Aggregation = field(default="full", metadata={"words": aggregated})
    stale: bool = field(default=False, metadata={"words": with_stale})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stale and self.aggregation != "full":
            raise ValueError(
                'Expected aggregation = "full" beside stale = true, got "partial", under which absent '
                "clients do not count. Leave one of them out."
            )
