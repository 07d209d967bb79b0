"""Queries: what a server may ask of a cohort, and which numbers it counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every

from securefl.accounting.events import steps_event
from securefl.algorithm.clients import Population
from securefl.algorithm.queries import ByDraws, CohortQuery, PerClient, Schedule, Sum, ValueSpec
from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.linear import LinearBounds, LinearQuery

STEP = ValueSpec(name="step", reduction="sum", reveals="a step")
LOSS = ValueSpec(name="loss", reduction="none", reveals="a loss")


def query(**words: Any) -> CohortQuery:
    return CohortQuery(**{"cohort": (0, 2), "broadcast": np.zeros(1, np.float32), **words})


def test_a_query_names_each_client_and_each_value_once() -> None:
    """A client named twice would count as two towards a threshold."""
    twice = (Sum(STEP, 3), Sum(STEP, 3))
    for wrong in ({"cohort": (0, 2, 0)}, {"sums": twice}):
        with pytest.raises(LocalProtocolError):
            query(**wrong)
    assert query(sums=twice[:1], per_client=(PerClient(LOSS),)).wants() == (STEP, LOSS)


@every("draws", [{0: 1}, {0: 1, 2: 1, 3: 1}, {0: 1, 3: 1}])
def test_draws_are_those_of_the_cohort(draws: dict[int, int]) -> None:
    with pytest.raises(LocalProtocolError):
        query(weights=ByDraws(draws))
    with pytest.raises(LocalProtocolError):
        ByDraws({0: 1, 2: 0})
    assert query(weights=ByDraws({2: 1, 0: 3})).weights == ByDraws({0: 3, 2: 1})


def test_a_noised_value_is_weighted_by_the_most_draws() -> None:
    """Noise is sized for a weight of 1. Divided by all draws, values would shrink and noise would not."""
    draws = ByDraws({0: 3, 2: 1})
    noised = replace(STEP, sensitivity={("record", "add-remove"): 1.0})
    assert [draws.whole_weight((k,), STEP) for k in (0, 2)] == [0.75, 0.25]
    assert [draws.whole_weight((k,), noised) for k in (0, 2)] == [1.0, 1 / 3]


def test_a_linear_query_declares_its_releases() -> None:
    """Enough different queries reveal the whole vector."""
    bounds = LinearBounds(hidden_length=2, norm=2.0, weight_norm=2.0, row_norm=2.0, product=4.0)
    own = LinearQuery(bounds, np.ones(2))
    with pytest.raises(LocalProtocolError):
        PerClient(LOSS, own)
    PerClient(replace(LOSS, schedule=Schedule(max_releases=1)), own)


@every("name", ["period", "initial", "extra"])
@every("number", [-1, 1.0, True])
def test_a_schedule_counts_in_whole_numbers(name: str, number: Any) -> None:
    with pytest.raises(LocalProtocolError, match=name):
        Schedule(**{name: number})


def test_a_number_is_finite_and_in_its_range() -> None:
    loss = PerClient(LOSS, least=0.0, most=5.0)
    numbers = [0.0, 5.0, -1e-9, 5.1, np.nan, np.inf, -np.inf]
    assert [loss.allows(number) for number in numbers] == [True, True, *[False] * 5]
    assert not PerClient(LOSS).allows(np.inf)


def test_the_retired_are_never_drawn() -> None:
    people = Population(clients=4, seconds=np.ones(4), retired=frozenset({1, 2}))
    assert people.everyone() == (0, 3)
    given = np.zeros(4)
    assert people.among(given).tolist() == [0.0, -np.inf, -np.inf, 0.0]
    assert not given.any(), "the caller's array stays as it is"


@every(
    "wrong",
    [
        *(
            {"depends_on": "trained_state"},
            {"reads_state": "unbounded"},
            {"form": "maps"},
            {"weighs": "count"},
        ),
        *({"reduction": "mean"}, {"grid": None}, {"cohort": 2.5}, {"training": 0.5}, {"sensitivity": None}),
        *({"sensitivity": {("record", "add-remove"): "1"}}, {"sensitivity": {"record": 1.0}}),
    ],
)
def test_a_misspelt_word_of_a_spec_is_refused_by_name(wrong: dict[str, Any]) -> None:
    """Trained state that was spelt with an underscore was charged as if one record could not move it."""
    [name] = wrong
    with pytest.raises(ConfigError, match=f"Expected `{name}` as"):
        replace(STEP, **wrong)
    assert replace(STEP, depends_on="model", training=steps_event(0.1, 1.0, 5)).training is not None


def test_a_sum_has_a_length_and_draws_a_bound() -> None:
    for size in (-1, 2.0):
        with pytest.raises((ConfigError, LocalProtocolError), match="Expected"):
            Sum(STEP, size)  # type: ignore[arg-type]
    with pytest.raises(LocalProtocolError, match=r"fewer than 2\^63 draws"):
        ByDraws({0: 2**70, 2: 1})
