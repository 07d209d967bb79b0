"""Power-of-choice: candidates by size, then the largest losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.choices import chosen
from support.tiny_study import study, world

from securefl.algorithm.clients import Population, State
from securefl.algorithm.queries import Answers, CohortQuery
from securefl.protocols.averaging import Averaging
from securefl.protocols.power_of_choice import ByLargestLoss, PowerOfChoice
from securefl.training.task import Problem

CLIENTS = 8
POPULATION = Population(clients=CLIENTS, seconds=np.ones(CLIENTS))
LOSSES = np.array([3.0, 1.0, 4.0, 1.5, 5.0, 9.0, 2.0, 6.0])


@pytest.fixture(scope="module")
def problem() -> Problem:
    return world(study(clients=CLIENTS)).problem


def cohort(
    of: ByLargestLoss, seed: int = 0, silent: tuple[int, ...] = (), **memory: Any
) -> tuple[Any, CohortQuery]:
    asked: list[CohortQuery] = []

    def answer(query: CohortQuery) -> Answers:
        asked.append(query)
        told = {k: float(LOSSES[k]) for k in query.cohort if k not in silent}
        return Answers(survivors=tuple(told), totals={}, per_client={"loss": told})

    state = State(np.zeros(1, np.float32), {"size": np.ones(CLIENTS), **memory})
    found, _ = chosen(of, state, POPULATION, 2, np.random.default_rng(seed), answer=answer)
    return found, asked[0]


def test_candidates_are_drawn_by_size(problem: Problem) -> None:
    sizes = np.ones(CLIENTS)
    sizes[3] = 1e9
    assert all(3 in cohort(ByLargestLoss(problem, 2), seed, size=sizes)[1].cohort for seed in range(20))


def test_a_candidate_that_does_not_say_ranks_last(problem: Problem) -> None:
    found, _ = cohort(ByLargestLoss(problem, CLIENTS), silent=(5, 7))
    assert set(found) == {4, 2}
    found, _ = cohort(ByLargestLoss(problem, CLIENTS), silent=(0, 1, 2, 3, 4, 5, 7))
    assert 6 in found
    assert len(found) == 2


def test_twice_the_cohort_are_candidates(problem: Problem) -> None:
    algorithm = PowerOfChoice(fraction=0.25).build(problem)
    assert isinstance(algorithm, Averaging)
    assert isinstance(algorithm.selection, ByLargestLoss)
    assert algorithm.selection.candidates == 4
    whole = PowerOfChoice(fraction=0.75).build(problem)
    assert isinstance(whole, Averaging)
    assert isinstance(whole.selection, ByLargestLoss)
    assert whole.selection.candidates == CLIENTS
