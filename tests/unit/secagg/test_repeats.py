"""A server that asks twice, too early or again, and a client that is started again."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.recorded import CLIENTS, Recording, fewer, honest, refused, sparse
from support.tiny_secagg import (
    TERMS,
    Host,
    aggregate,
    agreement,
    assert_exact,
    client,
    header,
    journal,
)

from securefl.accounting.ledger import Ledger
from securefl.core.errors import ConfigError, LocalProtocolError
from securefl.core.machine import Step
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.secagg import Aborted, Agreement, Client, Policy, Server
from securefl.secagg.messages import Advertise, Dealt, Quorum, RosterClosed, Shares, Survivors, Unmask
from securefl.storage.journal import Journal

# A server that asks twice, too early, or again ---------------------------------------------------------


@every("mode", ["active", "semi-honest"])
@every(("alive", "dropped"), [(slice(8), (9,)), (slice(8), ()), (slice(9), (9,))])
def test_a_second_set_of_survivors_is_refused_and_a_double_is_harmless(
    mode: str, alive: slice, dropped: tuple[int, ...]
) -> None:
    """Either set alone would let a server turn who survived into who dropped."""
    machine = honest(mode).clients[0]
    _, survivors, step = machine.at(Survivors)
    done = machine.inner.provide(step.state, True).state
    opposite = Survivors(survivors=survivors.survivors[alive], dropped=dropped)
    for later in (step.state, done):
        refused(machine.inner, later, opposite, "other survivors before")
        assert machine.inner.receive(later, SERVER, survivors) == Step(later)


@every("mode", ["active", "semi-honest"])
def test_a_client_opens_once_whatever_it_is_told_again(mode: str) -> None:
    machine = honest(mode).clients[0]
    _, survivors, shown = machine.at(Survivors)
    _, last, step = machine.at(Quorum) if mode == "active" else (None, survivors, None)
    step = step or machine.inner.provide(shown.state, True)
    assert ([type(one.message) for one in step.out], step.result) == ([Unmask], "answered")
    with pytest.raises(LocalProtocolError, match="only to a need"):
        machine.inner.provide(step.state, True)
    for again in (survivors, last):
        assert machine.inner.receive(step.state, SERVER, again) == Step(step.state)


def test_a_quorum_opens_nothing_before_the_own_signature_is_on_record() -> None:
    """A server may have a quorum of the others: whoever has not signed may still enter another attempt."""
    machine = honest().clients[0]
    _, quorum, _ = machine.at(Quorum)
    shown = machine.at(Survivors)[2].state
    refused(machine.inner, shown, quorum, "not due yet")
    denied = machine.inner.provide(shown, False)
    assert (denied.out, denied.result) == ((), "refused")
    assert machine.inner.receive(denied.state, SERVER, quorum).out == ()


# A client that is started again -----------------------------------------------------------------------


class Restarted:
    """A client that lost its state and begins anew; `journal` is all that is left of it."""

    def __init__(self, machine: Client, journal: Journal) -> None:
        self.machine, self.host = machine, Host(machine.agreement, Ledger(None, TERMS), journal)
        self.said: list[Any] = []
        self.step: Step[Any] = machine.begin()
        self.settle()

    def receive(self, message: Any) -> None:
        self.step = self.machine.receive(self.step.state, SERVER, message)
        self.settle()

    def settle(self) -> None:
        """Have the host do what is asked of it, and keep what is said."""
        self.said += [envelope.message for envelope in self.step.out]
        if self.step.need is not None:
            answer = self.host.answer(self.step.need.order)
            self.step = self.machine.provide(self.step.state, answer)
            self.settle()


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


def test_the_clients_own_minimum_stands() -> None:
    """Parameters for fewer corrupt clients: it never begins."""
    own = Policy(mode="active", corrupt=0.1, dropout=0.3)
    client(0, honest().agreed, own)
    with pytest.raises(ConfigError, match="protect less"):
        client(0, honest().agreed, replace(own, corrupt=0.2))


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
    """In a sparse cohort one dealer's holders may answer while another's are silent."""
    agreed, _, server = sparse()
    answers = iter([one for one in server.seen if isinstance(one[2], Unmask)])
    state, sender, message, _ = next(answers)
    counts = [0]
    while min(counts) < agreed.parameters.threshold - 1:
        state = server.inner.receive(state, sender, message).state
        counts = [len(shares) for shares in state.shares().values()]
        _, sender, message, _ = next(answers)
    assert max(counts) >= agreed.parameters.threshold
    step = Server(agreement=agreed, patience=0).deadline(state)
    assert step.need is None
    assert isinstance(step.result, Aborted)
    assert (step.result.phase, step.result.culprit) == ("unmask", None)
