"""One exchange of sums, and the head of all that answered."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from securefl.algorithm.clients import Device, Evaluation, Played, Population, State
from securefl.algorithm.queries import Answers, Ask, Floats, Kept, Sum
from securefl.core.errors import DataError
from securefl.core.logs import logger
from securefl.mechanisms import mechanism_of
from securefl.protocols.heads.solvers import Kind, solve
from securefl.protocols.heads.statistic import Statistic
from securefl.protocols.once import absent, including
from securefl.training.heads import Bounded, with_head
from securefl.training.learnt import Learnt, common
from securefl.training.task import Problem

_log = logger(__name__)
NOBODY = Answers(survivors=(), totals={}, each={})


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """The clients' sums are added once. The server solves the total for a linear head, and broadcasts it.

    Later rounds ask only the clients that were absent. A client that drops out is missing in the total, and
    nothing else changes: the head is that of the others' records.
    """

    problem: Problem
    statistic: Statistic
    head: Kind
    strength: float | None = None

    @property
    def offers(self) -> tuple[Statistic, ...]:
        return (self.statistic,)

    def start(self) -> State:
        blocks = self.statistic.blocks
        return State(
            np.zeros(blocks.classes * (1 + blocks.width), np.float32),
            {
                "sum": np.zeros(blocks.size),
                "counted": np.zeros(self.problem.clients),
                "variance": np.zeros(1),
            },
        )

    def round(
        self, state: State, population: Population, number: int, rng: np.random.Generator
    ) -> Generator[Ask, Answers, Played]:
        cohort = absent(state.memory["counted"], population)
        question = Sum(self.statistic.sends, self.statistic.blocks.size)
        asked = Ask(cohort=cohort, broadcast=state.broadcast[:0], sums=(question,))
        answers = (yield asked) if cohort else NOBODY
        state = self._learn(state, answers)
        return Played(state=state, drawn=dict.fromkeys(cohort, 1), survivors=answers.survivors)

    def _learn(self, state: State, answers: Answers) -> State:
        if not answers.survivors:
            return state
        memory = state.memory
        total = memory["sum"] + answers.totals["statistic"].value
        variance = memory["variance"] + self._deviation(len(answers.survivors)) ** 2
        counted = including(memory["counted"], answers.survivors)
        state = state.remember(sum=total, variance=variance, counted=counted)
        try:
            parts = self.statistic.blocks.parts(total, float(np.sqrt(variance[0])))
            head = solve(self.head, parts, self.strength)
        except DataError as error:  # such as noise that outweighs the records
            _log.warning("No head was solved for, and the one before stays: %s", error)
            return state
        return State(head.astype(np.float32).ravel(), state.memory)

    def _deviation(self, survivors: int) -> float:
        """The noise in an entry of one total over so many clients."""
        if self.problem.planned is None:
            return 0.0
        sends = self.statistic.sends
        return mechanism_of(self.problem.planned((sends,)), sends).deviation(survivors)

    def evaluate(self, state: State, devices: Sequence[Device]) -> Evaluation:
        head = state.broadcast.astype(np.float64).reshape(self.statistic.blocks.classes, -1)
        x, y = self.problem.server_x, np.asarray(self.problem.server_y)
        clipped = [float(np.sum(device.kept.get("clipped", np.nan))) for device in devices]
        if not len(y):
            return Evaluation(
                accuracy=float("nan"), loss=float("nan"), figures={"clipped": np.array(clipped)}
            )
        scores = self._scores(head, x)
        return Evaluation(
            accuracy=float(np.mean(scores.argmax(axis=1) == y)),
            loss=float(np.mean(logsumexp(scores, axis=1) - scores[np.arange(len(y)), y])),
            figures={"clipped": np.array(clipped)},
        )

    def learnt(self, state: State, client: int | None, kept: Kept) -> Learnt:
        """The public body, with the head behind bounded features."""
        head = state.broadcast.reshape(self.statistic.blocks.classes, -1)
        own, projection = self.statistic.bounding, self.statistic.projection
        features = Bounded(
            kind=own.kind, bound=own.bound, projection=None if projection.kind == "none" else projection
        )
        wide = np.zeros((len(head), 1 + projection.features))
        wide[:, : head.shape[1]] = head
        vector = with_head(self.problem.module(self.problem.initial), wide)
        return common(self.problem, vector, client, features)

    def _scores(self, head: Floats, x: NDArray[Any]) -> Floats:
        """The score of each class, (n, C). A record with features that are not finite has those of 0."""
        features = self.statistic.features(x)
        finite = np.where(np.isfinite(features).all(axis=1, keepdims=True), features, 0.0)
        return np.asarray(self.statistic.bounding.bounded(finite) @ head[:, 1:].T + head[:, 0])
