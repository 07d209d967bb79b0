"""FLTrust: trust by cosine, whole weights, unit updates, and what poisoned clients do to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import tiny_he
from support.every import every
from support.private_studies import DPSGD
from support.tiny_he import pad_holder, pad_request, pad_score, pad_server
from support.tiny_problem import client_context
from support.tiny_study import run, spied, study, text, world

from securefl.algorithm.clients import ClientContext, ClientFunction, Population
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import CohortQuery, PerClient, Schedule, Value, ValueSpec
from securefl.core.errors import ConfigError, DataError, RemoteProtocolError
from securefl.core.linear import Floats, LinearQuery, Range, spread_of
from securefl.core.signing import AgreementKey, SigningKey
from securefl.engine.aggregator import SecureAggregator
from securefl.engine.exchange.server import cohort_of
from securefl.linear import pads, words
from securefl.linear.pad_terms import PadTerms
from securefl.protocols import fltrust
from securefl.protocols.client_state import digest_of
from securefl.protocols.fltrust import (
    Direction,
    FLTrust,
    Trusting,
    UnitUpdate,
    cosine_bounds,
    direction,
    trust_weights,
)
from securefl.protocols.parts import ServerContext
from securefl.study.config import parse
from securefl.study.packaged import packaged
from securefl.training.vector import to_vector

ARM = '[[arm]]\nname = "x"\nprotocol = "fltrust"\nfraction = 1.0\n'
HIDDEN = 'non_private = ["update", "direction"]'


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=1, max_size=20))
def test_a_direction_has_norm_one_or_is_nothing(entries: list[float]) -> None:
    update = np.array(entries)
    found = direction(update)
    norm = float(np.linalg.norm(found))
    if np.isfinite(update).all() and update.any():
        assert norm == pytest.approx(1, abs=1e-9)
        cosine_bounds(len(update)).require_hidden(found)
    else:
        assert norm == 0


@given(
    cosines=st.dictionaries(st.integers(0, 40), st.floats(-1, 1), max_size=30),
    whole=st.integers(1, 200),
)
def test_weights_are_whole_and_add_up_or_are_equal(cosines: dict[int, float], whole: int) -> None:
    found = trust_weights(cosines, whole)
    assert set(found) == {k for k, cosine in cosines.items() if cosine > 0}, "trust 0 is not asked further"
    if len(found) <= whole <= 16 * len(found):
        assert sum(found.values()) == whole
        assert all(1 <= weight <= 16 for weight in found.values())
        for k in found:
            for other in found:
                assert found[k] >= found[other] - 1 or cosines[k] < cosines[other]
    else:
        assert set(found.values()) <= {1}


def test_weights_follow_the_cosine() -> None:
    found = trust_weights({0: 0.9, 1: 0.3, 2: 0.0, 3: -0.9, 4: 0.3}, whole=20)
    assert found == {0: 12, 1: 4, 4: 4}


def test_the_server_s_step_is_not_tested_on_its_own_records() -> None:
    of = study(ARM, rounds=1)
    problem = world(of).problem
    algorithm: Any = of.arms[0].options.build(problem)
    state = algorithm.start()
    left = len(problem.server_x) - 100
    assert algorithm.evaluate(state, ()).accuracy * left == pytest.approx(
        round(algorithm.evaluate(state, ()).accuracy * left)
    )
    with pytest.raises(ConfigError, match="records at the server"):
        FLTrust(fraction=1.0, root=len(problem.server_x)).build(problem)


@pytest.mark.parametrize(
    ("word", "harmless"), [("reversed", True), ("scaled", True), ("two_faced", False), ("oversized", False)]
)
def test_what_a_poisoned_client_moves(word: str, harmless: bool, tmp_path: Path) -> None:
    """A reversed or scaled update is out-trusted or has its norm taken; the two others are its limits."""
    of = partial(study, ARM, rounds=4, clients=9, scores="pads")
    honest = run(of(), tmp_path / "honest")
    poisoned = run(of(extra=f"[corruption]\n{word} = 0.34\n"), tmp_path / word)
    assert not any(record["abstained"] for record in poisoned.records)
    lost = honest.records[-1]["accuracy"] - poisoned.records[-1]["accuracy"]
    assert (lost < 0.1) == harmless


# One training a round --------------------------------------------------------------------------------


def test_the_sum_has_the_vectors_that_were_scored_and_no_client_trains_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under private training the second one drew other noise, and was charged only of those it trusted."""
    seen: list[tuple[int, int]] = []
    real = fltrust._direction

    def counted(context: ClientContext, trained: Any) -> Floats:
        seen.append((context.round, context.client))
        return real(context, trained)

    monkeypatch.setattr(fltrust, "_direction", counted)
    spy, _ = spied(study(ARM, rounds=2, clients=4), tmp_path)
    assert sorted(seen) == [(number, client) for number in (1, 2) for client in range(4)]
    assert len(spy.asks) == 4, "a sum in each round"


def asked_alone(kept: Mapping[str, Any], number: int = 2) -> Value:
    problem = world(study(ARM, rounds=1, clients=4)).problem
    context = client_context(
        problem.server_x, problem.server_y, round=number, broadcast=problem.initial, kept=kept
    )
    return UnitUpdate(problem, 16).compute(context)


def test_a_sum_of_another_round_s_directions_is_refused() -> None:
    """A server that skips the cosines, or comes back to another round, gets no training for nothing."""
    unit, model = np.array([3, -4]), world(study(ARM, rounds=1, clients=4)).problem.initial
    mark = {"session": np.zeros(0, np.uint8), "round": np.array([2]), "first": digest_of(model)}
    assert asked_alone({**mark, "unit": unit}).integers is unit
    for other in (
        {"round": np.array([1])},
        {"first": digest_of(model + 1)},
        {"session": np.ones(1, np.uint8)},
    ):
        with pytest.raises(DataError, match="of round 2"):
            asked_alone({**mark, "unit": unit, **other})
    with pytest.raises(DataError, match="of round 2"):
        asked_alone({})


@pytest.mark.parametrize("records", [0, 1, 99, 100, 101])
def test_under_a_claim_no_number_of_the_server_s_records_is_refused(records: int) -> None:
    claiming = text(ARM, rounds=1, non_private="[]", extra=DPSGD)
    of = parse(claiming.replace('adjacency = "replace-one"', 'adjacency = "add-remove"'))
    problem = world(of).problem
    few = replace(problem, server_x=problem.server_x[:records], server_y=problem.server_y[:records])
    algorithm: Any = of.arms[0].options.build(few)
    state = algorithm.start()
    population = Population(clients=4, seconds=np.ones(4))
    here = ServerContext(population=population, number=1, rng=np.random.default_rng(0), contributions=())
    step = algorithm.part._own_step(state.broadcast, here)
    assert step.any() == (records > 0)
    assert np.isnan(algorithm.evaluate(state, ()).accuracy) == (records <= 100)


# Bad input -------------------------------------------------------------------------------------------

SPOILT: dict[int, Any] = {
    1: lambda start: start.astype(np.float64),  # an update of norm 0
    2: lambda start: np.full(len(start), np.inf),
    3: lambda start: np.where(np.arange(len(start)) == 5, np.nan, start),
}
EVERY = ("clear", "ckks", "pads")


@pytest.mark.parametrize("scores", EVERY)
def test_updates_of_norm_zero_and_without_end_have_no_trust_and_cost_nobody_else(
    scores: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, real = study(ARM, rounds=1, clients=6, scores=scores), fltrust._direction
    honest, _ = spied(of, tmp_path / "honest")

    def spoilt(context: ClientContext, trained: Any) -> Floats:
        spoil = SPOILT.get(context.client)
        return real(context, trained if spoil is None else spoil(context.broadcast))

    monkeypatch.setattr(fltrust, "_direction", spoilt)
    spy, _ = spied(of, tmp_path / "spoilt")
    (_, found), (summed, totals) = spy.asks
    cosines, before = found.per_client["direction"], honest.asks[0][1].per_client["direction"]
    for k in range(6):
        assert cosines[k] == pytest.approx(0 if k in SPOILT else before[k], abs=1e-3)
    assert set(summed.cohort) == {0, 4, 5}, "no noise of an opening makes trust"
    assert np.isfinite(totals.totals["update"].value).all()


def test_a_million_entries_pass_every_message(tmp_path: Path) -> None:
    length, rng = 10**6, np.random.default_rng(0)
    bounds, g = cosine_bounds(length), direction(rng.normal(size=length))
    spec = ValueSpec(
        name="direction",
        reduction="none",
        reveals="it",
        reveals_encrypted="a cosine",
        schedule=Schedule(max_releases=1),
    )
    plan = Plan(scores="pads", delta=1e-5, max_rounds=1, non_private=("direction",))
    vectors = [g, -g]
    own = ClientFunction(spec, lambda context: Value(hidden=vectors[context.client]), bounds)
    records = [(np.zeros((1, 1)), np.zeros(1))] * 2
    with SecureAggregator(plan, [own], records, ledger=tmp_path / "ledger.sqlite") as aggregator:
        asked = CohortQuery(
            cohort=(0, 1),
            broadcast=np.zeros(0, np.float32),
            per_client=(PerClient(spec, LinearQuery(bounds, g)),),
        )
        found = aggregator.query(asked).per_client["direction"]
    assert found == pytest.approx({0: 1.0, 1: -1.0}, abs=1e-3)


# Limits, shown as they are ---------------------------------------------------------------------------


def read(own: Floats, query: LinearQuery) -> float:
    """The number that a server gets for these weights from a client of this direction, under pads."""
    signing, agreement = SigningKey.generate(), AgreementKey.generate()
    terms = PadTerms(bounds=query.bounds, context=b"")
    server = pad_server(terms, 0, "direction", signing, query)
    sent = pads.mask(own, terms, "direction", server.declared.told, agreement.public)
    holder = pad_holder(agreement, terms, ("direction",), 1, signing.public)
    return float(pad_score(server, sent, holder.open(pad_request(server, [sent]))).value)


def nearly_one(share: float, length: int) -> Floats:
    """A step with this share of its norm in one entry, and the rest alike in all others."""
    found = np.full(length, np.sqrt((1 - share**2) / (length - 1)))
    found[7] = share
    return found


@pytest.mark.parametrize("share", [1.0, 0.95, 0.75])
def test_a_step_that_is_nearly_one_entry_is_refused_by_server_and_key_holder(share: float) -> None:
    own, bounds = direction(np.random.default_rng(1).normal(size=400)), cosine_bounds(400)
    lie = nearly_one(share, 400)
    with pytest.raises(ConfigError, match="one entry"):
        read(own, LinearQuery(bounds, lie))
    signing, agreement = SigningKey.generate(), AgreementKey.generate()
    terms = PadTerms(bounds=bounds, context=b"")
    server = pad_server(terms, 0, "direction", signing, LinearQuery(bounds, direction(np.ones(400))))
    # A server that breaks the protocol asks all the same.
    tiny_he.lie(server, words.from_floats(np.rint(lie * terms.weight_scale), terms.word_bits))
    sent = pads.mask(own, terms, "direction", server.declared.told, agreement.public)
    holder = pad_holder(agreement, terms, ("direction",), 1, signing.public)
    with pytest.raises(RemoteProtocolError, match="one entry"):
        holder.open(pad_request(server, [sent]))


def test_a_client_of_these_bounds_takes_no_call_without_them() -> None:
    """A server that leaves the bound out has other terms, so its call and the client's pads do not fit."""
    part = Direction(world(study(ARM, rounds=1, clients=3)).problem)
    own = part.linear_bounds(np.zeros(0, np.float32), {})
    without = replace(own, spread=np.inf)
    assert own == cosine_bounds(own.hidden_length) != without
    assert PadTerms(bounds=own, context=b"").place != PadTerms(bounds=without, context=b"").place


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_few_entries_can_always_be_asked(length: int) -> None:
    own = np.eye(length)[0]
    assert read(own, LinearQuery(cosine_bounds(length), own)) == pytest.approx(1, abs=1e-3)


@every("scores", EVERY)
@every(
    "step",
    [
        np.zeros,
        partial(np.full, fill_value=np.inf),
        partial(np.full, fill_value=np.nan),
        partial(nearly_one, 0.9),
    ],
)
def test_a_server_whose_own_step_is_nothing_or_nearly_one_entry_asks_nobody(
    scores: str, step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cosines would be 0, or its clients would refuse: nobody is charged."""
    monkeypatch.setattr(Trusting, "_own_step", lambda self, broadcast, *_: step(len(broadcast)))
    spy, _ = spied(study(ARM, rounds=1, clients=3, scores=scores), tmp_path)
    assert spy.asks == []
    assert np.array_equal(spy.states[-1].broadcast, spy.states[0].broadcast)


def test_honest_steps_of_the_packaged_study_keep_the_bound_with_room(tmp_path: Path) -> None:
    written = packaged()["fltrust_poisoned"].split("[[sweep")[0]
    of = parse(written.replace("rounds = 20", "rounds = 3").replace("seeds = [1, 2, 3]", "seeds = [1]"))
    spy, _ = spied(replace(of, arms=of.arms[1:]), tmp_path)
    asked = [query.per_client[0].query for query, _ in spy.asks if query.per_client]
    assert len(asked) == 3
    assert all(2 * spread_of(query.hidden) < query.bounds.spread for query in asked)


def test_a_cap_on_each_entry_of_the_server_s_step_would_not_stop_it(tmp_path: Path) -> None:
    """Why there is no range: a lie spends the rest of its norm where the server knows that no client moves.

    The server broadcasts units that never fire, so their weights have no gradient at any client.
    """
    of = study(ARM, rounds=1, clients=4)
    spy, _ = spied(of, tmp_path)
    cap = float(np.abs(spy.asks[0][0].per_client[0].query.hidden).max())
    assert 0.1 < cap < 0.5, "a smaller cap would bend this honest step"
    assert cap * np.sqrt(len(spy.asks[0][0].broadcast)) < cosine_bounds(len(spy.asks[0][0].broadcast)).spread
    here = world(of)
    module = here.problem.module(here.problem.initial)
    dict(module.named_parameters())[f"{here.problem.layer}.bias"].data[:4] = -1e6
    client = Direction(here.problem).compute(
        client_context(here.records[0][0], here.records[0][1], broadcast=to_vector(module))
    )
    (still,) = np.nonzero(client.hidden[: 4 * 64] == 0)
    assert len(still) == 4 * 64, "the weights of the units that never fire, as the server expects"
    lie, at = np.zeros(len(client.hidden)), int(np.argmax(np.abs(client.hidden)))
    lie[at], lie[still] = cap, np.sqrt((1 - cap**2) / len(still))
    assert np.linalg.norm(lie) == pytest.approx(1)
    assert np.abs(lie).max() <= cap
    capped = replace(cosine_bounds(len(lie)), weights=(Range(len(lie), -cap, cap),))
    assert read(client.hidden, LinearQuery(capped, lie)) / cap == pytest.approx(client.hidden[at], abs=1e-6)


def test_the_clients_of_the_sum_are_told_the_trust_of_each(tmp_path: Path) -> None:
    """All of them check the weights, so all see them, and who has none."""
    spy, _ = spied(study(ARM, rounds=1, clients=6, extra="[corruption]\nreversed = 0.34\n"), tmp_path)
    (_, scores), (summed, _) = spy.asks
    told = cohort_of(summed)
    trusted = trust_weights(scores.per_client["direction"], whole=24)
    assert told.draws_of == trusted
    assert len(trusted) == 4
