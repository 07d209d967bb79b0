"""Parties in separate processes have the models of parties in one, bit for bit; who is killed drops out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.apart import Apart, Own
from support.hidden_studies import FEDAVG, shares_of_noise
from support.hidden_studies import hidden as hidden_study
from support.tiny_study import text

from securefl.accounting.ledger import Ledger
from securefl.algorithm.clients import State, run_round
from securefl.algorithm.queries import Answers, CohortQuery
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.streams import stream
from securefl.core.wire import Header, peek
from securefl.engine.drive import Packet
from securefl.engine.inprocess import InProcess
from securefl.storage.journal import Journal

CLIENTS, ROUNDS = 6, 2
NONCE = bytes(32)
FEDPROF = '[[arm]]\nname = "x"\nprotocol = "fedprof"\nfraction = 0.5\n'
hidden = partial(hidden_study, clients=CLIENTS, rounds=ROUNDS)
STUDIES = {
    "FedAvg, clear": text(FEDAVG, clients=CLIENTS, rounds=ROUNDS),
    "FedAvg, masked": hidden("masked"),
    "FedAvg, ckks": hidden("ckks"),
    "FedAvg, two-server": hidden("two-server"),
    "FedProf, encrypted scores": text(FEDPROF, clients=CLIENTS, rounds=ROUNDS, scores="ckks"),
    "FedLog, shares of noise": shares_of_noise(CLIENTS),
}


def played(
    own: Own,
    query: Callable[[CohortQuery, Header], Answers],
    between: Callable[[int], Any] = lambda number: None,
) -> list[State]:
    """The state after every round."""
    names = [client_name(k) for k in range(CLIENTS)]
    session, state, states = own.plan.session(names, NONCE), own.algorithm.start(), []
    for number in range(1, own.study.study.rounds + 1):
        between(number)
        rng = stream(own.world.seed, "selection", number)
        state = run_round(
            own.algorithm,
            state,
            own.world.population(),
            number,
            rng,
            lambda question, stage, number=number: query(question, Header(session, number, 0, stage)),
        ).state
        states.append(state)
    return states


def together(own: Own, folder: Path) -> list[State]:
    """The same parties in this process."""
    folder.mkdir()
    clients = [own.client(k, folder) for k in range(CLIENTS)]
    engine = InProcess(own.server(folder), clients, own.key_holder(folder))
    return played(own, lambda query, header: engine.query(query, header)[0])


def asked_apart(own: Own, apart: Apart, folder: Path) -> Callable[[CohortQuery, Header], Answers]:
    server = own.server(folder)
    apart.enter(own.plan.session([client_name(k) for k in range(CLIENTS)], NONCE), server)
    return lambda query, header: server.query(query, header, apart)


def everybody(name: str) -> list[str]:
    holder = [KEY_HOLDER] if "ckks" in name or "two" in name or "scores" in name else []
    return [*(client_name(k) for k in range(CLIENTS)), *holder]


QUICK = "FedAvg, masked"
"""The others stay in the fast suite as parties behind frames, in one process (`test_flower_studies`)."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == QUICK else pytest.mark.slow) for name in STUDIES]
)
def test_the_models_are_those_of_one_process_bit_for_bit(name: str, tmp_path: Path) -> None:
    said = STUDIES[name]
    own, home = Own.of(said), tmp_path / "apart"
    home.mkdir()
    one = together(own, tmp_path / "one")
    with Apart(said, home, everybody(name)) as apart:
        several = played(own, asked_apart(own, apart, home))
        assert apart.refused == {}
    assert not np.array_equal(one[0].broadcast, own.algorithm.start().broadcast)
    for a, b in zip(one, several, strict=True):
        assert np.array_equal(a.broadcast, b.broadcast)


def rows(folder: Path, own: Own, client: int) -> list[tuple[int, int]]:
    """(round, attempt) of each release of a client's ledger."""
    with Ledger(folder / f"{client_name(client)}.ledger", own.plan.terms()) as ledger:
        return [(row[2], row[4]) for row in ledger.rows()]


@pytest.mark.parametrize(
    "act",
    [pytest.param("begin", marks=pytest.mark.slow), "mask", pytest.param("sign", marks=pytest.mark.slow)],
)
def test_a_killed_client_drops_out_and_is_back_in_the_next_round(act: str, tmp_path: Path) -> None:
    """SIGKILL right after an act is on record: nothing of it was said, and the round goes on without it."""
    said = hidden("masked")
    own, victim = Own.of(said), client_name(2)
    survivors: list[tuple[int, ...]] = []
    with Apart(said, tmp_path, everybody(""), dies={victim: act}) as apart:
        query = asked_apart(own, apart, tmp_path)

        def noted(question: CohortQuery, header: Header) -> Answers:
            answers = query(question, header)
            survivors.append(answers.survivors)
            return answers

        def between(number: int) -> None:
            if number == 2:
                assert not apart.peers[victim].alive
                apart.restart(victim)

        played(own, noted, between)
    everyone, others = tuple(range(CLIENTS)), (0, 1, 3, 4, 5)
    # two sums in round 1; who signed has given its input to the first, and a quorum of the others opens it
    assert survivors == [everyone if act == "sign" else others, others, everyone]
    assert rows(tmp_path, own, 2) == ([(1, 1)] if act == "sign" else []) + [(2, 1)]


def test_a_restarted_client_refuses_what_its_journal_forbids(tmp_path: Path) -> None:
    """A server that calls it into the attempt it has signed in, with another cohort, gets nothing of it."""
    said = hidden("masked")
    own, victim = Own.of(said), client_name(2)
    heard: list[Packet] = []
    with Apart(said, tmp_path, everybody("")) as apart:
        query = asked_apart(own, apart, tmp_path)
        names = [client_name(k) for k in range(CLIENTS)]
        place = Header(own.plan.session(names, NONCE), 1, 0, 0)
        model = own.algorithm.start().broadcast
        questions: list[CohortQuery] = []

        def first(question: CohortQuery, header: Header) -> Answers:
            questions.append(question)
            return query(question, header)

        played(replace(own, study=_one_round(own)), first)
        apart.peers[victim].end()
        apart.restart(victim)
        apart.watch = lambda parcel: heard.append(parcel) or parcel if parcel.sender == victim else parcel
        smaller = replace(questions[0], cohort=(0, 1, 2, 3, 4), weights=None, broadcast=model + 1)
        answers = query(smaller, place)  # the same round again: another cohort, and another model
    assert answers.survivors == ()
    # it answered the order, which holds no number, and nothing of the attempt
    assert [peek(parcel.data, victim).attempt for parcel in heard] == [0]
    assert rows(tmp_path, own, 2) == [(1, 1), (1, 1)]


def _one_round(own: Own) -> Any:
    return replace(own.study, study=replace(own.study.study, rounds=1))


@pytest.mark.parametrize("how", [pytest.param("ckks", marks=pytest.mark.slow), "two-server"])
def test_a_key_holder_that_is_killed_between_record_and_answer_says_the_same(
    how: str, tmp_path: Path
) -> None:
    said = hidden(how)
    own, home = Own.of(said), tmp_path / "apart"
    home.mkdir()
    one = together(own, tmp_path / "one")
    replies: list[bytes] = []

    def watch(parcel: Packet) -> Packet:
        if parcel.sender == KEY_HOLDER:
            replies.append(parcel.data)
        return parcel

    with Apart(said, home, everybody(how), dies={KEY_HOLDER: "open"}, watch=watch) as apart:
        several = played(own, asked_apart(own, apart, home))
    assert [peek(reply, KEY_HOLDER).round for reply in replies] == [1, 1, 2]
    for a, b in zip(one, several, strict=True):
        assert np.array_equal(a.broadcast, b.broadcast)
    with Journal(home / "key-holder.journal") as journal:
        assert journal.newest(own.plan.session([client_name(k) for k in range(CLIENTS)], NONCE)) == 2


def test_the_server_hears_no_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why a client without records sends what it sends, its own machine alone knows."""
    own = Own.of(hidden("masked"))
    records = [*own.world.records[:5], (own.world.records[5][0][:0], own.world.records[5][1][:0])]
    here = replace(own, world=replace(own.world, records=records))
    clients = [here.client(k, tmp_path) for k in range(CLIENTS)]
    server, heard, told = here.server(tmp_path), list[set[str]](), list[set[str]]()
    engine, query = InProcess(server, clients), server.query

    def asked(*given: Any) -> Answers:
        answers = query(*given)
        heard.append({*server.log.abstained, *server.log.blank})
        return answers

    def noted(question: CohortQuery, header: Header) -> Answers:
        answers, log = engine.query(question, header)
        told.append({*log.abstained, *log.blank})
        return answers

    monkeypatch.setattr(server, "query", asked)
    played(here, noted)
    assert set().union(*heard) <= {SERVER}
    # Its number of records is public here, so that one is answered as it is.
    assert all("client-0005" in one for one in told[1:])
