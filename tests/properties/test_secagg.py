"""Aggregation over an unreliable network: the exact sum over the stated survivors, or a stated abort."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.tiny_secagg import TERMS, Host, aggregate, agreement, assert_exact, client, header, journal

from securefl.accounting.ledger import Ledger
from securefl.core.messages import client_name
from securefl.engine.drive import Driver
from securefl.engine.network import Faults, Network
from securefl.secagg import Aborted, Server, Summed

PHASES = {"advertise", "share", "mask", "consistency", "unmask"}

FAULTS = st.builds(
    Faults,
    reorder=st.booleans(),
    delay=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    duplicate=st.sampled_from([0.0, 0.5, 1.0]),
    dropout=st.sampled_from([0.0, 0.02, 0.1, 1.0]),
    patience=st.integers(1, 8),
)


def test_a_bad_network_gives_the_exact_sum_or_a_stated_abort() -> None:
    """And often enough each of them."""
    ended: Counter[type] = Counter()

    @given(FAULTS, st.integers(2, 8), st.sampled_from(["active", "semi-honest"]), st.integers(0, 2**20))
    @settings(max_examples=80, database=None)
    def either(faults: Faults, clients: int, mode: Any, seed: int) -> None:
        agreed = agreement(clients, corrupt=0.0, dropout=0.4, mode=mode)
        outcome = aggregate(agreed, faults=faults, seed=seed)
        assert not outcome.traffic.rejected_from
        ended[type(outcome.server)] += 1
        match outcome.server:
            case Summed(survivors=survivors):
                assert len(survivors) >= agreed.parameters.least_survivors
                assert_exact(agreed, outcome.server)
            case Aborted(phase=phase, reason=reason, culprit=culprit):
                assert phase in PHASES
                assert reason
                assert culprit is None

    either()
    assert min(ended[Summed], ended[Aborted]) >= 10, ended


@given(st.integers(0, 2**20), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(["active", "semi-honest"]))
@settings(max_examples=20)
def test_disorder_and_doubles_alone_lose_nobody(seed: int, duplicate: float, mode: Any) -> None:
    agreed = agreement(5, mode=mode)
    faults = Faults(reorder=True, delay=0.5, duplicate=duplicate, patience=40)
    outcome = aggregate(
        agreed, faults=faults, seed=seed, machines={"server": Server(agreement=agreed, patience=100)}
    )
    assert_exact(agreed, outcome.server)
    assert len(outcome.server.survivors) == 5  # type: ignore[union-attr]  # asserted above
    assert not outcome.traffic.rejected_from


@given(st.sets(st.integers(0, 9), max_size=3), st.sets(st.integers(0, 9), max_size=3), st.integers(0, 99))
@settings(max_examples=20)
def test_whoever_never_speaks_or_abstains_is_not_in_the_sum(
    silent: set[int], abstaining: set[int], seed: int
) -> None:
    agreed = agreement(10, corrupt=0.1, dropout=0.4)
    outcome = aggregate(
        agreed,
        machines={client_name(number): None for number in silent},
        abstaining=frozenset(map(client_name, abstaining)),
        seed=seed,
    )
    alive = set(range(10)) - silent - abstaining
    if len(alive) < agreed.parameters.least_survivors:
        assert isinstance(outcome.server, Aborted)
    else:
        assert_exact(agreed, outcome.server)
        assert set(outcome.server.survivors) == set(map(client_name, alive))  # type: ignore[union-attr]


@given(st.integers(0, 9), st.integers(0, 8 * 5000), st.integers(0, 8))
@settings(max_examples=30)
def test_flipped_bits_of_one_client_cost_nobody_else(victim: int, bit: int, message: int) -> None:
    agreed = agreement(10, corrupt=0.1, dropout=0.3)
    sent = 0

    def tamper(sender: str, to: str, data: bytes) -> bytes:
        nonlocal sent
        if sender != client_name(victim):
            return data
        sent += 1
        if sent - 1 != message:
            return data
        at = bit % (8 * len(data))
        return data[: at // 8] + bytes([data[at // 8] ^ (1 << at % 8)]) + data[at // 8 + 1 :]

    outcome = aggregate(agreed, tamper=tamper)
    assert set(outcome.traffic.rejected_from) <= {client_name(victim)}
    match outcome.server:
        case Aborted(culprit=culprit):
            assert culprit == client_name(victim)
        case Summed(survivors=survivors):
            assert set(survivors) >= {client_name(k) for k in range(10) if k != victim}
            if client_name(victim) in survivors and message == 2:
                return  # its vector may be another one than it meant: nobody can see that under masks
            assert_exact(agreed, outcome.server)


def test_a_sparse_graph_sums_exactly() -> None:
    agreed = agreement(60, corrupt=0.05, dropout=0.1)
    assert not agreed.parameters.complete
    gone = {client_name(number): None for number in (3, 17, 41)}
    outcome = aggregate(agreed, machines=gone, abstaining=frozenset({client_name(5), client_name(59)}))
    assert_exact(agreed, outcome.server)
    assert len(outcome.server.survivors) == 55  # type: ignore[union-attr]


@given(st.integers(0, 2**20), st.sampled_from(["active", "semi-honest"]))
@settings(max_examples=20)
def test_stragglers_of_one_attempt_change_nothing_in_the_next(seed: int, mode: Any) -> None:
    """One engine for two attempts: it hands the late and doubled parcels of the first to the second.

    The questions are put anew in the second: whoever signed in the first enters no other attempt at them.
    """
    first = agreement(5, mode=mode, at=header(1, 1))
    anew = tuple(replace(vector, again=1) for vector in first.vectors)
    second = replace(first, header=header(1, 2), vectors=anew)
    with Ledger(None, TERMS) as ledger:
        host = Host(first, ledger)
        faults = Faults(reorder=True, delay=0.6, duplicate=0.6, patience=6)
        network = Network(faults, rng=np.random.default_rng(seed))
        late = 0
        for agreed in (first, second):
            machines: dict[str, Any] = {client_name(k): client(k, agreed) for k in range(5)}
            machines["server"] = Server(agreement=agreed, patience=3)
            drive = Driver(machines, agreed.header, host)
            network.run([drive])
            late = drive.traffic.late
            assert not drive.traffic.rejected_from
            if isinstance(drive.results["server"], Summed):
                assert_exact(agreed, drive.results["server"])
        event(f"late parcels: {late > 0}")


@given(st.integers(0, 2**20), st.sampled_from(["active", "semi-honest"]), st.floats(0.0, 0.4))
@settings(max_examples=20)
def test_two_attempts_at_one_question_open_one_sum(seed: int, mode: Any, lost: float) -> None:
    """The second attempt is played whatever became of the first, one client fewer, over the same records."""
    faults = Faults(reorder=True, delay=0.5, duplicate=0.5, dropout=lost, patience=6)
    first = agreement(5, mode=mode)
    second = agreement(4, mode=mode, at=header(1, 2), ordered=5)
    with journal() as kept:
        outcomes = [
            aggregate(agreed, faults=faults, seed=seed, kept=kept).server for agreed in (first, second)
        ]
    summed = [isinstance(outcome, Summed) for outcome in outcomes]
    event(f"summed: {summed}")
    assert summed != [True, True]
    for agreed, outcome in zip((first, second), outcomes, strict=True):
        if isinstance(outcome, Summed):
            assert_exact(agreed, outcome)
