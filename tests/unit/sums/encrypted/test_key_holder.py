"""The key holder of encrypted sums: whose signatures it wants before it opens a total.

That it opens one total of a question: tests/properties/test_one_set_per_question.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.tiny_secagg import identity

from securefl.core.acts import RecordAct
from securefl.core.agreement import Agreement, Roster, Vector
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import Commitment, Signature
from securefl.core.release import SERVER
from securefl.core.wire import Header
from securefl.sums.encrypted.messages import SumRequest
from securefl.sums.encrypted.scheme import OpeningPart, input_digest, signed_input
from securefl.sums.opened import OpenedKeyHolder

SESSION = hashlib.sha256(b"a session").digest()
MEMBERS, LEAST = 6, 4
EVERYBODY = tuple(range(MEMBERS))
FEWER = EVERYBODY[:-1]


def agreement(attempt: int = 1) -> Agreement:
    return Agreement(
        header=Header(SESSION, 1, attempt, 0),
        roster=Roster(tuple(identity(k).member() for k in EVERYBODY)),
        vectors=(Vector(name="update", length=3, bits=32, bound=100),),
        plan=hashlib.sha256(b"plan").digest(),
        task=hashlib.sha256(b"task").digest(),
    )


def asked(of: Agreement, what: SumRequest) -> Any:
    """What its machine for an attempt asks of its host, when it is shown one request."""
    machine = OpenedKeyHolder(agreement=of, least=LEAST, part=OpeningPart(()))
    step = machine.receive(machine.begin().state, SERVER, what)
    assert step.need is not None
    return step.need.order


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


# Signatures -------------------------------------------------------------------------------------


def altered(of: Agreement) -> dict[str, tuple[SumRequest, str]]:
    """Requests with one defect, and what is said of it."""
    good = request(of)
    _, *rest = good.signatures
    digest, elsewhere = good.inputs[0].raw, hashlib.sha256(b"elsewhere").digest()
    return {
        "fewer than the least members": (request(of, EVERYBODY[: LEAST - 1]), "at least 4 ascending"),
        "a doubled member": (request(of, (0, 0, 1, 2, 3)), "ascending"),
        "members out of order": (request(of, (1, 0, 2, 3)), "ascending"),
        "a member outside the roster": (
            replace(good, members=(*FEWER, MEMBERS)),
            "members of the pinned roster",
        ),
        "a member that no four bytes hold": (
            replace(good, members=(*FEWER, 2**32)),
            "members of the pinned roster",
        ),
        "a member below the first": (
            replace(good, members=(-1, *EVERYBODY[1:])),
            "members of the pinned roster",
        ),
        "signed in another attempt": (
            replace(good, signatures=(signed(agreement(2), 0, digest), *rest)),
            "member 0 did not sign",
        ),
        "signed under another plan": (
            replace(good, signatures=(signed(replace(of, plan=elsewhere), 0, digest), *rest)),
            "member 0 did not sign",
        ),
        "signed another task": (
            replace(good, signatures=(signed(replace(of, task=elsewhere), 0, digest), *rest)),
            "member 0 did not sign",
        ),
        "a task that nobody signed": (replace(good, task=elsewhere), "member 0 did not sign"),
        "a task of one bit more": (
            replace(good, task=bytes([good.task[0] ^ 1]) + good.task[1:]),
            "member 0 did not sign",
        ),
        "a task that is none": (replace(good, task=good.task[:-1]), "a task of 32 bytes"),
        "signed by another member": (
            replace(good, signatures=(signed(of, 0, digest, by=1), *rest)),
            "member 0 did not sign",
        ),
        "the signature of another member": (
            replace(good, signatures=(rest[0], *rest)),
            "member 0 did not sign",
        ),
        "signed by a stranger": (
            replace(good, signatures=(signed(of, 0, digest, by=77), *rest)),
            "member 0 did not sign",
        ),
        "an altered digest": (
            replace(good, inputs=(Commitment(bytes([digest[0] ^ 1]) + digest[1:]), *good.inputs[1:])),
            "member 0 did not sign",
        ),
        "another's digest": (
            replace(good, inputs=(good.inputs[1], *good.inputs[1:])),
            "member 0 did not sign",
        ),
        "no signature of one": (replace(good, signatures=tuple(rest)), "a signature for each"),
        "no digest of one": (replace(good, inputs=good.inputs[1:]), "a signature for each"),
    }


def test_signatures_that_do_not_stand_for_the_total() -> None:
    """It is refused before the record is asked, as it is of an honest request."""
    of = agreement()
    assert isinstance(asked(of, request(of)), RecordAct)
    for what, (bad, said) in altered(of).items():
        with pytest.raises(RemoteProtocolError, match=said) as caught:
            pytest.fail(f"{what}: {asked(of, bad)}")
        assert (caught.value.sender, caught.value.phase) == (SERVER, "opening"), what


def test_signatures_of_one_attempt_do_not_stand_for_another_set() -> None:
    """Replayed over a later attempt's roster, or for members who signed something else."""
    smaller = replace(agreement(2), roster=Roster(tuple(identity(k).member() for k in EVERYBODY[1:])))
    first = request(agreement())
    replayed = replace(first, members=FEWER, inputs=first.inputs[1:], signatures=first.signatures[1:])
    with pytest.raises(RemoteProtocolError, match="did not sign"):
        asked(smaller, replayed)
