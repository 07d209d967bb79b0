"""The rules of an encrypted sum: its clients sign the cohort and the weights that they were ordered.

The key holder hears both from the server alone, and how few contributions it opens follows from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.ordered_clients import EVERYBODY, ORDERED, PLAN, SENDS, SIZE
from support.tiny_parties import session
from support.tiny_secagg import CHARGE, entropy

from securefl.algorithm.queries import Sum
from securefl.algorithm.weighing import Weights
from securefl.core.acts import RecordAct
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import Commitment, SecretKey
from securefl.core.release import SERVER, Release, ReleaseKey
from securefl.core.wire import Header, decode, encode
from securefl.storage.journal import Journal
from securefl.sums.encrypted.messages import SumRequest
from securefl.sums.encrypted.scheme import (
    Encrypted,
    EncryptingPart,
    OpeningPart,
    input_digest,
)
from securefl.sums.opened import OpenedClient, OpenedKeyHolder, OrderedAgreement
from securefl.sums.scheme import Attempt

PARTIES = session(ORDERED, journal=Journal(random=entropy("rules")))
PLACE = Header(bytes(32), 1, 1, 0)
WAY = Encrypted(replace(PLAN, sum="ckks"))
TOLD = Weights((2, 2, 1, 1, 1, 1), whole=8)


def agreement(weights: Weights = TOLD) -> OrderedAgreement:
    """What a party makes of the attempt that heard of these weights."""
    attempt = Attempt(
        header=PLACE,
        sums=(Sum(SENDS, SIZE),),
        initial=0,
        number=0,
        again=0,
        cohort=EVERYBODY,
        weights=weights,
        task=bytes(32),
    )
    return WAY.agreement(attempt, PARTIES.directory)


def signature(of: OrderedAgreement, name: str, sealed: bytes) -> Any:
    """Of a client whose order led to this agreement, on its ciphertext."""
    part = EncryptingPart({"own": lambda integers: sealed})
    machine = OpenedClient(identity=PARTIES.identities[name], agreement=of, signers=4, part=part)
    step = machine.provide(machine.begin().state, SecretKey(bytes(32)))
    assert step.need is not None
    hidden = step.need.order.conceal["own"](np.zeros(SIZE, np.int64))
    release = Release(
        key=ReleaseKey(name, PLACE.session, PLACE.round, PLACE.stage, PLACE.attempt, "own"),
        unit="record",
        form="encrypted",
        charge=CHARGE,
        _numbers=np.zeros(0),
        _sealed=hidden,
    )
    [envelope] = machine.provide(step.state, (release,)).out
    return envelope.message.signature


def asked(holder: OrderedAgreement, clients: OrderedAgreement) -> Any:
    """What the key holder wants to do when it is asked for a sum of clients under their agreement."""
    sealed = [f"the ciphertext of {name}".encode() for name in EVERYBODY]
    request = SumRequest(
        items=(b"the blinded total",),
        task=clients.task,
        members=ORDERED,
        inputs=tuple(Commitment(input_digest([one])) for one in sealed),
        signatures=tuple(signature(clients, *one) for one in zip(EVERYBODY, sealed, strict=True)),
    )
    machine = OpenedKeyHolder(agreement=holder, least=4, part=OpeningPart(()))
    state = machine.begin().state
    came = decode(encode(PLACE, request), PLACE, machine.expects(state).kinds, SERVER)
    step = machine.receive(state, SERVER, came)
    assert step.need is not None
    return step.need.order


def test_a_key_holder_that_heard_what_was_ordered_goes_on() -> None:
    order = asked(agreement(), agreement())
    assert isinstance(order, RecordAct)
    assert order.act == "open"


@every(
    "lie",
    [
        replace(TOLD, draws=(1, 1, 1, 1, 2, 2)),
        replace(TOLD, draws=(2, 2, 1, 1, 1, 1, 1)),
        replace(TOLD, draws=(2, 2, 1, 1, 1)),
        replace(TOLD, whole=9),
        replace(TOLD, whole=0),
        Weights(TOLD.draws, records=8),
    ],
)
def test_a_key_holder_that_heard_of_other_weights_opens_nothing(lie: Weights) -> None:
    with pytest.raises(RemoteProtocolError, match="did not sign"):
        asked(agreement(lie), agreement())


def test_a_key_holder_that_heard_of_another_cohort_opens_nothing() -> None:
    """With the weights alike: a smaller cohort would have fewer contributions opened."""
    for ordered in (5, 7):
        with pytest.raises(RemoteProtocolError, match="did not sign"):
            asked(replace(agreement(), ordered=ordered), agreement())


def test_the_size_of_the_cohort_is_that_of_its_draws() -> None:
    assert agreement().ordered == len(TOLD.draws)
    assert agreement(replace(TOLD, draws=(1,) * 9)).ordered == 9
