"""A selection's choice, driven by hand: what it asks is answered, and what it ends in is given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from securefl.algorithm.clients import Population, State
from securefl.algorithm.queries import Answers, CohortQuery
from securefl.protocols.averaging import Cohort, Selection


def nothing(asked: CohortQuery) -> Answers:
    raise AssertionError(f"This selection asks nothing, and asked {asked.wants()}.")


def chosen(
    selection: Selection,
    state: State,
    population: Population,
    count: int,
    rng: np.random.Generator,
    *,
    number: int = 1,
    answer: Callable[[CohortQuery], Answers] = nothing,
) -> tuple[Cohort, State]:
    """The cohort and the state of one choice. `answer` stands for the clients."""
    turn = selection.choose(state, population, count, number, rng)
    try:
        asked = next(turn)
        while True:
            asked = turn.send(answer(asked))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's result is untyped here


def cohort_of(
    selection: Selection, state: State, population: Population, count: int, rng: np.random.Generator
) -> Cohort:
    """The cohort of a selection that asks nothing."""
    return chosen(selection, state, population, count, rng)[0]
