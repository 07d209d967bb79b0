"""A server that asks twice, too early or again, and a client that is started again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.recorded import CLIENTS, Recording, fewer, honest, refused
from support.tiny_secagg import (
    TERMS,
    aggregate,
    agreement,
    assert_exact,
    client,
    header,
    integers,
    journal,
    release,
)

from securefl.accounting.ledger import Ledger
from securefl.core.acts import Begin
from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.hiding import ComputeAndConceal
from securefl.core.machine import Step
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.secagg import Aborted, Agreement, Client, Policy, Server
from securefl.secagg.client_rounds import Agreeing
from securefl.secagg.masks import apply_masks
from securefl.secagg.messages import Advertise, Dealt, Quorum, RosterClosed, Shares, Survivors, Unmask
from securefl.secagg.packing import unpack
from securefl.storage.journal import Journal

# A server that asks twice, too early, or again ---------------------------------------------------------


@every("mode", ["active", "semi-honest"])
def test_a_second_set_of_survivors_is_refused_and_a_double_is_harmless(mode: str) -> None:
    machine = honest(mode).clients[0]
    _, survivors, step = machine.at(Survivors)
    done = machine.inner.provide(step.state, True).state
    opposite = Survivors(survivors=survivors.survivors[:-1], dropped=survivors.survivors[-1:])
    for later in (step.state, done):
        refused(machine.inner, later, opposite, "other survivors before")
        again = machine.inner.receive(later, SERVER, survivors)
        assert (again.state, again.out, again.need) == (later, (), None)


def test_a_double_quorum_is_answered_once() -> None:
    machine = honest().clients[0]
    _, quorum, answered = machine.at(Quorum)
    assert isinstance(answered.out[0].message, Unmask)
    again = machine.inner.receive(answered.state, SERVER, quorum)
    assert (again.state, again.out, again.need) == (answered.state, (), None)


@every("mode", ["active", "semi-honest"])
def test_a_client_opens_once_whatever_its_host_answers_again(mode: str) -> None:
    machine = honest(mode).clients[0]
    _, survivors, shown = machine.at(Survivors)
    active = mode == "active"
    step = machine.at(Quorum)[2] if active else machine.inner.provide(shown.state, True)
    assert ([type(one.message) for one in step.out], step.result) == ([Unmask], "answered")
    with pytest.raises(LocalProtocolError, match="only to a need"):
        machine.inner.provide(step.state, True)
    assert machine.inner.receive(step.state, SERVER, survivors) == Step(step.state)


def unsigned(machine: Recording) -> Agreeing:
    """The state of a client that was shown the survivors, before its host has recorded that it signs."""
    _, _, step = machine.at(Survivors)
    assert isinstance(step.state, Agreeing)
    assert not step.state.signed
    return step.state


def test_a_quorum_opens_nothing_before_the_own_signature_is_on_record() -> None:
    """A server may have a quorum of the others: whoever has not signed may still enter another attempt."""
    machine = honest().clients[0]
    _, quorum, _ = machine.at(Quorum)
    refused(machine.inner, unsigned(machine), quorum, "not due yet")
    denied = machine.inner.provide(unsigned(machine), False)
    assert (denied.out, denied.result) == ((), "refused")
    assert machine.inner.receive(denied.state, SERVER, quorum).out == ()


# A client that is started again -----------------------------------------------------------------------


@dataclass
class Restarted:
    """A client that lost its state and begins anew; `journal` is all that is left of it."""

    machine: Client
    journal: Journal
    step: Step[Any] = field(init=False)
    said: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.step = self.machine.begin()
        self.settle()

    def receive(self, message: Any) -> None:
        self.step = self.machine.receive(self.step.state, SERVER, message)
        self.settle()

    def settle(self) -> None:
        """Have the host do what is asked of it, and keep what is said."""
        while self.step.need is not None:
            self.said += [envelope.message for envelope in self.step.out]
            order = self.step.need.order
            if isinstance(order, ComputeAndConceal):
                number = self.machine.channels.own
                answer: Any = tuple(
                    release(order, vector.name, integers(number, vector))
                    for vector in self.machine.agreement.vectors
                )
            else:
                [answer] = self.journal.record([order])
            self.step = self.machine.provide(self.step.state, answer)
        self.said += [envelope.message for envelope in self.step.out]


def encoded(agreed: Agreement, messages: list[Any]) -> list[bytes]:
    """The bytes on the wire, through a ledger of their own."""
    with Ledger(None, TERMS) as ledger:
        for message in messages:
            for one in getattr(message, "releases", ()):
                assert not ledger.reserve([(one.key, one.charge)])
        return ledger.send([(agreed.header, message) for message in messages])


@lru_cache
def disk(mode: Any, folder: Path) -> tuple[Agreement, Recording, Path]:
    """A run whose records are on disk: what client 0 was told and said in it."""
    agreed = agreement(CLIENTS, corrupt=0.1, dropout=0.3, mode=mode)
    machine = Recording(client(0, agreed))
    with Journal(folder / "journal.sqlite") as kept:
        assert_exact(agreed, aggregate(agreed, machines={client_name(0): machine}, kept=kept).server)
    return agreed, machine, folder / "journal.sqlite"


MODES = pytest.mark.parametrize("mode", ["active", "semi-honest"])


@MODES
def test_a_client_started_again_says_the_same_bytes(mode: str, tmp_path: Path) -> None:
    """The journal alone is left, and keys, shares, masked input, signature and answer are those of before."""
    agreed, machine, path = disk(mode, tmp_path)
    with Journal(path) as kept:
        again = Restarted(client(0, agreed), kept)
        for _, _, message, _ in machine.seen:
            again.receive(message)
    assert len(again.said) == (5 if mode == "active" else 4)
    assert encoded(agreed, again.said) == encoded(agreed, machine.said)
    assert again.step.result == "answered"


@MODES
@pytest.mark.parametrize("kind", [RosterClosed, Dealt, Survivors])
def test_a_client_started_again_never_says_the_opposite(kind: type, mode: str, tmp_path: Path) -> None:
    """Another roster, other dealers or other survivors than before the restart: the record forbids it."""
    agreed, machine, path = disk(mode, tmp_path)
    with Journal(path) as kept:
        again = Restarted(client(0, agreed), kept)
        for _, _, message, _ in machine.seen:
            if isinstance(message, kind):
                again.said.clear()
                again.receive(fewer(message))
                assert (again.said, again.step.result) == ([], "refused")
                break
            again.receive(message)


def test_masked_inputs_under_two_sets_of_dealers_would_bare_the_input() -> None:
    """Why the record holds the dealers: a neighbour fewer changes the input by that pair's mask alone.

    With one such pair after the other, and the self-mask that unmasking opens, nothing is left before it.
    """
    run = honest()
    state, dealt, _ = run.clients[0].at(Dealt)
    machine = run.clients[0].inner
    sent = []
    for message in (dealt, fewer(dealt)):
        step = machine.provide(machine.receive(state, SERVER, message).state, True)
        assert step.need is not None
        vector = machine.agreement.vectors[0]
        packed = np.asarray(step.need.order.conceal[vector.name](integers(0, vector)))
        sent.append(unpack(packed, vector.length, vector.bits))
    last = dealt.dealers[-1]
    alone = np.zeros(len(sent[0]), np.uint32)
    apply_masks(alone, 0, add=[state.closed.mask_seed(0, state.key, last)])
    np.testing.assert_array_equal(sent[0] - sent[1], alone)


@MODES
def test_whoever_signed_enters_no_other_attempt_of_the_question(mode: str) -> None:
    """Nobody lies: the answers are late, and the sum is tried again with one client gone."""
    run = honest(mode)
    later = replace(run.agreed, header=header(1, 2))
    smaller = agreement(9, corrupt=0.1, dropout=0.3, mode=mode, at=header(1, 2), ordered=10)
    for agreed in (later, smaller):
        order = begins(client(0, agreed))
        assert run.host.record(order) is None
        step = client(0, agreed).provide(client(0, agreed).begin().state, None)
        assert (step.out, step.result) == ((), "refused")


def begins(machine: Client) -> Begin:
    need = machine.begin().need
    assert need is not None
    assert isinstance(need.order, Begin)
    return need.order


@MODES
def test_whoever_has_not_signed_enters_the_next_attempt_and_then_signs_in_no_other(mode: str) -> None:
    """An abort before the signatures is tried again; the survivors of the first attempt come too late."""
    agreed = agreement(CLIENTS, corrupt=0.1, dropout=0.3, mode=mode)
    machine = Recording(client(0, agreed))
    assert_exact(agreed, aggregate(agreed, machines={client_name(0): machine}).server)
    # This journal draws the secret of the recorded run, so that what was sent there fits.
    first = Restarted(client(0, agreed), fresh := journal())
    for kind in (RosterClosed, Dealt):
        first.receive(machine.at(kind)[1])
    second = Restarted(client(0, replace(agreed, header=header(1, 2))), fresh)
    assert isinstance(second.said[0], Advertise)
    first.said.clear()
    first.receive(machine.at(Survivors)[1])
    assert (first.said, first.step.result) == ([], "refused")


def test_the_record_is_asked_for_before_anything_is_opened() -> None:
    machine = honest("semi-honest").clients[0]
    _, _, step = machine.at(Survivors)
    assert step.out == ()
    assert step.need is not None
    assert step.need.order.act == "sign"


def test_another_agreement_in_the_same_place_is_refused_by_the_record() -> None:
    """A server that shows a client two tasks under one place and attempt: the second is not begun."""
    run = honest()
    assert run.host.record(begins(client(0, run.agreed))) is not None
    assert run.host.record(begins(client(0, replace(run.agreed, task=bytes(32))))) is None


def test_messages_out_of_turn_are_refused() -> None:
    run = honest()
    machine = run.clients[0]
    early, roster, _ = machine.at(RosterClosed)
    for kind in (Dealt, Survivors, Quorum):
        refused(machine.inner, early, machine.at(kind)[1], "not due yet")
    waiting, _, _ = machine.at(Survivors)
    refused(machine.inner, waiting, machine.at(Quorum)[1], "not due yet")
    for old in (roster, machine.at(Dealt)[1]):
        assert machine.inner.receive(waiting, SERVER, old) == Step(waiting)


def test_the_clients_own_minimum_stands() -> None:
    """Parameters for fewer corrupt clients, another mode or too small a cohort: it never begins."""
    agreed = honest().agreed
    own = Policy(mode="active", corrupt=0.1, dropout=0.3, min_cohort_size=10, min_honest=5, least_survivors=7)
    client(0, agreed, own)
    for stricter in (
        {"corrupt": 0.2},
        {"dropout": 0.2},
        {"mode": "semi-honest"},
        {"min_cohort_size": 11},
        {"min_honest": 6},
        {"least_survivors": 8},
    ):
        with pytest.raises(ConfigError, match="protect less"):
            client(0, agreed, replace(own, **stricter))  # type: ignore[arg-type]


def test_parties_with_other_parameters_do_not_understand_each_other() -> None:
    """A server that plans for fewer corrupt clients: no signature of its clients fits."""
    agreed = agreement(10, corrupt=0.2, dropout=0.3)
    server = Server(agreement=agreement(10, corrupt=0.0, dropout=0.3))
    outcome = aggregate(agreed, machines={SERVER: server})
    assert isinstance(outcome.server, Aborted)
    assert set(outcome.traffic.rejected_from) == {client_name(k) for k in range(10)}


def test_a_survivor_of_one_round_that_drops_in_the_next_stays_hidden() -> None:
    """Fresh keys and seeds each attempt: what opens in the second round masks nothing of the first."""
    first, second = honest(), honest(attempt=2)
    one, two = (run.clients[0].at(RosterClosed)[1] for run in (first, second))
    assert not {key.raw for key in one.keys} & {key.raw for key in two.keys}
    assert not {nonce.raw for nonce in one.nonces} & {nonce.raw for nonce in two.nonces}
    seeds = [run.server.at(Shares, client_name(0))[1].seed for run in (first, second)]
    assert seeds[0] != seeds[1]


def test_a_client_never_gives_both_shares_of_one_dealer() -> None:
    machine = honest().clients[0]
    state, _, step = machine.at(Quorum)
    (envelope,) = step.out
    pairs = state.held.pairs
    assert len(envelope.message.shares) == len(pairs)
    for (dealer, pair), share in zip(sorted(pairs.items()), envelope.message.shares, strict=True):
        assert share.raw == (pair.seed if dealer in state.survivors else pair.key)


def test_salts_and_nonces_of_a_dealing_are_all_different() -> None:
    """One salt for both shares of a holder, or one nonce for all boxes, would be randomness in two uses."""
    run = honest()
    salts, nonces = [], []
    for machine in (run.clients[number] for number in range(4)):
        _, dealt, _ = machine.at(Dealt)
        state, _, _ = machine.at(Survivors)
        nonces += [box.raw[:12] for box in dealt.sealed]
        salts += [one[:32] for pair in state.pairs.values() for one in (pair.seed, pair.key)]
    assert len(set(nonces)) == len(nonces)
    assert len(set(salts)) == len(salts)


def test_an_opening_changes_no_sum_of_the_server() -> None:
    """The sums belong to the server's state, which may be asked again."""
    server = honest().server
    (need,) = [step.need for _, _, _, step in server.seen if step.need is not None]
    before = [total.copy() for total in need.order.sums]
    assert need.order.run().survivors
    for total, own in zip(need.order.sums, before, strict=True):
        np.testing.assert_array_equal(total, own)


def test_two_attempts_of_a_round_have_two_self_masks() -> None:
    """The record has one secret for both, and their sums would tell the difference of two inputs."""
    first, second = (honest(attempt=attempt).clients[0] for attempt in (1, 2))
    assert first.at(RosterClosed)[0].secret == second.at(RosterClosed)[0].secret
    assert first.at(Dealt)[0].seed != second.at(Dealt)[0].seed


def test_one_share_fewer_than_the_threshold_opens_nothing_and_accuses_nobody() -> None:
    run = honest("semi-honest")
    answers = [one for one in run.server.seen if isinstance(one[2], Unmask)]
    state = answers[0][0]
    for _, sender, message, _ in answers[: run.agreed.parameters.threshold - 1]:
        state = run.server.inner.receive(state, sender, message).state
    step = Server(agreement=run.agreed, patience=0).deadline(state)
    assert step.need is None
    assert isinstance(step.result, Aborted)
    assert (step.result.phase, step.result.culprit) == ("unmask", None)
