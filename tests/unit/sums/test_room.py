"""The bits of a hidden sum follow its weights: enough for every honest cohort, and no more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.every import every
from support.examples import examples
from support.one_value import engine

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ByDraws, CohortQuery, Sum, Value, ValueSpec, draw_weight
from securefl.algorithm.weighing import Weights
from securefl.core.agreement import Vector
from securefl.core.errors import ConfigError
from securefl.core.grid import Grid
from securefl.core.wire import Header
from securefl.sums.scheme import Attempt

BY_DRAWS = ValueSpec(name="update", reduction="sum", reveals="an update", weighs="draws")
NOISED = ValueSpec(
    name="update",
    reduction="sum",
    reveals="an update",
    weighs="draws",
    sensitivity={("client", "add-remove"): 1.0},
    bounded_by={"client": "its norm"},
)


def vector(spec: ValueSpec, weights: Weights, called: int | None = None) -> Vector:
    """The vector of one entry on which all parties of an attempt agree."""
    attempt = Attempt(
        header=Header(bytes(32), round=1, attempt=1, stage=0),
        sums=(Sum(spec, 1),),
        initial=0,
        number=0,
        again=0,
        cohort=tuple(f"client-{k:04d}" for k in range(called or weights.ordered)),
        weights=weights,
        task=bytes(32),
    )
    (found,) = attempt.vectors()
    return found


def by_draws(draws: tuple[int, ...]) -> Weights:
    return Weights(draws, whole=sum(draws))


@every("clients", [2, 3, 10, 100, 3000])
def test_a_mean_by_draws_takes_words_of_32_bits_in_every_cohort(clients: int) -> None:
    assert vector(BY_DRAWS, by_draws((1,) * clients)).bits == 32


@every(
    ("spec", "weights"),
    [
        (ValueSpec(name="step", reduction="sum", reveals="a step"), Weights((1,) * 10)),
        # A count is the client's own, and n is the server's word: nothing shows that they add up to n.
        (
            ValueSpec(name="step", reduction="sum", reveals="a step", weighs="counts"),
            Weights((1,) * 10, records=60),
        ),
        # Noise is sized for weights up to 1, so these are not divided by the number of draws.
        (NOISED, by_draws((1,) * 10)),
    ],
)
def test_other_sums_have_room_for_every_client_at_its_bound(spec: ValueSpec, weights: Weights) -> None:
    found = vector(spec, weights)
    assert found.sum_bound == 10 * spec.grid.limit
    assert found.bits == (10 * spec.grid.limit).bit_length() + 1


@examples(100)
@given(
    draws=st.lists(st.integers(1, 9), min_size=1, max_size=40).map(tuple),
    bound=st.sampled_from([1.0, 3.0, 0.7, 2.0**9]),
    step=st.sampled_from([2.0**-21, 0.1, 2.0**-7 / 3]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    spec=st.sampled_from([BY_DRAWS, NOISED]),
)
def test_no_honest_cohort_sums_beyond_its_bound(
    draws: tuple[int, ...], bound: float, step: float, dtype: Any, spec: ValueSpec
) -> None:
    """All clients at the bound, with weights and products that round up as they may."""
    grid = Grid(step=step, bound=bound)
    own = replace(spec, grid=grid)
    value = grid.clipped(np.array([np.inf], dtype))
    total = 0
    for one in draws:
        weight = draw_weight(one, sum(draws), max(draws), own)
        total += int(grid.quantise(value, weight)[0])
    found = vector(own, by_draws(draws))
    assert total <= found.sum_bound < 1 << (found.bits - 1)


def test_rounding_takes_a_sum_beyond_the_grid_and_not_beyond_its_room() -> None:
    """Seven seventh parts, each rounded up: one unit more than the whole."""
    grid = Grid(step=1.0, bound=3.5 * 7)
    spec = ValueSpec(name="update", reduction="sum", reveals="an update", weighs="draws", grid=grid)
    parts = [int(grid.quantise(np.array([24.5]), 1 / 7)[0]) for _ in range(7)]
    found = vector(spec, by_draws((1,) * 7))
    assert grid.limit < sum(parts) <= found.sum_bound


def test_an_attempt_with_fewer_clients_needs_no_more_room_than_they_fill() -> None:
    spec = ValueSpec(name="u", reduction="sum", reveals="u", weighs="draws", grid=Grid(step=1.0, bound=1.0))
    assert vector(spec, by_draws((1,) * 50), called=2).sum_bound == 2


DRAWS = (2, 2, 2, 2, 2, 1, 1)
AT_THE_BOUND = np.array([512.0, -512.0, 511.99997, 0.1], np.float32)
IN_THE_CLEAR = Plan(delta=1e-5, max_rounds=1, non_private=("update",))
HIDDEN: dict[str, Any] = {
    "corrupt": 0.0,
    "min_cohort_size": 3,
    "max_cohort_size": len(DRAWS),
    "min_honest": 2,
    "max_client_weight": 0.5,
    "weights": {"update": "draws"},
    "draws": sum(DRAWS),
}


def summed(how: Any, spec: ValueSpec) -> list[float]:
    """The total of a cohort in which every client is at its bound."""
    plan = IN_THE_CLEAR if how == "clear" else replace(IN_THE_CLEAR, sum=how, **HIDDEN)
    query = CohortQuery(
        cohort=tuple(range(len(DRAWS))),
        broadcast=np.zeros(1, np.float32),
        sums=(Sum(spec, len(AT_THE_BOUND)),),
        weights=ByDraws(dict(enumerate(DRAWS))),
    )
    parties = engine(plan, spec, lambda context: Value(clear=AT_THE_BOUND), [2] * len(DRAWS))
    answers, _ = parties.query(query, Header(bytes(32), 1, 0, 0))
    assert answers.survivors == query.cohort
    return list(answers.totals["update"].value)


@every("how", ["masked", "two-server", "ckks"])
@every("spec", [BY_DRAWS, replace(BY_DRAWS, sensitivity={("client", "zero-out"): 1.0})])
def test_a_cohort_at_its_bound_has_one_total_under_every_sum(how: str, spec: ValueSpec) -> None:
    """With a sensitivity weights are draws over the most of them: the total is six times the bound."""
    total = summed("clear", spec)
    assert summed(how, spec) == total
    assert total[0] == -total[1] == pytest.approx(512 * (6 if spec.sensitivity else 1), rel=2.0**-22)


def test_a_sum_bound_without_bits_for_it_is_refused() -> None:
    fits = Vector(name="v", length=1, bits=8, bound=100, sum_bound=127)
    fits.require_room(50)
    with pytest.raises(ConfigError, match="sums up to 128 of 50"):
        Vector(name="v", length=1, bits=8, bound=100, sum_bound=128).require_room(50)
    with pytest.raises(ConfigError, match="Expected a length"):
        Vector(name="v", length=1, bits=8, bound=100, sum_bound=-1)
