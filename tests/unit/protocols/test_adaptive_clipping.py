"""A bound of updates that follows a quantile: noised and charged with them, agreed on, kept over restarts.

The attacks: a server that tells another bound than the sum's, or none that is one; clients that drop out and
would count as clipped; a lost round or a restart that moves the bound; a bit that no epsilon counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from support.arms import ARMS
from support.combinations import study as combination
from support.every import every
from support.private_studies import DISTRIBUTED, KEY_HOLDER, client_level
from support.tiny_problem import client_context
from support.tiny_study import charged, composed, same_state, spied, study, text, world

from securefl.algorithm.clients import ClientContext, Population, State, specs_of
from securefl.algorithm.queries import Answers, ByDraws, CohortQuery, Total, ValueSpec
from securefl.core.errors import ConfigError, DataError
from securefl.core.streams import stream
from securefl.engine.exchange.client import Client
from securefl.mechanisms.charges import Protection
from securefl.protocols.adaptive_clipping import BIT, NORM, Adaptive
from securefl.protocols.averaging import Momentum, Replace
from securefl.protocols.contributions import UNSAMPLED
from securefl.protocols.parts import ServerContext
from securefl.study.composition import compositions
from securefl.study.config import Study, parse
from securefl.study.forecast import final_epsilon, forecast, lines
from securefl.study.publication import published
from securefl.study.results import collect
from securefl.study.run_report import figures
from securefl.training.local import BOUND, BOUNDS

PLACEMENTS: dict[str, dict[str, str]] = {
    "central": {},
    "local": {"noise": '"local"'},
    "shares": {**DISTRIBUTED, "sum": '"masked"'},
    "key holder": KEY_HOLDER,
}


def adaptive(own: Study, quantile: float | None = 0.5, **local: Any) -> Study:
    return replace(own, local=replace(own.local, bound_quantile=quantile, **local))


def bounds(spy: Any) -> list[float]:
    return [float(state.memory[BOUND][0]) for state in spy.states]


@contextmanager
def told(lie: float, *clients: int) -> Iterator[None]:
    """The server tells these clients another bound."""
    whole = Client._whole

    def lying(self: Any, broadcast: Any) -> Any:
        arrays = (np.array([lie]),) if self.number in clients else broadcast.arrays
        assert broadcast.names == (BOUND,)
        return whole(self, replace(broadcast, arrays=arrays))

    with mock.patch.object(Client, "_whole", lying):
        yield


# Noise and charge -----------------------------------------------------------------------------------


@every("noise", PLACEMENTS.values())
def test_update_and_bit_are_one_release_that_the_target_counts(noise: dict[str, str], tmp_path: Path) -> None:
    of = adaptive(client_level(rounds=3, **noise))
    here = world(of)
    algorithm, plan = composed(of, here)
    (spec,) = (one.spec for one in algorithm.contributions)
    fixed = composed(client_level(rounds=3, **noise))[1]
    assert plan.noise_multiplier == fixed.noise_multiplier, "the bit is no release of its own"
    assert spec.sensitivity["client", "zero-out"] == NORM == np.hypot(1, BIT)
    mechanism = Protection(plan, spec).mechanism
    assert mechanism.sigma == plan.noise_multiplier * NORM / spec.grid.step
    assert final_epsilon(plan, [spec])["others"] == pytest.approx(8.0, abs=1e-6)
    spy, finished = spied(of, tmp_path, here)
    assert charged(tmp_path) == {"update": 18}  # of 6 clients in 3 rounds
    assert finished.records[-1]["epsilon"]["others"] <= 8.0
    # A bound may come back: noise of one client can move it by e, the most of a round, and then by 1 / e.
    assert all(before != after for before, after in pairwise(bounds(spy))), "every round moves the bound"
    assert all(query.sums[0].size == len(here.problem.initial) + 1 for query, _ in spy.asks)


def test_the_noise_of_the_model_scales_with_the_bound(tmp_path: Path) -> None:
    """Clients that never train: the whole step is noise, in multiples of the bound."""
    steps = []
    for bound in ("0.001", "1000.0"):
        of = client_level(bound=bound, rounds=1)
        spy, _ = spied(adaptive(of, learning_rate=1e-12), tmp_path / bound)
        steps.append(np.std(spy.states[1].broadcast - spy.states[0].broadcast) / float(bound))
    plan = composed(of)[1]
    assert steps == pytest.approx([plan.noise_multiplier * NORM / 6] * 2, rel=0.1)


# The client -----------------------------------------------------------------------------------------


def context_of(here: Any, bound: Any) -> ClientContext:
    x, y = here.records[0]
    public = {} if bound is None else {BOUND: np.asarray(bound)}
    rng = stream(1, "client", 1, 0)
    return client_context(x, y, broadcast=here.problem.initial, public=public, rng=rng)


@pytest.fixture(scope="module")
def here() -> Any:
    return world(adaptive(client_level()))


@every("lie", [[0.0], [np.nan], [np.inf], [-1.0], [1e30], [2.0**-11], [], [1.0, 1.0], 1.0, None])
def test_a_client_answers_no_bound_out_of_its_range(lie: Any, here: Any) -> None:
    part = Adaptive(here.problem)
    with pytest.raises(DataError, match="the client abstains"):
        part.value(context_of(here, lie), here.problem.initial)


@every("bound", [2.0**-10, 0.3, 2.0**10])
def test_whatever_the_bound_is_a_client_moves_the_sum_by_the_norm_at_most(bound: float, here: Any) -> None:
    """So a server that lies within the range gains nothing: the noise was made for this norm."""
    part, start = Adaptive(here.problem), here.problem.initial
    step = part.spec(UNSAMPLED).grid.step
    for length in (0.0, bound * 0.999, bound * 1.001, 1e-30, 1e5, 3e38):
        along = np.zeros(len(start), np.float32)
        along[3] = length
        value = part.value(context_of(here, [bound]), start + along)
        assert value.integers is not None
        norm = np.linalg.norm(value.integers * step)
        assert norm <= NORM
        moved = float(start[3] + along[3]) - float(start[3])
        assert value.integers[-1] * step == (BIT if moved <= bound else -BIT)
        assert np.linalg.norm(value.integers[:-1] * step) == pytest.approx(min(moved / bound, 1), abs=1e-3)


def test_a_training_that_diverged_counts_as_a_step_of_nothing(here: Any) -> None:
    value = Adaptive(here.problem).value(context_of(here, [0.5]), DataError("it diverged"))
    assert value.integers is not None
    assert (value.blank, np.flatnonzero(value.integers).tolist()) == (
        "it diverged",
        [len(value.integers) - 1],
    )


# The server -----------------------------------------------------------------------------------------


def advanced(
    here: Any,
    within: float,
    clipped: float,
    server: Any = None,
    bound: float = 0.5,
    quantile: float = 0.5,
    number: int = 1,
) -> State:
    """The state after round `number` of so many clients, of which others dropped out."""
    problem = replace(here.problem, local=replace(here.problem.local, bound_quantile=quantile))
    part = Adaptive(problem)
    start = State(problem.initial, {BOUND: np.array([bound])})
    query = CohortQuery(
        cohort=(*range(9),), broadcast=start.broadcast, weights=ByDraws(dict.fromkeys(range(9), 1))
    )
    inputs = ServerContext(
        population=Population(clients=9, seconds=np.ones(9)),
        number=number,
        rng=np.random.default_rng(0),
        contributions=part.contributions(UNSAMPLED),
    )
    turn = part.advance(server or Replace(), start, query, inputs)
    asked, answered = next(turn), round(within + clipped)
    assert asked.public[BOUND].tolist() == [bound]
    value = np.r_[np.full(len(start.broadcast), 0.01), BIT * (within - clipped)]
    totals = {"update": Total(value, float(answered))} if answered else {}
    with pytest.raises(StopIteration) as done:
        turn.send(Answers(survivors=(*range(answered),), totals=totals, per_client={}))
    return done.value.value[0]  # type: ignore[no-any-return]


@every(("within", "clipped", "quantile"), [(3, 1, 0.5), (0, 2, 0.5), (9, 0, 0.9), (1, 1, 0.5), (1, 3, 0.25)])
def test_the_bound_moves_by_the_share_of_those_who_answered(
    within: int, clipped: int, quantile: float, here: Any
) -> None:
    """A client that dropped out counts neither as clipped nor as within."""
    after = advanced(here, within, clipped, quantile=quantile)
    share = within / (within + clipped)
    assert after.memory[BOUND] == pytest.approx([0.5 * np.exp(-2 * (share - quantile))], rel=1e-12)


@every(("number", "rate"), [(1, 2.0), (4, 1.0), (16, 0.5), (100, 0.2), (10_000, 0.2)])
def test_early_rounds_move_the_bound_most_and_none_less_than_the_papers_rate(
    number: int, rate: float, here: Any
) -> None:
    after = advanced(here, 3, 1, number=number)
    assert after.memory[BOUND] == pytest.approx([0.5 * np.exp(-rate * 0.25)], rel=1e-12)


@every("ratio", [10.0, 0.1])
def test_a_first_bound_of_another_order_is_at_the_median_after_a_few_rounds(ratio: float, here: Any) -> None:
    """The paper's rate alone took 24 rounds. Their noise, in multiples of the bound, stays in the model."""
    bound, rounds = ratio, 0
    while (bound > 1) == (ratio > 1):
        rounds += 1
        within, clipped = (4, 0) if bound > 1 else (0, 4)
        bound = float(advanced(here, within, clipped, bound=bound, number=rounds).memory[BOUND][0])
    assert rounds == 4


def test_a_lost_round_moves_neither_model_nor_bound(here: Any) -> None:
    after = advanced(here, 0, 0)
    assert same_state(after, State(here.problem.initial, {BOUND: np.array([0.5])}))


@every(("bound", "share"), [(2.0**10, -1e9), (2.0**-10, 1e9), (0.5, -1e9), (0.5, 1e9)])
def test_no_noise_moves_the_bound_by_more_than_e_or_out_of_its_range(
    bound: float, share: float, here: Any
) -> None:
    after = advanced(here, share, 1 - share, bound=bound)
    assert float(after.memory[BOUND][0]) == np.clip(bound * np.exp(np.sign(-share)), *BOUNDS.ends)


def test_an_optimiser_of_the_server_gets_the_step_in_the_models_unit(here: Any) -> None:
    """Momentum is over steps, not over multiples of bounds that differ by round."""
    after = advanced(here, 4, 0, Momentum(beta=0.9), bound=0.5)
    mean = 0.5 * 0.01 / 4
    assert after.broadcast == pytest.approx(here.problem.initial + mean, abs=1e-6)
    assert after.memory["momentum"] == pytest.approx(np.full(len(here.problem.initial), 0.1 * mean))


# Whole runs -----------------------------------------------------------------------------------------


@every("lie", [0.0, np.nan, 1e30])
def test_a_server_that_tells_no_bound_gets_no_update(lie: float, tmp_path: Path) -> None:
    of = adaptive(client_level(rounds=2))
    with told(lie, *range(6)):
        spy, finished = spied(of, tmp_path)
    assert bounds(spy) == [0.5] * 3
    assert np.array_equal(spy.states[-1].broadcast, spy.states[0].broadcast)
    assert all(len(record["abstained"]) >= 6 for record in finished.records)


def test_a_hidden_sum_opens_for_one_bound_alone(tmp_path: Path) -> None:
    """A client that is told another bound signs another sum: it is in none of the others'."""
    of = adaptive(client_level(rounds=2, **PLACEMENTS["shares"]))
    with told(0.01, 0):
        spy, _ = spied(of, tmp_path)
    assert all(0 not in answers.survivors for _, answers in spy.asks)


CORRELATED = {"separation": "2", "min_cohort_size": "2"}
"""Clients rest between two rounds, and by default the noise is then correlated."""
PARTIAL = 'aggregation = "partial"'


def fedcor(more: str = "") -> Study:
    more = f"warm_up = 1\ninterval = 1\n{more}"
    return client_level("fedcor", rounds=4, more=more, non_private='["loss", "size"]')


def options(**own: Any) -> Study:
    of = client_level(**{key: own.pop(key) for key in {*own} & {*CORRELATED, "bands"}})
    arm = of.arms[0]
    return replace(of, arms=(replace(arm, options=replace(arm.options, **own)),))  # type: ignore[type-var]


REFUSED: dict[str, tuple[Study, str, Study]] = {
    "weights by counts": (options(aggregation="full"), PARTIAL, options(aggregation="partial")),
    "draws that are weighted by counts": (client_level("cfcfm"), "Leave it out", client_level()),
    "a random partition": (client_level("fedavg_rp"), "such as fedavg", client_level()),
    "trial updates": (fedcor(), "updates = 0", fedcor("updates = 0")),
    "a part of the model": (client_level("lg_fedavg"), "such as fedavg", client_level()),
    "a compression": (client_level("stc", more="p = 0.1"), "such as fedavg", client_level()),
    "stale models": (options(aggregation="full", stale=True), "stale models", client_level()),
    "correlated noise": (
        options(fraction=0.5, **CORRELATED),
        "Set bands = 1 under .privacy.",
        options(fraction=0.5, **CORRELATED, bands="1"),
    ),
}


@every(("own", "remedy", "mended"), REFUSED.values())
def test_where_no_share_or_no_step_would_follow_it_is_refused(own: Study, remedy: str, mended: Study) -> None:
    with pytest.raises(ConfigError, match=remedy):
        composed(adaptive(own))
    composed(adaptive(mended))
    composed(own)


@every("arm", ARMS)
def test_no_protocol_ignores_it(arm: tuple[str, str]) -> None:
    """Heads, FedLog and FLTrust went on as if it were not there. What a protocol refuses it runs without."""
    fixed = combination((arm, "clear", "none"))
    fixed = replace(fixed, local=replace(fixed.local, update_bound=0.5))
    composed(fixed)
    said, sent = "", list[ValueSpec]()
    try:
        sent = specs_of(composed(adaptive(fixed))[0])
    except ConfigError as error:
        said = str(error)
    told = any("whether the bound clips it" in own.reveals for own in sent)
    assert told or ("`bound_quantile`" in said and "eave it out" in said), (said, sent)


def test_arms_beside_one_that_adapts_may_have_no_bound() -> None:
    """The remedy of an arm that sends no update: the quantile in the arm of updates alone."""
    heads = '[[arm]]\nname = "heads"\nprotocol = "heads"\n'
    arm = '[[arm]]\nname = "a"\nprotocol = "fedavg"\nfraction = 1.0\naggregation = "partial"\n'
    bound, permitted = "batch_size = 48\nupdate_bound = 0.5\n", '["statistic", "update"]'
    shared = text(heads, arm, non_private=permitted)
    of = parse(shared.replace("batch_size = 48\n", f"{bound}bound_quantile = 0.5\n"))
    with pytest.raises(ConfigError, match="in the `local` of those arms alone"):
        compositions(of, world(of))
    own = text(heads, f"{arm}local = {{ bound_quantile = 0.5 }}\n", non_private=permitted)
    of = parse(own.replace("batch_size = 48\n", bound))
    compositions(of, world(of))


def test_running_statistics_have_no_bound_that_adapts() -> None:
    of = adaptive(replace(client_level(), model=replace(client_level().model, kind="adds_cnn", hidden=None)))
    with pytest.raises(ConfigError, match=r'got `update_bound`, which clips.*Set buffers = "local".*norm\.$'):
        composed(of)
    remedy = 'Set buffers = "local".*, and leave `buffers_bound` out'
    with pytest.raises(ConfigError, match=remedy):
        composed(replace(of, local=replace(of.local, buffers_bound=1.0)))
    composed(replace(of, model=replace(of.model, buffers="local")))
    with pytest.raises(ConfigError, match=r"`buffers_bound` under .local., got none\. Leave it out"):
        composed(adaptive(client_level(), buffers_bound=1.0))


def test_a_quantile_needs_a_bound_to_begin_with() -> None:
    with pytest.raises(ValueError, match=r"beside `bound_quantile`.*Set both"):
        replace(study().local, bound_quantile=0.5)
    for outside in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match="bound_quantile in"):
            adaptive(client_level(), outside)


def test_a_plan_says_that_the_bound_moves() -> None:
    of = adaptive(client_level())
    said = "\n".join(lines(of, [forecast(of, of.arms[0], world(of))]))
    assert "in multiples of a bound, and whether the bound clips it" in said


def test_without_noise_it_clips_alone(tmp_path: Path) -> None:
    arm = '[[arm]]\nname = "x"\nprotocol = "fedavg"\nfraction = 1.0\naggregation = "partial"\n'
    of = adaptive(study(arm, non_private='["update"]'), update_bound=0.02)
    assert bounds(spied(of, tmp_path)[0]) == pytest.approx([0.02, 0.02 * np.e, 0.02 * np.exp(1 + 0.5**0.5)])


def test_tables_and_report_have_the_bound_of_each_round(tmp_path: Path) -> None:
    of = adaptive(client_level(rounds=3))
    spy, finished = spied(of, tmp_path)
    moved = bounds(spy)[1:]
    assert [record[BOUND] for record in finished.records] == moved
    shown = published(collect(of, [finished]))
    assert shown.metrics[BOUND].tolist() == moved
    [axes] = {picture.name: picture for picture in figures(of, shown)}["bounds"].figure.axes
    assert axes.lines[0].get_ydata() == pytest.approx(moved)
