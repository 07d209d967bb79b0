"""The key holder of encrypted sums: whose signatures it wants before it opens a total.

Its clients sign the cohort and the weights that they were ordered. The key holder hears both from the server
alone, and how few contributions it opens follows from them. That it opens one total of a question:
tests/properties/test_one_set_per_question.py. What else each key holder refuses of a set of members:
tests/unit/sums/two_server/test_two_server.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.every import every
from support.liars import copied, put
from support.ordered_clients import EVERYBODY, ORDERED, PLAN, SENDS, SIZE
from support.tiny_parties import session
from support.tiny_secagg import entropy, told

from securefl.algorithm.queries import Sum
from securefl.algorithm.weighing import Weights
from securefl.core.acts import RecordAct
from securefl.core.agreement import Roster
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import Commitment, Signature
from securefl.core.release import SERVER
from securefl.core.wire import Header
from securefl.storage.journal import Journal
from securefl.sums.encrypted.messages import SumRequest
from securefl.sums.encrypted.scheme import Encrypted, OpeningPart, input_digest, signed_input
from securefl.sums.opened import OpenedKeyHolder, OrderedAgreement
from securefl.sums.scheme import Attempt

PARTIES = session(ORDERED, journal=Journal(random=entropy("rules")))
WEIGHTS = Weights((2, 2, 1, 1, 1, 1), whole=8)
LEAST = 4


def agreement(
    weights: Weights = WEIGHTS, cohort: Sequence[str] = EVERYBODY, attempt: int = 1, task: str = "task"
) -> OrderedAgreement:
    """What a party makes of the attempt that heard of these weights."""
    one = Attempt(
        header=Header(bytes(32), 1, attempt, 0),
        sums=(Sum(SENDS, SIZE),),
        initial=0,
        number=0,
        again=0,
        cohort=tuple(cohort),
        weights=weights,
        task=told(task),
    )
    return Encrypted(replace(PLAN, sum="ckks")).agreement(one, PARTIES.directory)


def asked(of: Any, what: SumRequest) -> Any:
    """What its machine for an attempt asks of its host, when it is shown one request."""
    machine = OpenedKeyHolder(agreement=of, least=LEAST, part=OpeningPart(()))
    step = machine.receive(machine.begin().state, SERVER, what)
    assert step.need is not None
    return step.need.order


def signed(of: Any, member: int, by: int | None = None) -> Signature:
    """On the digest of its ciphertext."""
    signer = PARTIES.identities[EVERYBODY[member if by is None else by]]
    return signer.signing.sign(signed_input(of, member, digest_of(member)))


def digest_of(member: int) -> bytes:
    return input_digest([b"the ciphertext of %d" % member])


def request(of: Any, members: Sequence[int] = ORDERED) -> SumRequest:
    """What an honest server asks for: the total of these members, each of whom signed its ciphertexts."""
    return SumRequest(
        items=(b"the blinded total of " + repr(tuple(members)).encode(),),
        task=of.task,
        members=tuple(members),
        inputs=tuple(Commitment(digest_of(k)) for k in members),
        signatures=tuple(signed(of, k) for k in members),
    )


def altered(of: OrderedAgreement) -> list[SumRequest]:
    """Requests in which one member's signature is on something else."""
    good = request(of)
    elsewhere = (agreement(attempt=2), replace(of, plan=told("another")), agreement(task="another"))
    return [
        *(put(0, signatures=signed(other, 0))(good) for other in elsewhere),
        put(0, signatures=signed(of, 0, by=1))(good),
        copied(1, 0, "signatures")(good),
        copied(1, 0, "inputs")(good),
        put(0, inputs=Commitment(bytes(32)))(good),
        replace(good, task=told("another")),
    ]


def test_signatures_that_do_not_stand_for_the_total() -> None:
    """It is refused before the record is asked, as it is of an honest request."""
    of = agreement()
    assert isinstance(asked(of, request(of)), RecordAct)
    too_few = (request(of, ORDERED[: LEAST - 1]), "at least 4 ascending")
    for bad, said in (too_few, *((one, "member 0 did not sign") for one in altered(of))):
        with pytest.raises(RemoteProtocolError, match=said) as caught:
            asked(of, bad)
        assert (caught.value.sender, caught.value.phase) == (SERVER, "opening")


def test_signatures_of_one_attempt_do_not_stand_for_another_set() -> None:
    """Replayed over a later attempt's roster, or for members who signed something else."""
    of, first = agreement(), request(agreement())
    smaller = replace(agreement(attempt=2), roster=Roster(of.roster.members[1:]))
    rest = {part: getattr(first, part)[1:] for part in ("inputs", "signatures")}
    with pytest.raises(RemoteProtocolError, match="did not sign"):
        asked(smaller, replace(first, members=ORDERED[:-1], **rest))


@every(
    "lie",
    [
        *(agreement(replace(WEIGHTS, draws=draws)) for draws in ((1, 1, 1, 1, 2, 2), (2, 2, 1, 1, 1, 1, 1))),
        *(agreement(replace(WEIGHTS, whole=whole)) for whole in (9, 0)),
        agreement(Weights(WEIGHTS.draws, records=8)),
        # with the weights alike: a smaller cohort would have fewer contributions opened
        *(replace(agreement(), ordered=ordered) for ordered in (5, 7)),
    ],
)
def test_a_key_holder_that_heard_of_another_order_opens_nothing(lie: OrderedAgreement) -> None:
    with pytest.raises(RemoteProtocolError, match="did not sign"):
        asked(lie, request(agreement()))


def test_the_size_of_the_cohort_is_that_of_its_draws() -> None:
    assert agreement().ordered == len(WEIGHTS.draws)
    assert agreement(replace(WEIGHTS, draws=(1,) * 9)).ordered == 9
