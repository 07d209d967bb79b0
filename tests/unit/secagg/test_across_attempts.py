"""Attacks on one client's input across attempts, rounds, messages and parties; each worked before its rule.

Each is played a second time against clients that forget between two attempts, as they did when a record was
of an attempt and not of a question: there it works, so these tests can fail.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.every import every
from support.tiny_attempts import Attempt, Clients, call, fewest
from support.tiny_secagg import told

from securefl.secagg import Policy

N = 7
EVERYBODY = tuple(range(N))
MODES = ("active", "semi-honest")


def policy(mode: Any) -> Policy:
    return Policy(mode=mode, corrupt=0.0, dropout=0.3, min_cohort_size=4, min_honest=3)


POLICY = policy("active")


def difference(first: Attempt, second: Attempt, victim: int, others: tuple[int, ...]) -> int | None:
    """The victim's value from two totals, one with and one without it; None if the server has not both."""
    both, rest = first.opened((*others, victim)), second.opened(others)
    return None if both is None or rest is None else both - rest


# One survivor set per question ------------------------------------------------------------------


@every("mode", MODES)
@every("attempt", [2, 7])
def test_late_answers_and_a_retry_with_one_client_gone(mode: str, attempt: int) -> None:
    """(a) Nobody lies: answers to unmask are late, the sum is tried again, one client is gone meanwhile.

    (b) Or the server has its victim gone. Clients do not ask whether there is an attempt to spare.
    """
    others = tuple(k for k in EVERYBODY if k != 3)
    for forgetful in (False, True):
        clients = Clients(N, policy(mode))
        first = call(clients, EVERYBODY, attempt=1).whole()
        clients.forget(forgetful)
        second = call(clients, others, attempt=attempt, ordered=N).whole()
        assert first.opened(EVERYBODY) is not None, "the late answers open the first sum"
        if forgetful:
            assert difference(first, second, 3, others) == clients.value(3, first.vector, 1)
            assert fewest([first, second]) == 1
        else:
            assert not second.entries, "who has signed enters no other attempt"
            assert fewest([first, second]) == N


def test_a_colluding_dealer_forces_no_retry_after_the_signatures() -> None:
    """(c) Its shares open no secret of its own, so the attempt aborts at the very end, with its name."""
    clients = Clients(N, replace(POLICY, corrupt=0.14), corrupt=1)
    first = call(clients, EVERYBODY, attempt=1).whole()
    # An honest server goes on without client 6; this one has all answers of the first attempt.
    second = call(clients, EVERYBODY[1:6], attempt=2, ordered=N).whole()
    assert not second.entries
    assert fewest([first, second]) == N - 1


def test_cohorts_without_one_each_signed_by_disjoint_majorities() -> None:
    """(e) All but f2, then all but f1: the difference is x_f1 - x_f2."""
    f1, f2 = 5, 6
    early = call(clients := Clients(N, POLICY), tuple(k for k in EVERYBODY if k != f2), attempt=1)
    early.begin().close().deal().survive(early.members, only=(0, 1, 2, 3))
    late = call(clients, tuple(k for k in EVERYBODY if k != f1), attempt=2).begin()
    assert set(late.entries) == {f2}, "who is in the first attempt enters no cohort that is no subset of its"
    clients, attempts = Clients(N, POLICY), []
    for at, gone in ((1, f2), (2, f1)):
        attempts.append(call(clients, tuple(k for k in EVERYBODY if k != gone), attempt=at).whole())
        clients.forget()
    assert fewest(attempts) == 2


@every("mode", MODES)
def test_the_same_statistic_under_two_stages(mode: str) -> None:
    """(f) Asked twice in a round, it is the same value, and so the same question."""
    clients = Clients(N, policy(mode))
    first = call(clients, EVERYBODY, attempt=1, stage=0).whole()
    second = call(clients, EVERYBODY[1:], attempt=1, stage=1).whole()
    assert not second.entries
    assert fewest([first, second]) == N
    initial = call(clients, EVERYBODY, attempt=1, stage=2, ask=1).whole()
    assert initial.opened(EVERYBODY) is not None, "a declared ask more is a question of its own"


@every("mode", MODES)
def test_a_value_that_cannot_change_is_opened_once_in_a_session(mode: str) -> None:
    """Two rounds of the statistics of a frozen body differ by whoever was absent from one."""
    others = EVERYBODY[1:]

    clients = Clients(N, policy(mode))
    first = call(clients, EVERYBODY, attempt=1, number=1, once=True).whole()
    second = call(clients, others, attempt=1, number=2, once=True).whole()
    assert not second.entries
    assert fewest([first, second]) == N
    clients.forget()
    assert fewest([first, call(clients, others, attempt=1, number=2, once=True).whole()]) == 1


def test_who_was_absent_from_a_value_that_cannot_change_is_asked_later() -> None:
    clients = Clients(12, replace(POLICY, dropout=0.34))
    there, absent = tuple(range(8)), tuple(range(8, 12))
    first = call(clients, range(12), attempt=1, number=1, once=True)
    first.begin(there).close().deal().survive(there).quorum()
    assert first.opened(there) is not None
    second = call(clients, absent, attempt=1, number=2, once=True).whole()
    assert second.opened(absent) is not None
    assert fewest([first, second]) == 4


# Before anybody signed --------------------------------------------------------------------------


def test_before_anybody_signed_a_retry_goes_on_without_the_culprit() -> None:
    clients = Clients(N, POLICY)
    first = call(clients, EVERYBODY, attempt=1).begin().close().deal()
    second = call(clients, EVERYBODY[:-1], attempt=2, ordered=N).whole()
    assert second.opened(EVERYBODY[:-1]) is not None
    assert first.survive(EVERYBODY).quorum().opened(EVERYBODY) is None, "signed in the newest attempt alone"
    assert fewest([first, second]) == N - 1


# What clients are told --------------------------------------------------------------------------


def test_a_cohort_that_was_told_two_things_has_no_sum() -> None:
    """Dead units for all but the victim (Pasquini et al. 2022), other weights: one bit is enough."""
    clients = Clients(N, POLICY)
    tasks = {k: told("a model of dead units") for k in EVERYBODY if k != 3}
    bit = bytes([told("the task")[0] ^ 1]) + told("the task")[1:]
    for attempt, told_to in ((1, tasks), (2, {3: bit})):
        divided = call(clients, EVERYBODY, attempt=attempt, tasks=told_to).begin().close().deal(mixed=True)
        assert len(divided.refusals) == N
        assert all("did not sign this key for this place" in refusal for refusal in divided.refusals)
        assert not divided.inputs
    united = call(clients, EVERYBODY, attempt=3).whole()
    assert united.opened(EVERYBODY) is not None


def test_one_that_was_told_another_thing_is_in_no_sum() -> None:
    """The others sum among themselves, as if it had left. It sends no input."""
    divided = call(Clients(N, POLICY), EVERYBODY, attempt=1, tasks={3: told("a model of dead units")})
    divided.begin().close().deal()
    [refusal] = divided.refusals
    assert "5 or more ascending dealers" in refusal
    assert 3 not in divided.inputs
    others = [k for k in EVERYBODY if k != 3]
    divided.survive(others, only=others).quorum(others)
    assert divided.opened(EVERYBODY) is None


def test_a_divided_cohort_is_too_small_for_a_quorum() -> None:
    """The server shows each part of the cohort those alone that were told the same."""
    clients = Clients(N, POLICY)
    tasks = {k: told("another") for k in (4, 5, 6)}
    divided = call(clients, EVERYBODY, attempt=1, tasks=tasks).begin()
    divided.close(members=(0, 1, 2, 3), only=(0, 1, 2, 3)).close(members=(4, 5, 6), only=(4, 5, 6))
    assert all("at least 5 members" in refusal for refusal in divided.refusals)
    assert len(divided.refusals) == N
