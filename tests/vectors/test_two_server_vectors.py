"""Both implementations of two-server sums give the bytes of two_server/sum.json, and refuse what it refuses.

`PYTHONPATH=tests python tests/vectors/test_two_server_vectors.py` writes the file, by the second
implementation; do so only together with a new version of a label. Randomness is SHAKE-256 of labels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from reference import second_two_server as second
from reference.second_secagg import Refused, Vector, fields, sha256, sign, x25519_public
from support.every import every

from securefl.accounting.events import NO_COST
from securefl.algorithm.plan import Plan
from securefl.algorithm.weighing import Weights
from securefl.core import agreement
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import Commitment, PublicKey, SecretKey, Share, Signature
from securefl.core.release import KEY_HOLDER, SERVER, Delivered, Release, ReleaseKey
from securefl.core.signing import AgreementKey, SigningKey
from securefl.core.wire import Header
from securefl.sums.opened import OpenedClient, OpenedKeyHolder, OpenedServer
from securefl.sums.two_server.agreement import Agreement, request_digest
from securefl.sums.two_server.messages import PaddedInput, PadReply, PadRequest
from securefl.sums.two_server.scheme import PaddingPart, PadsPart, UnpaddingPart

FILE = Path(__file__).parent / "two_server" / "sum.json"
MEMBERS, LEAST = 4, 3
# name, length, bits, bound, ask, again, once
COLUMNS = ("name", "length", "bits", "bound", "ask", "again", "once", "number")
VECTORS = (
    ("update", 5, 32, 10**6, 0, 0, False, 0),
    ("count", 3, 20, 100, 0, 2, False, 1),
    ("wide", 2, 61, 2**50, 1, 0, True, 0),
)
VALUES = [
    [[(k + 1) * (-1) ** i * bound // (i + 5) for i in range(length)] for _, length, _, bound, *_ in VECTORS]
    for k in range(MEMBERS)
]


def drawn(*labels: str | int) -> bytes:
    return hashlib.shake_256("/".join(map(str, ("two-server", *labels))).encode()).digest(32)


def public(secret: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


LASTING, SERVER_OWN = drawn("key holder"), drawn("server")
TERMS = second.Terms(
    session=drawn("session"),
    round=7,
    attempt=1,
    stage=2,
    members=tuple(
        (f"client-{k:04d}", public(drawn("identity", k)), x25519_public(drawn("channel", k)))
        for k in range(MEMBERS)
    ),
    vectors=tuple(Vector(*row) for row in VECTORS),
    plan=drawn("plan"),
    task=drawn("task"),
    holder=x25519_public(second.box_key(LASTING)),
    server=x25519_public(SERVER_OWN),
    draws=(2, 1, 1, 3, 1),
    whole=8,
    records=0,
)


# By the second implementation -------------------------------------------------------------------


def said(member: int, terms: second.Terms = TERMS) -> second.Input:
    own = (drawn("identity", member), drawn("secret", member))
    return second.padded(terms, member, *own, VALUES[member])


def asked(inputs: dict[int, second.Input], terms: second.Terms = TERMS) -> second.Request:
    return second.Request(
        task=terms.task,
        members=tuple(inputs),
        boxes=tuple(box for one in inputs.values() for box in one.boxes),
        inputs=tuple(sha256(fields(*one.vectors)) for one in inputs.values()),
        signatures=tuple(one.signature for one in inputs.values()),
    )


def plain(value: Any) -> Any:
    """As JSON has it: bytes in hexadecimal."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.hex() if isinstance(value, bytes) else value


def positive() -> dict[str, Any]:
    inputs = {k: said(k) for k in range(MEMBERS)}
    request = asked(inputs)
    seeds = [own for own in second.opened(TERMS, second.box_key(LASTING), request) if own is not None]
    reply = second.answer(TERMS, LASTING, request, seeds)
    return {
        "context": TERMS.context().hex(),
        "seeds": plain(seeds),
        "inputs": plain(list(inputs.values())),
        "request": second.request_digest(TERMS, request).hex(),
        "reply": reply.hex(),
        "totals": second.totals(TERMS, list(inputs.values()), SERVER_OWN, request, reply),
    }


def signed(member: int, came: second.Input) -> second.Input:
    text = second.signed_text(TERMS, member, sha256(fields(*came.vectors)), came.boxes)
    return dataclasses.replace(came, signature=sign(drawn("identity", member), text))


def elsewhere(**changed: Any) -> second.Input:
    return said(1, dataclasses.replace(TERMS, **changed))


def spoilt_inputs() -> dict[str, second.Input]:
    """What member 1 sends, with one defect."""
    good, other = said(1), said(2)
    late = (good.vectors[1][:-1] + bytes([good.vectors[1][-1] | 0xF0]),)
    change = dataclasses.replace
    return {
        "a swapped vector": change(good, vectors=other.vectors),
        "swapped boxes": change(good, boxes=other.boxes),
        "boxes in another order": change(good, boxes=good.boxes[::-1]),
        "a box of another attempt": change(good, boxes=elsewhere(attempt=2).boxes),
        "all of another attempt": elsewhere(attempt=2),
        "another task": elsewhere(task=drawn("another task")),
        "another key holder": elsewhere(holder=x25519_public(drawn("another key holder"))),
        "another server": elsewhere(server=x25519_public(drawn("another server"))),
        "the signature of another member": change(good, signature=other.signature),
        "a box of 79 bytes": signed(1, change(good, boxes=(good.boxes[0][:-1], *good.boxes[1:]))),
        "no box": signed(1, change(good, boxes=())),
        "a vector of one byte less": signed(
            1, change(good, vectors=(good.vectors[0][:-1], *good.vectors[1:]))
        ),
        "bits after the last value": signed(
            1, change(good, vectors=(good.vectors[0], *late, good.vectors[2]))
        ),
    }


def spoilt_requests() -> dict[str, second.Request]:
    good = asked({k: said(k) for k in range(MEMBERS)})
    change = dataclasses.replace
    old = elsewhere(attempt=2)
    return {
        "one below the least": asked({k: said(k) for k in range(LEAST - 1)}),
        "a doubled member": change(good, members=(0, 1, 1, 2)),
        "members that descend": change(good, members=(1, 0, 2, 3)),
        "a stranger": change(good, members=(0, 1, 2, MEMBERS)),
        "a swapped vector": change(good, inputs=(good.inputs[1], good.inputs[0], *good.inputs[2:])),
        "swapped boxes": change(good, boxes=(*good.boxes[3:6], *good.boxes[:3], *good.boxes[6:])),
        "a box less": change(good, boxes=good.boxes[:-1]),
        "a signature less": change(good, signatures=good.signatures[:-1]),
        "an input of another attempt": asked({0: said(0), 1: old, 2: said(2), 3: said(3)}),
        "another task": asked({0: said(0), 1: elsewhere(task=drawn("another")), 2: said(2), 3: said(3)}),
        "a task of 31 bytes": change(good, task=good.task[:-1]),
    }


def bad_boxes() -> dict[str, tuple[bytes, ...]]:
    """Boxes that member 1 signed and that do not open."""
    good = said(1).boxes
    return {
        "of another attempt": elsewhere(attempt=2).boxes,
        "of another name": said(2).boxes,
        "of the other vectors": good[::-1],
        "for another key holder": elsewhere(holder=x25519_public(drawn("another key holder"))).boxes,
        "of zeros": (bytes(80),) * 3,
        "with one bit more": (good[0], good[1], good[2][:-1] + bytes([good[2][-1] ^ 1])),
    }


def made() -> dict[str, Any]:
    return {
        "generator": "PYTHONPATH=tests python tests/vectors/test_two_server_vectors.py",
        "terms": plain(TERMS),
        "values": VALUES,
        "positive": positive(),
        "refused by the server": {name: plain(one) for name, one in spoilt_inputs().items()},
        "refused by the key holder": {name: plain(one) for name, one in spoilt_requests().items()},
        "named by the key holder": {
            name: plain(signed(1, dataclasses.replace(said(1), boxes=boxes)))
            for name, boxes in bad_boxes().items()
        },
    }


# By the first -----------------------------------------------------------------------------------


def load() -> Any:
    return json.loads(FILE.read_text())


def raw(value: Any) -> Any:
    """The inverse of `plain`, but for names and numbers."""
    if isinstance(value, list):
        return tuple(raw(one) for one in value)
    return bytes.fromhex(value) if isinstance(value, str) else value


def identity(k: int) -> agreement.Identity:
    own = [SecretKey(drawn(kind, k)) for kind in ("identity", "channel")]
    return agreement.Identity(f"client-{k:04d}", SigningKey(own[0]), AgreementKey(own[1]))


PART = PadsPart(
    SecretKey(LASTING),
    Plan(
        delta=1e-5,
        max_rounds=9,
        sum="two-server",
        corrupt=0.0,
        min_cohort_size=3,
        max_cohort_size=9,
        min_honest=2,
        max_client_weight=0.5,
    ),
    (),
    AgreementKey(SecretKey(second.box_key(LASTING))),
    lambda at, name, digest: None,
)
AGREED = Agreement(
    header=Header(TERMS.session, 7, 1, 2),
    roster=agreement.Roster(tuple(identity(k).member() for k in range(MEMBERS))),
    vectors=tuple(agreement.Vector(**dict(zip(COLUMNS, row, strict=True))) for row in VECTORS),
    plan=TERMS.plan,
    task=TERMS.task,
    holder=PublicKey(TERMS.holder),
    server=PublicKey(TERMS.server),
    ordered=len(TERMS.draws),
    weights=Weights(TERMS.draws, TERMS.whole, TERMS.records).encoded(),
)
WHO = [f"client-{k:04d}" for k in range(MEMBERS)]


def first_server() -> OpenedServer:
    return OpenedServer(
        agreement=AGREED, least=LEAST, part=UnpaddingPart(AgreementKey(SecretKey(SERVER_OWN)))
    )


def first_input(of: Any) -> Any:
    names = [row[0] for row in VECTORS]
    numbers = [np.frombuffer(one, np.uint8) for one in raw(of["vectors"])]
    came: Any = tuple(Delivered(name, "masked", one, b"") for name, one in zip(names, numbers, strict=True))
    return PaddedInput(
        releases=came,
        boxes=tuple(map(Share, raw(of["boxes"]))),
        signature=Signature(raw(of["signature"])),
    )


def first_request(of: Any) -> PadRequest:
    return PadRequest(
        task=raw(of["task"]),
        members=tuple(of["members"]),
        boxes=tuple(map(Share, raw(of["boxes"]))),
        inputs=tuple(map(Commitment, raw(of["inputs"]))),
        signatures=tuple(map(Signature, raw(of["signatures"]))),
    )


def said_by_the_first(k: int) -> PaddedInput:
    machine = OpenedClient(identity=identity(k), agreement=AGREED, signers=LEAST, part=PaddingPart())
    step = machine.provide(machine.begin().state, SecretKey(drawn("secret", k)))
    assert step.need is not None
    releases = tuple(
        Release(
            key=ReleaseKey(WHO[k], TERMS.session, 7, 2, 1, name),
            unit="record",
            form="masked",
            charge=NO_COST,
            _numbers=conceal(np.array(values, np.int64)),
        )
        for (name, conceal), values in zip(step.need.order.conceal.items(), VALUES[k], strict=True)
    )
    [envelope] = machine.provide(step.state, releases).out
    message: PaddedInput = envelope.message
    return message


# Both -------------------------------------------------------------------------------------------


def test_the_second_gives_the_file() -> None:
    assert json.loads(json.dumps(made())) == load()


def test_the_first_gives_the_same_sum() -> None:
    stored = load()["positive"]
    assert AGREED.context.hex() == stored["context"]
    server = first_server()
    step = server.begin()
    for k, one in enumerate(stored["inputs"]):
        mine = said_by_the_first(k)
        assert [release._numbers.tobytes().hex() for release in mine.releases] == one["vectors"]
        assert [box.raw.hex() for box in mine.boxes] == one["boxes"]
        assert mine.signature.raw.hex() == one["signature"]
        step = server.receive(step.state, WHO[k], first_input(one))
    assert step.need is not None
    step = server.provide(step.state, step.need.order.run())
    request = step.out[0].message
    assert request_digest(AGREED, request).hex() == stored["request"]
    holder = OpenedKeyHolder(agreement=AGREED, least=LEAST, part=PART)
    opening = holder.receive(holder.begin().state, SERVER, request)
    assert opening.need is not None
    seeds = opening.need.order.run()
    assert [[seed.reveal().hex() for seed in own] for own in seeds] == stored["seeds"]
    recording = holder.provide(opening.state, seeds)
    adding = holder.provide(recording.state, True)
    assert adding.need is not None
    reply = holder.provide(adding.state, adding.need.order.run()).out[0].message
    assert reply == PadReply(request=raw(stored["request"]), bad=(), pads=raw(stored["reply"]))
    taking = server.receive(step.state, KEY_HOLDER, reply)
    totals = taking.need.order.run()
    assert [totals[row[0]].tolist() for row in VECTORS] == stored["totals"]


@every("name", spoilt_inputs())
def test_a_spoilt_input_is_refused_by_both(name: str) -> None:
    one = load()["refused by the server"][name]
    with pytest.raises(Refused):
        second.check_input(TERMS, 1, second.Input(**{key: raw(value) for key, value in one.items()}))
    server = first_server()
    with pytest.raises(RemoteProtocolError, match="client-0001"):
        server.receive(server.begin().state, WHO[1], first_input(one))


@every("name", spoilt_requests())
def test_a_spoilt_request_is_refused_by_both(name: str) -> None:
    one = load()["refused by the key holder"][name]
    with pytest.raises(Refused):
        second.check_request(TERMS, LEAST, second.Request(**{key: raw(value) for key, value in one.items()}))
    holder = OpenedKeyHolder(agreement=AGREED, least=LEAST, part=PART)
    with pytest.raises(RemoteProtocolError, match="server"):
        holder.receive(holder.begin().state, SERVER, first_request(one))


@every("name", bad_boxes())
def test_a_bad_box_is_named_by_both(name: str) -> None:
    one = second.Input(**{key: raw(value) for key, value in load()["named by the key holder"][name].items()})
    second.check_input(TERMS, 1, one)
    request = asked({0: said(0), 1: one, 2: said(2), 3: said(3)})
    second.check_request(TERMS, LEAST, request)
    found = second.opened(TERMS, second.box_key(LASTING), request)
    assert [k for k, own in enumerate(found) if own is None] == [1]
    holder = OpenedKeyHolder(agreement=AGREED, least=LEAST, part=PART)
    step = holder.receive(holder.begin().state, SERVER, first_request(plain(request)))
    assert step.need is not None
    named = holder.provide(step.state, step.need.order.run())
    assert named.out[0].message.bad == (1,)
    assert named.need is None


def test_the_good_ones_are_refused_by_neither() -> None:
    """Or the tests above could be green for another reason."""
    good = {k: said(k) for k in range(MEMBERS)}
    for k, one in good.items():
        second.check_input(TERMS, k, one)
    second.check_request(TERMS, LEAST, asked(good))


if __name__ == "__main__":
    FILE.write_text(json.dumps(made(), indent=1) + "\n")
