"""The key holder of encrypted sums: whose signatures it wants, and that it opens one total of a question.

Attack (d): its reply is late, the server goes on without one client and asks for a second total; the
difference of the two would be that client's input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.every import every
from support.tiny_secagg import identity

from securefl.core.acts import RecordAct
from securefl.core.agreement import Agreement, Roster, Vector
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import Commitment, Signature
from securefl.core.messages import REFUSED, OpenReply
from securefl.core.release import SERVER
from securefl.core.wire import Header
from securefl.storage.journal import Journal
from securefl.sums.encrypted.messages import SumRequest
from securefl.sums.encrypted.scheme import OpeningPart, input_digest, signed_input
from securefl.sums.opened import Open, OpenedKeyHolder

SESSION = hashlib.sha256(b"a session").digest()
MEMBERS, LEAST = 6, 4
EVERYBODY = tuple(range(MEMBERS))
FEWER = EVERYBODY[:-1]


def agreement(
    attempt: int = 1, *, number: int = 1, stage: int = 0, once: bool = False, ask: int = 0, again: int = 0
) -> Agreement:
    vector = Vector(name="update", length=3, bits=32, bound=100, once=once, ask=ask, again=again)
    return Agreement(
        header=Header(SESSION, number, attempt, stage),
        roster=Roster(tuple(identity(k).member() for k in EVERYBODY)),
        vectors=(vector,),
        plan=hashlib.sha256(b"plan").digest(),
        task=hashlib.sha256(b"task").digest(),
    )


def request(of: Agreement, members: Sequence[int] = EVERYBODY) -> SumRequest:
    """What an honest server asks for: the total of these members, each of whom signed its ciphertexts."""
    digests = [input_digest([b"the ciphertext of %d" % k]) for k in members]
    return SumRequest(
        items=(b"the blinded total of " + repr(tuple(members)).encode(),),
        task=of.task,
        members=tuple(members),
        inputs=tuple(map(Commitment, digests)),
        signatures=tuple(signed(of, k, digest) for k, digest in zip(members, digests, strict=True)),
    )


def signed(of: Agreement, member: int, digest: bytes, by: int | None = None) -> Signature:
    signer = identity(member if by is None else by)
    return signer.signing.sign(signed_input(of, member, digest))


def machine_of(of: Agreement) -> OpenedKeyHolder:
    """Its machine for an attempt. No key is at work here, so no opener is asked."""
    return OpenedKeyHolder(agreement=of, least=LEAST, part=OpeningPart(()))


@dataclass
class Holder:
    """The key holder with its record; `decrypted` counts how often its key was at work."""

    journal: Journal
    decrypted: list[tuple[bytes, ...]] = field(default_factory=list)

    def asked(self, of: Agreement, what: SumRequest) -> OpenReply:
        """A machine for the attempt, as after a restart, is shown one request."""
        machine = machine_of(of)
        return self.shown(machine, machine.begin().state, what)[1]

    def shown(self, machine: OpenedKeyHolder, state: Any, what: SumRequest) -> tuple[Any, OpenReply]:
        step = machine.receive(state, SERVER, what)
        while step.need is not None:
            order = step.need.order
            if isinstance(order, RecordAct):
                step = machine.provide(step.state, self.journal.record([order])[0])
                continue
            assert isinstance(order, Open)
            self.decrypted.append(order.request.items)
            items = tuple(hashlib.sha256(item).digest() for item in order.request.items)
            step = machine.provide(step.state, OpenReply(items=items))
        [envelope] = step.out
        assert envelope.to == (SERVER,)
        return step.state, envelope.message


@pytest.fixture
def holder() -> Holder:
    return Holder(Journal())


def refused(reply: OpenReply) -> bool:
    return reply == OpenReply(items=(REFUSED,))


# One total of a question ------------------------------------------------------------------------


@every(
    "second",
    [agreement(), agreement(2), agreement(1, stage=1), agreement(7, stage=3)],
)
@every("restarted", [False, True])
def test_a_late_reply_and_a_second_total(second: Agreement, restarted: bool, tmp_path: Path) -> None:
    """(d) The first total is open at the key holder, the server saw no reply, and asks without client 5."""
    holder = Holder(Journal(tmp_path / "acts.sqlite"))
    assert not refused(holder.asked(agreement(), request(agreement())))
    if restarted:
        holder.journal.close()
        holder.journal = Journal(tmp_path / "acts.sqlite")
    assert refused(holder.asked(second, request(second, FEWER)))
    assert len(holder.decrypted) == 1, "nothing was decrypted for it"


def test_without_the_record_the_second_total_is_opened() -> None:
    """So the test above can fail."""
    for attempt, members in ((1, EVERYBODY), (2, FEWER)):
        forgetful = Holder(Journal())
        of = agreement(attempt)
        assert not refused(forgetful.asked(of, request(of, members)))


def test_a_restart_opens_the_same_total_again(tmp_path: Path) -> None:
    """The same request gets the same bytes, over restarts too, and after a refused one."""
    of = agreement()
    holder = Holder(Journal(tmp_path / "acts.sqlite"))
    first = holder.asked(of, request(of))
    assert not refused(first)
    assert refused(holder.asked(of, request(of, FEWER)))
    holder.journal.close()
    holder.journal = Journal(tmp_path / "acts.sqlite")
    assert holder.asked(of, request(of)) == first


def test_one_machine_answers_one_request() -> None:
    """A doubled request costs nothing; another one is the server's fault."""
    of, holder = agreement(), Holder(Journal())
    machine = machine_of(of)
    state, first = holder.shown(machine, machine.begin().state, request(of))
    state, again = holder.shown(machine, state, request(of))
    assert again == first
    assert len(holder.decrypted) == 1
    with pytest.raises(RemoteProtocolError, match="one total of a sum"):
        machine.receive(state, SERVER, request(of, FEWER))


@pytest.mark.parametrize(
    "changed",
    [
        {"items": (b"another blinding",)},
        {"items": (b"", b"")},
        {"members": FEWER, "inputs": 5, "signatures": 5},
    ],
)
def test_another_request_for_the_same_members_is_another_total(
    changed: dict[str, Any], holder: Holder
) -> None:
    of = agreement()
    asked = request(of)
    assert not refused(holder.asked(of, asked))
    cut = {
        key: getattr(asked, key)[:given] if isinstance(given, int) else given
        for key, given in changed.items()
    }
    other = replace(asked, **cut)
    assert set(holder.asked(of, other).items) == {REFUSED}
    assert len(holder.decrypted) == 1


def test_other_questions_are_opened_and_rounds_go_up(holder: Holder) -> None:
    for of in (agreement(), agreement(2, again=1), agreement(ask=1), agreement(number=2)):
        assert not refused(holder.asked(of, request(of)))
    assert refused(holder.asked(agreement(3), request(agreement(3), FEWER))), "round 1 is over"


def test_a_value_that_cannot_change_is_opened_once_in_a_session(holder: Holder) -> None:
    first = agreement(once=True)
    assert not refused(holder.asked(first, request(first)))
    for of in (agreement(number=2, once=True), agreement(number=3, ask=1, once=True)):
        assert refused(holder.asked(of, request(of, FEWER)))
    assert len(holder.decrypted) == 1


# Signatures -------------------------------------------------------------------------------------


def altered(what: str) -> SumRequest:
    """A request with one defect, of the attempt `agreement()`."""
    of = agreement()
    good = request(of)
    _, *rest = good.signatures
    digest = good.inputs[0].raw
    match what:
        case "fewer than the least members":
            return request(of, EVERYBODY[: LEAST - 1])
        case "a doubled member":
            return request(of, (0, 0, 1, 2, 3))
        case "members out of order":
            return request(of, (1, 0, 2, 3))
        case "a member outside the roster":
            return replace(good, members=(*FEWER, MEMBERS))
        case "a member that no four bytes hold":
            return replace(good, members=(*FEWER, 2**32))
        case "a member below the first":
            return replace(good, members=(-1, *EVERYBODY[1:]))
        case "signed in another attempt":
            return replace(good, signatures=(signed(agreement(2), 0, digest), *rest))
        case "signed under another plan":
            plan = hashlib.sha256(b"another plan").digest()
            return replace(good, signatures=(signed(replace(of, plan=plan), 0, digest), *rest))
        case "signed another task":
            other = replace(of, task=hashlib.sha256(b"another task").digest())
            return replace(good, signatures=(signed(other, 0, digest), *rest))
        case "a task that nobody signed":
            return replace(good, task=hashlib.sha256(b"another task").digest())
        case "a task of one bit more":
            return replace(good, task=bytes([good.task[0] ^ 1]) + good.task[1:])
        case "a task that is none":
            return replace(good, task=good.task[:-1])
        case "signed by another member":
            return replace(good, signatures=(signed(of, 0, digest, by=1), *rest))
        case "the signature of another member":
            return replace(good, signatures=(rest[0], *rest))
        case "signed by a stranger":
            return replace(good, signatures=(signed(of, 0, digest, by=77), *rest))
        case "an altered digest":
            changed = bytes([digest[0] ^ 1]) + digest[1:]
            return replace(good, inputs=(Commitment(changed), *good.inputs[1:]))
        case "another's digest":
            return replace(good, inputs=(good.inputs[1], *good.inputs[1:]))
        case "no signature of one":
            return replace(good, signatures=tuple(rest))
        case "no digest of one":
            return replace(good, inputs=good.inputs[1:])
    raise AssertionError(what)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("fewer than the least members", "at least 4 ascending"),
        ("a doubled member", "ascending"),
        ("members out of order", "ascending"),
        ("a member outside the roster", "members of the pinned roster"),
        ("a member that no four bytes hold", "members of the pinned roster"),
        ("a member below the first", "members of the pinned roster"),
        ("signed in another attempt", "member 0 did not sign"),
        ("signed under another plan", "member 0 did not sign"),
        ("signed another task", "member 0 did not sign"),
        ("a task that nobody signed", "member 0 did not sign"),
        ("a task of one bit more", "member 0 did not sign"),
        ("a task that is none", "a task of 32 bytes"),
        ("signed by another member", "member 0 did not sign"),
        ("the signature of another member", "member 0 did not sign"),
        ("signed by a stranger", "member 0 did not sign"),
        ("an altered digest", "member 0 did not sign"),
        ("another's digest", "member 0 did not sign"),
        ("no signature of one", "a signature for each"),
        ("no digest of one", "a signature for each"),
    ],
)
def test_signatures_that_do_not_stand_for_the_total(what: str, said: str, holder: Holder) -> None:
    """It is refused before the record is asked, so the honest request after it is opened."""
    of = agreement()
    with pytest.raises(RemoteProtocolError, match=said) as caught:
        holder.asked(of, altered(what))
    assert (caught.value.sender, caught.value.phase) == (SERVER, "opening")
    assert not holder.decrypted
    assert not refused(holder.asked(of, request(of)))


def test_signatures_of_one_attempt_do_not_stand_for_another_set(holder: Holder) -> None:
    """Replayed over a later attempt's roster, or for members who signed something else."""
    smaller = replace(agreement(2), roster=Roster(tuple(identity(k).member() for k in EVERYBODY[1:])))
    first = request(agreement())
    replayed = replace(first, members=FEWER, inputs=first.inputs[1:], signatures=first.signatures[1:])
    with pytest.raises(RemoteProtocolError, match="did not sign"):
        holder.asked(smaller, replayed)


def test_only_the_server_asks(holder: Holder) -> None:
    machine = machine_of(agreement())
    with pytest.raises(RemoteProtocolError, match="from the server"):
        machine.receive(machine.begin().state, "client-0001", request(agreement()))
