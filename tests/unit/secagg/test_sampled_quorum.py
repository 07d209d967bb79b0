"""Quorums of which a client verifies a sample, and tags instead of signatures: the attacks on both."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from math import comb
from typing import Any

import pytest
from scipy.stats import binom, chisquare
from support.every import every
from support.liars import swapped
from support.recorded import honest, refused, sparse, watched
from support.tiny_secagg import TERMS, Host

from securefl.accounting.ledger import Ledger
from securefl.core.entropy import Random, drawn
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import SecretKey, Signature
from securefl.core.messages import client_name
from securefl.core.release import SERVER
from securefl.core.wire import encode
from securefl.engine.drive import Driver, Packet
from securefl.engine.inprocess import SimulationCache
from securefl.secagg import Server
from securefl.secagg.agreement import TAG_BYTES
from securefl.secagg.messages import Confirmed, Consistent, MaskedInput, Quorum, RosterClosed, Unmask
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
    assert {sample_size(40, needed, bits) for needed in (0, -1, -50)} == {0}, "neighbours make up the quorum"


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


def strangers(state: Any, quorum: Quorum) -> list[int]:
    near = {0, *state.held.closed.graph[0]}
    return [member for member in quorum.signers if member not in near]


QUORUM, NEAR = 32, 20
"""Of the sparse run: so many signatures are needed, and so many neighbours of client 0 survive."""
NEEDED = QUORUM - NEAR - 1


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
    assert (len(rest), sample_size(len(rest), NEEDED)) == (39, NEEDED)
    assert agreed.parameters.quorum == QUORUM
    lie, random, turns = forged(quorum, rest[3:4]), stream("caught"), 200
    caught = sum(not passes(one.inner, state, lie, random) for _ in range(turns))
    low, high = binom(turns, NEEDED / len(rest)).interval(1 - FALSE_ALARM)
    assert low <= caught <= high


def test_clients_of_one_process_verify_a_list_once_and_whole() -> None:
    """More than a sample, so nobody draws one."""
    _, one, _ = sparse()
    state, quorum, _ = one.at(Quorum)
    machine, state, checked = watched(one.inner, state, known=SimulationCache())
    asked: list[int] = []
    for _ in range(3):
        assert passes(machine, state, quorum, asked.append)
    assert (len(checked), len(set(checked)), asked) == (len(quorum.signers), len(quorum.signers), [])


def test_clients_of_one_process_sample_a_list_with_a_forged_signature() -> None:
    """As clients apart, they catch it as often as their samples have it: they behave alike."""
    _, one, _ = sparse()
    state, quorum, _ = one.at(Quorum)
    rest = strangers(state, quorum)
    lie, turns = forged(quorum, rest[3:4]), 100
    machine, state, checked = watched(one.inner, state, known=SimulationCache())
    alone, together = stream("alike"), stream("alike")
    seen = [passes(one.inner, one.at(Quorum)[0], lie, alone) for _ in range(turns)]
    assert [passes(machine, state, lie, together) for _ in range(turns)] == seen
    assert 0 < seen.count(False) < turns
    assert len(checked) <= len(quorum.signers) + turns * NEEDED, "the whole list is verified once"


def test_a_list_with_one_true_signature_too_few_is_always_refused_in_a_small_cohort() -> None:
    """No sample below the quorum keeps 2^-56 there, so as many are verified as are needed."""
    _, one, _ = sparse()
    state, quorum, _ = one.at(Quorum)
    rest = strangers(state, quorum)
    too_few, enough = forged(quorum, rest[NEEDED - 1 :]), forged(quorum, rest[NEEDED:])
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


# Which signatures a client verifies --------------------------------------------------------------------


def shown(near: int, far: int, *, own: bool = True, others: str = "") -> tuple[Any, Any, Quorum]:
    """What a client of a sparse cohort is shown: so many neighbours as signers, and strangers beside them.

    others: of whom the signature on its input is shown, "near" or "far". own: whether we stand among the
    signers. No tag came.
    """
    _, machine, server = sparse()
    state, quorum, _ = machine.at(Quorum)
    apart = strangers(state, quorum)
    neighbours = [k for k in quorum.signers if k and k not in apart]
    rest = {"": [], "near": neighbours[near:], "far": apart[far:][:3]}[others]
    signed = dict(zip(quorum.signers, quorum.signatures, strict=True))
    signers = sorted([*neighbours[:near], *apart[:far], *([0] if own else [])])
    inputs = [server.at(MaskedInput, client_name(k))[1].signature for k in rest]
    told = Quorum(
        signers=tuple(signers),
        signatures=tuple(signed[k] for k in signers),
        others=tuple(rest),
        inputs=tuple(inputs),
    )
    return machine.inner, replace(state, confirmed=frozenset()), told


def verified(machine: Any, state: Any, quorum: Quorum) -> int:
    """How many signatures the client verifies before it opens its shares."""
    machine, state, checked = watched(machine, state)
    assert [type(one.message) for one in machine.receive(state, SERVER, quorum).out] == [Unmask]
    return len(checked)


@every(
    ("told", "count"),
    [
        # a quorum less its own signature, however many strangers signed beside
        (lambda: shown(NEAR, NEEDED), QUORUM - 1),
        (lambda: shown(NEAR, NEEDED + 1), QUORUM - 1),
        (lambda: shown(NEAR, NEEDED + 6), QUORUM - 1),
        (lambda: shown(NEAR, NEEDED + 1, own=False), QUORUM),
        # a neighbour that did not sign is verified by its input: nobody holds shares of a stranger
        (lambda: shown(NEAR - 2, NEEDED + 2, others="near"), QUORUM - 1 + 2),
        (lambda: shown(NEAR, NEEDED + 2, others="far"), QUORUM - 1),
    ],
)
def test_a_client_verifies_what_its_opening_hangs_on(told: Any, count: int) -> None:
    assert verified(*told()) == count


def test_a_neighbour_that_signed_is_not_verified_twice() -> None:
    machine, state, told = shown(NEAR, NEEDED)
    [twice, *_] = state.held.closed.graph[0]
    assert verified(machine, state, replace(told, others=(twice,), inputs=(FORGED,))) == QUORUM - 1


def test_a_neighbour_whose_tag_holds_is_not_verified() -> None:
    """All that is left is the sample of the strangers; in so small a cohort it is as many as are needed."""
    machine, state, told = shown(NEAR, NEEDED + 6)
    tagged = machine.receive(state, SERVER, sparse()[1].at(Confirmed)[1]).state
    assert len(tagged.confirmed) == NEAR
    for some in (tagged.confirmed, frozenset(sorted(tagged.confirmed)[:4])):
        assert verified(machine, replace(tagged, confirmed=some), told) == QUORUM - 1 - len(some)


def test_the_threshold_counts_true_signatures_beside_the_sample() -> None:
    """A list of exactly the quorum is verified whole; one signature less is refused unseen."""
    machine, state, told = shown(NEAR, NEEDED)
    for member in strangers(state, told):
        assert not passes(machine, state, forged(told, [member]), stream("exact"))
    refused(machine, *shown(NEAR, NEEDED - 1)[1:], "Expected 32 signatures on one set, got 31")


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


@every("change", [lambda tags: tags[1:], lambda tags: (*tags, tags[-1])])
def test_tags_have_the_number_of_surviving_neighbours(change: Any) -> None:
    machine = honest().clients[0]
    state, told, _ = machine.at(Confirmed)
    refused(machine.inner, state, Confirmed(tags=change(told.tags)), "a tag of each of 8 neighbours")


@every(
    "change",
    [
        lambda tags: tags[1:],
        lambda tags: (*tags, tags[-1]),
        # a longer one would not fit the message in which its neighbour awaits it
        *(lambda tags, cut=cut: swapped(tags, 0, Signature(bytes(TAG_BYTES + cut))) for cut in (-1, 1)),
        lambda tags: swapped(tags, 0, Signature(b"")),
    ],
)
def test_a_client_whose_tags_have_another_form_loses_its_place(change: Any) -> None:
    server = honest().server
    state, said, _ = server.at(Consistent, client_name(2))
    with pytest.raises(RemoteProtocolError, match=f"{client_name(2)} .*8 tags of 16 bytes"):
        server.inner.receive(state, client_name(2), replace(said, tags=change(said.tags)))


def test_whoever_signed_no_set_is_passed_no_tag_and_opens_nothing() -> None:
    """It is opened on the signature of its input alone. The server goes on with the signers."""
    server = honest().server
    agreed, signings = server.inner.agreement, [one for one in server.seen if isinstance(one[2], Consistent)]
    state, last, _, _ = signings[-1]
    closing = Server(agreement=agreed, patience=0).deadline(state)
    absent, quorum = agreed.roster.numbers[last], closing.out[-1]
    tags = {one.to[0]: one.message.tags for one in closing.out if isinstance(one.message, Confirmed)}
    assert {*tags} == {*quorum.to} == {sender for _, sender, *_ in signings[:-1]}
    for name, of in tags.items():
        near = [k for k in state.summed.survivors if k != agreed.roster.numbers[name]]
        assert [k for k, tag in zip(near, of, strict=True) if not tag.raw] == [absent]
    with pytest.raises(RemoteProtocolError, match="dropped out before"):
        server.inner.receive(closing.state, last, server.at(Unmask, last)[1])
    there = quorum.to[0]
    assert server.inner.receive(closing.state, there, server.at(Unmask, there)[1]).state.answers


def test_a_client_of_a_complete_graph_verifies_no_signature_at_all() -> None:
    """Boxes vouch for the entries, and tags for the survivors."""
    one = honest().clients[0]
    for kind in (Confirmed, Quorum):
        state, message, _ = one.at(kind)
        machine, state, checked = watched(one.inner, state)
        machine.receive(state, SERVER, message)
        machine.receive(one.at(RosterClosed)[0], SERVER, one.at(RosterClosed)[1])
        assert checked == []
