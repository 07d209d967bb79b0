"""Heads on frozen features: prototypes, ridge regression and linear discriminants, from one sum."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from securefl.algorithm.clients import Algorithm
from securefl.core.errors import ConfigError
from securefl.mechanisms import mechanism_of
from securefl.protocols.heads.algorithm import ClosedForm
from securefl.protocols.heads.blocks import Blocks, grid_of
from securefl.protocols.heads.bounding import Bounding
from securefl.protocols.heads.rule import MOST_VALUES, Choice, choose
from securefl.protocols.heads.statistic import Statistic
from securefl.training.heads import Projection, last_dense
from securefl.training.task import Problem

_COUNTS = 0.25
"""Weight of the counts. They are as large as all features of a class together, and need less accuracy."""


@dataclass(frozen=True, kw_only=True)
class Heads:
    """Options of heads in closed form.

    The features are the input of the model's last dense layer. With `kind = "mlp"` and `hidden = []` under
    [model] they are the records themselves, such as features that a public network made.

    head: "auto" takes the head that a rule names for this many records and this much noise (`rule`).
    projection: "leading" keeps the first features, for features in order of importance. "random" is a public
        random matrix. "none" keeps all.
    width: how many features are kept. Without it a rule says.
    bounding: how the features of a record come to have norm 1.
    strength: of ridge and of LDA, in records. Without it the noise says.
    moments: weight of the second moments beside class sums of weight 1.
    client_bound: the largest norm of a client's whole statistic. A longer one is scaled down.
    """

    head: Literal["auto", "prototypes", "ridge", "lda"] = "auto"
    projection: Literal["none", "leading", "random"] = "none"
    width: int | None = None
    bounding: Bounding = field(default_factory=Bounding)
    strength: float | None = None
    moments: float = 1.0
    client_bound: float | None = None

    def __post_init__(self) -> None:
        if self.width is not None and (self.projection == "none" or self.width < 1):
            raise ValueError(
                f'Expected width >= 1 with projection "leading" or "random", got width {self.width} with '
                f'"{self.projection}".'
            )
        if self.projection == "random" and self.width is None:
            raise ValueError(
                'Expected width with projection "random", got none. Say how many numbers are kept.'
            )
        if not 1 / 64 <= self.moments <= 64:
            raise ValueError(f"Expected moments, a weight, from 1/64 to 64, got {self.moments}.")
        if self.strength is not None and not 1e-6 <= self.strength <= 2**40:
            raise ValueError(f"Expected strength from 1e-6 to 2^40 records, got {self.strength}.")
        if self.client_bound is not None and not 0.01 <= self.client_bound <= 2**20:
            raise ValueError(f"Expected 0.01 <= client_bound <= 2^20, got {self.client_bound}.")

    def build(self, problem: Problem) -> Algorithm:
        if problem.kind != "classification":
            raise ConfigError(
                "Expected a data set with classes for heads, got numeric targets. Take another protocol."
            )
        width = last_dense(problem.module(problem.initial)).in_features
        chosen = self._choice(problem, width)
        statistic = self._statistic(problem, width, chosen)
        room = statistic.blocks.grid.bound
        if self.client_bound is not None and self.client_bound > room:
            raise ConfigError(
                f"Expected client_bound of at most {room:g}, which the grid of {problem.records:,} records "
                f"at {problem.clients:,} clients holds, got {self.client_bound:g}. Lower it."
            )
        if statistic.blocks.size > MOST_VALUES:
            raise ConfigError(
                f"Expected a statistic of at most {MOST_VALUES:,} values, got {statistic.blocks.size:,} for "
                f'{chosen.width:,} features. Set projection and width, or take head = "prototypes".'
            )
        return ClosedForm(problem, statistic, chosen.head, self.strength)

    def _choice(self, problem: Problem, features: int) -> Choice:
        """The head and its width: what is written, and for the rest what the rule says."""
        named = None if self.head == "auto" else self.head
        ruled = choose(
            records=self._records(problem),
            deviation=self._noise_of_one(problem, features),
            classes=problem.outputs,
            features=features,
            ordered=self.projection == "leading",
            head=named,
        )
        if self.projection == "none" and named is not None:
            return replace(ruled, width=features)
        return ruled if self.width is None else replace(ruled, width=self.width)

    def _records(self, problem: Problem) -> float:
        """The declared number of records, or as many as clipped clients can count for."""
        if self.client_bound is None:
            return problem.records
        return min(problem.records, problem.clients * self.client_bound)

    def _noise_of_one(self, problem: Problem, features: int) -> float:
        """The deviation of the total's noise for a value of sensitivity 1 a record."""
        if problem.planned is None:
            return 0.0
        one = Choice(head="prototypes", width=features)
        sends = self._statistic(problem, features, one).sends
        return mechanism_of(problem.planned((sends,)), sends).deviation(problem.clients)

    def _statistic(self, problem: Problem, features: int, chosen: Choice) -> Statistic:
        # features that the rule leaves out without an order are left out at random
        kind = "random" if self.projection == "none" and chosen.width < features else self.projection
        return Statistic(
            problem,
            self.bounding,
            Projection(kind=kind, features=features, width=chosen.width, seed=problem.seed),
            self._blocks(problem, chosen),
            _reveals(chosen, features),
            self.client_bound,
        )

    def _blocks(self, problem: Problem, chosen: Choice) -> Blocks:
        return Blocks(
            classes=problem.outputs,
            width=chosen.width,
            grid=grid_of(problem.records, problem.clients),
            counts=_COUNTS if chosen.head == "lda" else 0.0,
            moments=0.0 if chosen.head == "prototypes" else self.moments,
        )


def _reveals(chosen: Choice, features: int) -> str:
    """What the server sees, for the privacy card. It names the head that was chosen."""
    what = {
        "prototypes": "the sums of its features by class",
        "ridge": "the sums of its features by class, and their second moments",
        "lda": "the counts and sums of its features by class, and their second moments",
    }[chosen.head]
    width = f"{chosen.width:,} of {features:,}" if chosen.width < features else f"all {features:,}"
    rare = "of a class that it alone holds, its own sums; and which classes nobody holds"
    return f"{what} (head: {chosen.head} on {width} features; {rare})"
