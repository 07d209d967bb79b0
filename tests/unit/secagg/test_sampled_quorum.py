"""Quorums of which a client verifies a sample, and tags instead of signatures: the attacks on both."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, chisquare
from support.every import every
from support.liars import put, swapped
from support.recorded import Recording, honest, refused, sparse
from support.tiny_secagg import TERMS, Host, aggregate, agreement, assert_exact, client

from securefl.accounting.ledger import Ledger
from securefl.core.entropy import Random, drawn
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import SecretKey, Signature
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.core.wire import encode
from securefl.engine.drive import Driver, Packet
from securefl.engine.inprocess import SimulationCache
from securefl.secagg import Agreement, Server
from securefl.secagg.agreement import TAG_BYTES
from securefl.secagg.messages import Confirmed, Consistent, Quorum, RosterClosed, Unmask
from securefl.secagg.quorum import PASSES_UNSEEN_BITS, sample_size, sampled

FORGED = Signature(bytes(64))
FALSE_ALARM = 1e-6  # of one statistical test whose entropy is not seeded; here it is, so none comes by chance


def stream(label: str) -> Random:
    """A source that is the same in every run."""
    return drawn(SecretKey(bytes(32)), label.encode())


# The size of a sample ----------------------------------------------------------------------------------


@every("bits", [1, 3, 7, 56])
def test_the_sample_is_the_smallest_that_keeps_the_bound(bits: int) -> None:
    """The chance that a list with one true signature too few passes, counted in whole numbers."""
    bound = Fraction(1, 2**bits)
    for listed in (1, 2, 5, 9, 30, 150):
        for needed in range(1, listed + 1):
            size = sample_size(listed, needed, bits)
            chance = [Fraction(comb(needed - 1, s), comb(listed, s)) for s in range(listed + 1)]
            assert chance[size] <= bound
            assert size == 0 or chance[size - 1] > bound
            assert size <= needed


@every("needed", [0, -1, -50])
def test_no_stranger_is_verified_where_neighbours_make_up_the_quorum(needed: int) -> None:
    assert sample_size(40, needed) == 0


def test_the_specification_states_the_sizes() -> None:
    """At 10 % corrupt, of a list of 0.8 n: at most 105 whatever n is, and fewer beside the neighbours."""
    assert PASSES_UNSEEN_BITS == 56
    sizes = [sample_size(8 * n // 10, (n + n // 10) // 2 + 1) for n in (1_000, 3_000, 10**4, 10**6)]
    assert sizes == sorted(sizes)
    assert (sizes[0], max(sizes)) == (96, 104)


def test_every_set_is_equally_likely() -> None:
    """20,000 draws of 2 of 5 with a seeded source; a fair one is called unfair in one of a million runs."""
    random, counts = stream("fair"), Counter[frozenset[int]]()
    for _ in range(20_000):
        counts[frozenset(sampled(range(5), 2, random))] += 1
    sets = [frozenset(one) for one in combinations(range(5), 2)]
    assert set(counts) == set(sets)
    assert chisquare([counts[one] for one in sets]).pvalue > FALSE_ALARM


# A list with forged signatures in it -------------------------------------------------------------------


@every(("listed", "needed", "bits"), [(12, 7, 3), (20, 15, 2), (40, 22, 5)])
def test_a_list_with_one_true_signature_too_few_passes_as_rarely_as_stated(
    listed: int, needed: int, bits: int
) -> None:
    """4,000 samples against the same forgeries. A right sampler fails in one of a million runs."""
    size, random, turns = sample_size(listed, needed, bits), stream(f"passes {listed}"), 4_000
    true = set(np.random.default_rng(listed).choice(listed, needed - 1, replace=False).tolist())
    passed = sum(true.issuperset(sampled(range(listed), size, random)) for _ in range(turns))
    chance = comb(needed - 1, size) / comb(listed, size)
    assert chance <= 2.0**-bits
    low, high = binom(turns, chance).interval(1 - FALSE_ALARM)
    assert low <= passed <= high


def strangers(state: Any, quorum: Quorum) -> list[int]:
    near = {0, *state.held.closed.graph[0]}
    return [member for member in quorum.signers if member not in near]


def forged(quorum: Quorum, members: list[int]) -> Quorum:
    signatures = dict(zip(quorum.signers, quorum.signatures, strict=True)) | dict.fromkeys(members, FORGED)
    return replace(quorum, signatures=tuple(signatures[member] for member in quorum.signers))


def passes(machine: Any, state: Any, quorum: Quorum, random: Any) -> bool:
    """Whether the client opens its shares; else it refuses a forged signature."""
    try:
        step = replace(machine, random=random).receive(state, SERVER, quorum)
    except RemoteProtocolError as error:
        return "did not sign what we were shown" not in str(error)
    return [type(envelope.message) for envelope in step.out] == [Unmask]


def test_a_client_catches_a_forged_signature_as_often_as_its_sample_has_it() -> None:
    """One forged of 39 strangers, where 11 are verified: harmless, since a quorum signed, and rarely unseen.

    200 clients draw their samples. A right client fails in one of a million runs; the source is seeded.
    """
    agreed, one, _ = sparse()
    state, quorum, _ = one.at(Quorum)
    rest = strangers(state, quorum)
    size = sample_size(len(rest), agreed.parameters.quorum - (len(quorum.signers) - len(rest)))
    assert (len(rest), size) == (39, 11)
    lie, random, turns = forged(quorum, rest[3:4]), stream("caught"), 200
    caught = sum(not passes(one.inner, state, lie, random) for _ in range(turns))
    low, high = binom(turns, size / len(rest)).interval(1 - FALSE_ALARM)
    assert low <= caught <= high


def simulated(one: Recording, state: Any) -> tuple[Any, Any, list[int]]:
    """The same client and state in a process of all parties, and the members whose signatures it verified."""
    checked: list[int] = []
    agreed = state.held.closed.agreement
    roster = replace(agreed.roster, known=SimulationCache())

    class Counted(Agreement):
        def check(self, member: int, signature: Signature, message: bytes) -> None:
            checked.append(member)
            super().check(member, signature, message)

    shown = {name: getattr(agreed, name) for name in agreed.__dataclass_fields__}
    agreed = Counted(**(shown | {"roster": roster}))
    held = replace(state.held, closed=replace(state.held.closed, agreement=agreed))
    return replace(one.inner, agreement=agreed), replace(state, held=held), checked


def test_clients_of_one_process_verify_a_list_once_and_whole() -> None:
    """More than a sample, so nobody draws one."""
    _, one, _ = sparse()
    state, quorum, _ = one.at(Quorum)
    machine, state, checked = simulated(one, state)
    asked: list[int] = []
    for _ in range(3):
        assert passes(machine, state, quorum, asked.append)
    assert (sorted(checked), asked) == (sorted(quorum.signers), [])


def test_clients_of_one_process_sample_a_list_with_a_forged_signature() -> None:
    """As clients apart, they catch it as often as their samples have it: they behave alike."""
    agreed, one, _ = sparse()
    state, quorum, _ = one.at(Quorum)
    rest = strangers(state, quorum)
    size = sample_size(len(rest), agreed.parameters.quorum - (len(quorum.signers) - len(rest)))
    lie, turns = forged(quorum, rest[3:4]), 100
    machine, state, checked = simulated(one, state)
    alone, together = stream("alike"), stream("alike")
    seen = [passes(one.inner, one.at(Quorum)[0], lie, alone) for _ in range(turns)]
    assert [passes(machine, state, lie, together) for _ in range(turns)] == seen
    assert 0 < seen.count(False) < turns
    assert len(checked) <= len(quorum.signers) + turns * size, "the whole list is verified once"


def test_a_list_with_one_true_signature_too_few_is_always_refused_in_a_small_cohort() -> None:
    """No sample below the quorum keeps 2^-56 there, so as many are verified as are needed."""
    agreed, one, _ = sparse()
    state, quorum, _ = one.at(Quorum)
    rest = strangers(state, quorum)
    needed = agreed.parameters.quorum - (len(quorum.signers) - len(rest))
    too_few, enough = forged(quorum, rest[needed - 1 :]), forged(quorum, rest[needed:])
    random = stream("small")
    assert not any(passes(one.inner, state, too_few, random) for _ in range(50))
    assert not any(passes(one.inner, state, enough, random) for _ in range(3)), "28 are forged: some are seen"


def test_the_sample_is_drawn_when_the_list_is_there_and_from_the_operating_system() -> None:
    """A server that knew it, or could ask for it before it fixes the list, would forge the others."""
    _, one, _ = sparse()
    assert one.inner.random is os.urandom
    asked: list[int] = []

    def random(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    machine = replace(one.inner, random=random)
    for state, _, message, _ in one.seen:
        if not isinstance(message, Quorum):
            machine.receive(state, SERVER, message)
    assert asked == []
    state, quorum, _ = one.at(Quorum)
    for count in (1, 2):
        machine.receive(state, SERVER, quorum)
        assert asked == [32] * count, "another sample for each list"


def test_a_refused_list_ends_it_so_that_no_server_tries_until_one_passes() -> None:
    """The host delivers nothing more from a server that sent a forged list, not even a true one."""
    agreed, one, _ = sparse()
    state, quorum, _ = one.at(Quorum)
    lie = forged(quorum, strangers(state, quorum))
    with Ledger(None, TERMS) as ledger:
        driver = Driver({client_name(0): one.inner}, agreed.header, Host(agreed, ledger))
        driver._states[client_name(0)] = state
        for message in (lie, quorum, lie, quorum):
            assert driver.deliver(Packet(SERVER, client_name(0), encode(agreed.header, message))) == []
    assert "did not sign what we were shown" in driver.traffic.rejected_from[SERVER]
    assert driver.results == {}


@every("fewer", [0, 1])
def test_the_threshold_counts_true_signatures_beside_the_sample(fewer: int) -> None:
    """A list of exactly the quorum is verified whole; one signature less is refused unseen."""
    agreed, one, _ = sparse()
    state, quorum, _ = one.at(Quorum)
    rest = strangers(state, quorum)
    needed = agreed.parameters.quorum - (len(quorum.signers) - len(rest)) - fewer
    signers = sorted(set(quorum.signers) - set(rest[needed:]))
    signed = dict(zip(quorum.signers, quorum.signatures, strict=True))
    told = replace(quorum, signers=tuple(signers), signatures=tuple(signed[k] for k in signers))
    if fewer:
        refused(one.inner, state, told, "Expected 32 signatures on one set, got 31")
    else:
        assert passes(one.inner, state, told, stream("exact"))
        for member in rest[:needed]:
            assert not passes(one.inner, state, forged(told, [member]), stream("exact"))


def test_a_signer_that_is_listed_twice_counts_once() -> None:
    _, one, _ = sparse()
    state, quorum, _ = one.at(Quorum)
    for at in (1, 20, len(quorum.signers) - 1):
        twice = replace(
            quorum,
            signers=swapped(quorum.signers, at, quorum.signers[at - 1]),
            signatures=swapped(quorum.signatures, at, quorum.signatures[at - 1]),
        )
        refused(one.inner, state, twice, "distinct, ascending survivors as signers")


# Tags instead of signatures ----------------------------------------------------------------------------


def tagged(state: Any, at: int, tag: Signature) -> Confirmed:
    tags = honest().clients[0].at(Confirmed)[1].tags
    return Confirmed(tags=swapped(tags, at, tag))


def lies(at: int) -> dict[str, Signature]:
    """What a server has for the tag of client 0's neighbour at this place, 3: anything but its tag for 0."""
    mine = honest().clients[0].at(Confirmed)[1].tags
    own = honest().clients[0].said[-2]
    assert isinstance(own, Consistent)
    other = honest(attempt=2).clients[0].at(Confirmed)[1].tags
    to_another = honest().clients[1].at(Confirmed)[1].tags[at]
    return {
        "none": Signature(b""),
        "a flipped bit": Signature(bytes([mine[at].raw[0] ^ 1]) + mine[at].raw[1:]),
        "cut": Signature(mine[at].raw[:-1]),
        "of another neighbour": mine[at + 1],
        "our own, sent back": own.tags[at],
        "of another attempt": other[at],
        "for another client": to_another,
    }


@every("lie", lies(2))
def test_a_neighbour_without_a_true_tag_is_verified_by_its_signature(lie: str) -> None:
    machine = honest().clients[0]
    state, _, _ = machine.at(Confirmed)
    quorum = machine.at(Quorum)[1]
    step = machine.inner.receive(state, SERVER, tagged(state, 2, lies(2)[lie]))
    assert 3 not in step.state.confirmed
    assert len(step.state.confirmed) == 7
    assert passes(machine.inner, step.state, quorum, stream("tags"))
    refused(machine.inner, step.state, forged(quorum, [3]), "Member 3 did not sign what we were shown")


def test_a_tag_convinces_without_a_signature() -> None:
    """Only the neighbour itself could have made it, after it recorded the same survivors."""
    machine = honest().clients[0]
    state, quorum, _ = machine.at(Quorum)
    assert state.confirmed == {1, 2, 3, 5, 6, 7, 8, 9}
    assert passes(machine.inner, state, forged(quorum, [1, 2, 3, 5, 6, 7, 8, 9]), stream("tags"))


def test_without_tags_a_client_verifies_the_neighbours_signatures() -> None:
    """The tags may come late, or never. Nothing waits for them."""
    machine = honest().clients[0]
    state, _, _ = machine.at(Confirmed)
    quorum = machine.at(Quorum)[1]
    assert state.confirmed == frozenset()
    assert passes(machine.inner, state, quorum, stream("tags"))
    refused(machine.inner, state, forged(quorum, [5]), "Member 5 did not sign")


@every("change", [lambda tags: tags[1:], lambda tags: (*tags, tags[-1])])
def test_tags_have_the_number_of_surviving_neighbours(change: Any) -> None:
    run = honest()
    state, told, _ = run.clients[0].at(Confirmed)
    refused(run.clients[0].inner, state, Confirmed(tags=change(told.tags)), "a tag of each of 8 neighbours")
    waiting, said, _ = run.server.at(Consistent, client_name(2))
    with pytest.raises(RemoteProtocolError, match="8 tags of 16 bytes") as raised:
        run.server.inner.receive(waiting, client_name(2), replace(said, tags=change(said.tags)))
    assert raised.value.sender == client_name(2)


@every("length", [0, TAG_BYTES - 1, TAG_BYTES + 1])
def test_a_client_whose_tag_has_another_length_loses_its_place(length: int) -> None:
    """A longer one would not fit the message in which its neighbour awaits it."""
    server = honest().server
    state, said, _ = server.at(Consistent, client_name(2))
    lie = put(0, tags=Signature(bytes(length)))(said)
    with pytest.raises(RemoteProtocolError, match="tags of 16 bytes"):
        server.inner.receive(state, client_name(2), lie)


def test_a_client_that_sends_false_tags_stops_nobody() -> None:
    """The server cannot check them. Its neighbours verify its signature, which is good."""
    agreed = agreement(10, corrupt=0.1, dropout=0.3)

    def tell(inner: Any, step: Any) -> Any:
        if not (step.out and isinstance(step.out[0].message, Consistent)):
            return step
        [sent] = step.out
        tags = tuple(Signature(bytes(TAG_BYTES)) for _ in sent.message.tags)
        return replace(step, out=(replace(sent, message=replace(sent.message, tags=tags)),))

    liar, one = Recording(client(3, agreed), lie=tell), Recording(client(0, agreed))
    outcome = aggregate(agreed, machines={client_name(3): liar, client_name(0): one})
    assert_exact(agreed, outcome.server)
    assert {outcome.results[client_name(k)] for k in range(10)} == {"answered"}
    assert one.at(Quorum)[0].confirmed == {1, 2, 4, 5, 6, 7, 8, 9}


def test_of_a_member_that_did_not_sign_no_tag_is_passed_on() -> None:
    """It is opened on the signature of its input alone, as before."""
    server = honest().server
    signings = [one for one in server.seen if isinstance(one[2], Consistent)]
    state, last, _, _ = signings[-1]
    closing = Server(agreement=server.inner.agreement, patience=0).deadline(state)
    absent = server.inner.agreement.roster.numbers[last]
    tags = {one.to[0]: one.message.tags for one in closing.out if isinstance(one.message, Confirmed)}
    assert last not in tags
    assert len(tags) == len(signings) - 1
    for name, of in tags.items():
        own = server.inner.agreement.roster.numbers[name]
        near = [k for k in state.summed.survivors if k != own]
        assert [k for k, tag in zip(near, of, strict=True) if not tag.raw] == [absent]


# What a client verifies in all -------------------------------------------------------------------------


def test_a_client_of_a_complete_graph_verifies_no_signature_at_all() -> None:
    """Boxes vouch for the entries, and tags for the survivors."""
    run, count = honest(), 0
    machine = run.clients[0]

    def verify(*parts: Any) -> None:
        nonlocal count
        count += 1

    agreed = replace(run.agreed, roster=replace(run.agreed.roster, verify=verify))
    watched = replace(machine.inner, agreement=agreed)
    state, roster, _ = machine.at(RosterClosed)
    step = watched.receive(state, SERVER, roster)
    assert step.state.closed.agreement is agreed
    for kind in (Confirmed, Quorum):
        state, message, _ = machine.at(kind)
        held = replace(state.held, closed=replace(state.held.closed, agreement=agreed))
        watched.receive(replace(state, held=held), SERVER, message)
    assert count == 0
