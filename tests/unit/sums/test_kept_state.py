"""A server that lies chooses what clients keep, and then asks all of them for one sum: it reads nobody.

Each attack is a sequence of well-formed queries, of which each alone would be honest. With the rule of
`mechanisms.agreed` the last one opens nothing. Without it the victim's value comes out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from support.every import every
from support.lying_queries import (
    EVERYBODY,
    FIRST_LAYER,
    OTHERS,
    VICTIM,
    Parties,
    Read,
    Vector,
    dead,
    lg_bodies,
    problem,
    unequal,
)

from securefl.algorithm.queries import Answers, ByCount, PerClient
from securefl.core.linear import LinearQuery
from securefl.engine.exchange import client
from securefl.engine.network import Network
from securefl.engine.party import key_holder
from securefl.protocols import fltrust
from securefl.protocols.adds import contributions as adds
from securefl.protocols.adds.part import Adds
from securefl.protocols.client_state import digest_of
from securefl.protocols.compression import download, moved
from securefl.protocols.fedavg import FedAvg
from securefl.protocols.stc import STC


def newest(parties: Parties, asked: Answers, where: Any = FIRST_LAYER) -> Read:
    """The total stands for what the victim added last."""
    return asked, lambda: (parties.total(asked)[where], parties.own[VICTIM][-1][where])


def stc_model(how: str) -> Read:
    """The others keep a dead model as version 1. Then one change brings the victim alone a live one."""
    parties = Parties(STC(fraction=1.0, p=0.2), how)
    start = parties.algorithm.start()
    size = len(start.broadcast)
    parties.ask(
        1, OTHERS, np.concatenate([np.array([1, 0, 1], np.float32), dead(start.broadcast)]), size=size
    )
    change = np.zeros(size, np.float32)
    change[-1] = 0.01
    asked = parties.ask(2, EVERYBODY, download(moved(start, change, np.zeros(size)), EVERYBODY), size=size)
    return newest(parties, asked)


def stc_residual(how: str) -> Read:
    """A loud model fills the others' residuals in the last layer. Then all get one honest model."""
    parties = Parties(STC(fraction=1.0, p=0.05), how)
    start = parties.algorithm.start()
    size, loud = len(start.broadcast), start.broadcast.copy()
    loud[: 64 * 8 + 8] = 50.0
    loud[64 * 8 + 8 :] *= 1e-3
    for number, model, cohort in ((1, loud, OTHERS), (2, start.broadcast, EVERYBODY)):
        sent = np.concatenate([np.array([1, 0, number], np.float32), model])
        asked = parties.ask(number, cohort, sent, size=size)
    there = np.flatnonzero(parties.own[VICTIM][-1][FIRST_LAYER]) if asked.survivors else np.zeros(0, int)
    return newest(parties, asked, there)


def stale_models(how: str) -> Read:
    """The victim's model stands in the first sum alone, those of the others in both."""
    terms = {"public_num_examples": 100, "min_records": 6, "max_records": 600, "draws": 6}
    parties = Parties(FedAvg(fraction=1.0, aggregation="full", stale=True), how, **terms)
    start, by = parties.algorithm.start().broadcast, {"weights": ByCount(600)}
    first = parties.ask(1, EVERYBODY, start, **by)
    second = parties.ask(2, OTHERS, dead(start), **by)

    def read() -> tuple[Vector, Vector]:
        both = 6 * (first.totals["update"].value + second.totals["update"].value)
        own = both - 5 * (dead(start).astype(np.float64) - start)
        return own[FIRST_LAYER], parties.own[VICTIM][0][FIRST_LAYER]

    return second, read


ADDS = Adds(fraction=1.0, importance="activation", rate=0.02, optimizer="sgd")


def maps(parties: Parties, number: int = 1) -> Answers:
    groups = parties.algorithm.averaged.supernet.groups
    return parties.ask(number, EVERYBODY, parties.algorithm.start().broadcast, size=groups)


def updates(
    parties: Parties, number: int = 1, cohort: Any = EVERYBODY, first: Any = None, **more: Any
) -> Answers:
    """The query after that for maps. first: the digest of the model of the maps, in place of the true one."""
    start, net = parties.algorithm.start().broadcast, parties.algorithm.averaged.supernet
    everything = np.ones(net.groups, np.bool_)
    public = {adds.MASK: adds.packed(everything), adds.FIRST: digest_of(start) if first is None else first}
    size = int(net.entries(everything).sum())
    return parties.ask(number, cohort, start[:0], 1, 2, size=size, public=public, **more)


def adds_stages(how: str) -> Read:
    """The maps come from unequal models, so their sum may stay shut. The update's query is equal for all."""
    parties = Parties(ADDS, how)
    with unequal(dict.fromkeys(OTHERS, dead(parties.algorithm.start().broadcast))):
        maps(parties)
    return newest(parties, updates(parties))


def fltrust_stages(how: str) -> Read:
    """The directions come from unequal models, and are kept for one sum."""
    parties = Parties(fltrust.FLTrust(fraction=1.0), how, draws=6)
    start = parties.algorithm.start().broadcast
    point = np.zeros(len(start))
    point[0] = 1.0
    scored = PerClient(parties.specs[0], LinearQuery(fltrust.cosine_bounds(len(start)), point))
    with unequal(dict.fromkeys(OTHERS, dead(start))):
        parties.ask(1, EVERYBODY, start, sums=(), per_client=(scored,), weights=None)
    asked = parties.ask(1, EVERYBODY, start, 1, 2)
    return newest(parties, asked)


def stale_newcomer(how: str) -> Read:
    """An honest server asks the victim in its second round. What others add is two steps' difference."""
    terms = {"public_num_examples": 100, "min_records": 6, "max_records": 600, "draws": 6}
    small = replace(problem(), local=replace(problem().local, learning_rate=0.02))
    options, by = FedAvg(fraction=1.0, aggregation="full", stale=True), {"weights": ByCount(600)}
    parties = Parties(options, how, of=small, secagg="semi-honest", **terms)
    start = parties.algorithm.start().broadcast
    first = parties.ask(1, OTHERS, start, **by)
    if not first.totals:
        return first, lambda: (start, start)
    model = (start + first.totals["update"].value).astype(np.float32)
    asked, moved = parties.ask(2, EVERYBODY, model, **by), model.astype(np.float64) - start
    return asked, lambda: (
        (6 * (asked.totals["update"].value - moved))[FIRST_LAYER],
        (parties.own[VICTIM][0] - moved)[FIRST_LAYER],
    )


ATTACKS = {own.__name__: own for own in (stc_model, stc_residual, lg_bodies, stale_models)}
STAGES = {own.__name__: own for own in (adds_stages, fltrust_stages)}
ways = pytest.mark.parametrize("how", ["masked", "two-server"])


@ways
@pytest.mark.parametrize("name", [*ATTACKS, *STAGES, "stale_newcomer"])
def test_nothing_opens_that_reads_state_of_the_servers_choice(name: str, how: str) -> None:
    asked, _ = (ATTACKS | STAGES | {"stale_newcomer": stale_newcomer})[name](how)
    assert asked.survivors == ()
    assert not asked.totals


@every("name", ATTACKS)
def test_without_the_rule_the_victim_is_read(name: str) -> None:
    with mock.patch.object(client, "require_agreed"), mock.patch.object(key_holder, "require_agreed"):
        require_read(*ATTACKS[name]("two-server"))


@every("name", STAGES)
def test_without_the_digest_the_victim_is_read(name: str) -> None:
    with mock.patch.object(adds if name == "adds_stages" else fltrust, "require_made_in"):
        require_read(*STAGES[name]("two-server"))


def require_read(_: Answers, read: Any) -> None:
    found, own = read()
    assert np.abs(own).max() > 1e-4
    assert np.abs(found - own).max() < 0.01 * np.abs(own).max()


def test_a_server_that_follows_reads_a_newcomer_of_stale_models() -> None:
    """In a sum of six updates, a guess of one errs by about 0.9 of its size."""
    with mock.patch.object(client, "require_agreed"), mock.patch.object(key_holder, "require_agreed"):
        _, read = stale_newcomer("masked")
    found, own = read()
    assert np.linalg.norm(found - own) < 0.25 * np.linalg.norm(own)


def test_state_of_another_session_serves_no_query() -> None:
    """Else the server asks for one update in two sums of two sessions, over two cohorts."""
    parties = Parties(ADDS, "masked")
    assert maps(parties).survivors == EVERYBODY
    assert updates(parties, cohort=OTHERS, session=bytes([1] * 32)).survivors == ()


NOBODYS = {
    "of no model": np.arange(8.0),
    "with no number": np.full(8, np.nan),
    "above 32 bits": np.full(8, 2.0**40),
    "cut": digest_of(np.zeros(1, np.float32))[:7],
    "empty": np.zeros(0),
}


@every("which", NOBODYS)
def test_a_digest_of_a_model_that_nobody_can_compute_opens_nothing(which: str) -> None:
    """All clients abstain, and the next round is as if it had not been asked."""
    parties = Parties(ADDS, "masked")
    answered = []
    for number, first in ((1, NOBODYS[which]), (2, None)):
        assert maps(parties, number).survivors == EVERYBODY
        answered.append(updates(parties, number, first=first).survivors)
    assert answered == [(), EVERYBODY]


@every("lost", [True, False])
def test_nothing_is_kept_of_a_masked_sum_that_did_not_open(lost: bool) -> None:
    """Masked vectors are lost, so clients computed their values, and nobody answers to the end."""
    parties = Parties(ADDS, "masked")
    net = Network(tamper=lambda sender, to, data: b"" if lost and b"masked-input" in data else data)
    query = parties.engine.query
    with mock.patch.object(parties.engine, "query", lambda asked, at: query(asked, at, net)):
        answers = maps(parties)
    assert parties.own[VICTIM], "it computed its map"
    assert bool(answers.survivors) != lost
    assert set(parties.engine.kept) == set(() if lost else EVERYBODY)
