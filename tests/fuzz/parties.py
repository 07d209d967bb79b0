"""Doors of parties: messages, calls, envelopes, frames, and machines in the states of recorded sums."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, get_origin

import numpy as np
from fuzz.target import Target
from support.four_clients import MASKED, sum_call
from support.recorded import Recording
from support.residents import NAMES, Deployment
from support.tiny_he import SIGNER, keys
from support.tiny_secagg import aggregate, agreement, client
from support.tiny_two_server import EVERYBODY, Holder, collected, padded, requested, server
from support.tiny_two_server import agreement as of_two_servers

from securefl.core import messages
from securefl.core.errors import DataError
from securefl.core.keys import Share, Signature
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, SERVER, Release
from securefl.core.sparse import dense, sparse
from securefl.core.wire import Header, Limit, decode, encode, peek
from securefl.core.wire.coding import begins_as
from securefl.core.wire.kinds import KEYS, element, fields_of, is_nested, optional, scalar
from securefl.deployment import messages as envelopes
from securefl.deployment.framing import Connection
from securefl.deployment.messages import Enter, Entered, SignedTurn, Turn, decode_envelope, encode_envelope
from securefl.engine import calls
from securefl.he.openings import Openings
from securefl.he.parameters import COMPACT
from securefl.secagg import Server, dealing, packing, shamir
from securefl.secagg import agreement as advertising
from securefl.secagg import messages as masked
from securefl.sums.encrypted import messages as encrypted
from securefl.sums.encrypted.parts import Place, SumEncryptor, SumEvaluator, SumOpener, SumTerms
from securefl.sums.two_server import messages as two_server

PLACE = Header(bytes(range(32)), 7, 1, 2)
LIMIT = Limit(2**16, 2**10)
ROOMS = (messages, envelopes, calls, advertising, dealing, masked, encrypted, two_server)
KINDS: dict[type[Any], Limit] = {
    one: LIMIT for room in ROOMS for one in vars(room).values() if "__wire__" in getattr(one, "__dict__", {})
}
"""Every message class."""


def sample(hint: Any) -> Any:
    """A small value of a field of this type."""
    if get_origin(hint) is tuple:
        return () if element(hint) is Release else (sample(element(hint)),) * 2
    if hint in KEYS:
        return hint(bytes({Signature: 64, Share: 36}.get(hint, 32)))
    if optional(hint) is not None:
        return None
    if is_nested(hint):
        return made(hint)
    plain = {int: 1, float: 1.0, str: "a", bytes: bytes(32)}
    return plain[hint] if hint in plain else np.zeros(2, scalar(hint))


def made(kind: type[Any]) -> Any:
    return kind(**{name: sample(hint) for name, hint in fields_of(kind)})


def message_doors() -> list[Target]:
    def any_kind(raw: bytes) -> None:
        header = peek(raw, "peer")
        body = decode(raw, header, KINDS, "peer")
        if not hasattr(body, "releases"):  # those need their ledger's permit
            assert encode(header, body) == raw, "two encodings of one message"

    first, *others = [encode(PLACE, made(kind)) for kind in KINDS]

    def vector(raw: bytes) -> None:
        try:
            dense(raw, 100)
        except ValueError as bad:  # its caller names the sender
            raise DataError(str(bad)) from None

    def packed(raw: bytes) -> None:
        words = packing.unpack(np.frombuffer(raw, np.uint8), 11, 20)
        assert packing.pack(words, 20).tobytes() == raw, "two encodings of one vector"

    few, many = np.zeros(100, np.int32), np.arange(100, dtype=np.int32)
    few[7] = -3
    common = np.where(np.arange(100) < 80, 5, -(np.arange(100, dtype=np.int32)))
    return [
        Target("message", any_kind, first, weight=30, more=tuple(others)),
        Target("sparse vector", vector, sparse(few), weight=20, more=(sparse(many), sparse(common))),
        Target("packed vector", packed, packing.pack(np.arange(11, dtype=np.uint32), 20).tobytes(), weight=8),
        Target("share", lambda raw: shamir.combine({1: raw}, 1), bytes(shamir.SHARE_BYTES), weight=2),
        Target("frame", framed, b"\3\0\0\0\0\0\0\0abc", weight=8),
    ]


def framed(raw: bytes) -> None:
    """Read frames until the other side ends."""
    here, there = socket.socketpair()
    with here, there:
        there.sendall(raw[: 2**12])
        there.close()
        connection = Connection(here, most=2**16)
        while connection.receive(wait=5) is not None:
            pass


# Machines of sums ---------------------------------------------------------------------------------


def machine_doors() -> Iterator[Target]:
    """What client 0 and the server of a masked sum are told, each in the state in which it came."""
    agreed, sent = agreement(), []
    one, hub = Recording(client(0, agreed)), Recording(Server(agreement=agreed))

    def watch(sender: str, to: str, data: bytes) -> bytes:
        sent.append((sender, to, data))
        return data

    gone = {client_name(4): None}
    aggregate(agreed, machines={client_name(0): one, SERVER: hub, **gone}, tamper=watch)
    for name, own in ((client_name(0), one), (SERVER, hub)):
        for kind in dict.fromkeys(type(came) for _, _, came, _ in own.seen):
            state, sender, _, _ = next(seen for seen in own.seen if type(seen[2]) is kind)
            valid = next(
                data
                for by, to, data in sent
                if (by, to) == (sender, name) and begins_as(data, agreed.header, kind)
            )
            yield machine_door(f"{kind.__wire__.kind}", own.inner, state, sender, valid)


def machine_door(name: str, machine: Any, state: Any, sender: str, valid: bytes) -> Target:
    expects = machine.expects(state)

    def told(raw: bytes) -> None:
        step = machine.receive(state, sender, decode(raw, expects.header, expects.kinds, sender))
        while step.need is not None and hasattr(step.need.order, "run"):
            step = machine.provide(step.state, step.need.order.run())

    more = [encode(expects.header, made(kind)) for kind in expects.kinds]
    return Target(name, told, valid, weight=12, more=tuple(more))


def two_server_doors() -> list[Target]:
    of, holder = of_two_servers(), Holder()
    inputs = {member: padded(of, member) for member in EVERYBODY}
    request, machine = requested(of, changed=inputs), server(of)
    waiting = collected(machine, inputs).state
    kinds = {two_server.PadRequest: Limit(2**16, 2**10)}

    def asked(raw: bytes) -> object:
        holder.journal = type(holder.journal)()
        return holder.asked(of, decode(raw, of.header, kinds, SERVER))

    return [
        Target("pad-request", asked, encode(of.header, request), weight=4),
        machine_door("pad-reply", machine, waiting, KEY_HOLDER, encode(of.header, holder.asked(of, request))),
    ]


def encrypted_sum_doors() -> list[Target]:
    place = Place(session=b"session", round=3, attempt=0, stage="train", name="update")
    terms = SumTerms(length=100, bound=1000, clients=5, parameters=COMPACT, openings=2**20, place=place)
    pair = keys(COMPACT)
    evaluator = SumEvaluator(pair.public, terms, SIGNER)
    message = SumEncryptor(pair.public, terms).encrypt(np.arange(100))
    blinded, request = evaluator.request(evaluator.add(None, message, sender="client"))

    def opened(raw: bytes) -> bytes:
        # anew: it answers once
        return SumOpener(pair, terms, SIGNER.public, openings=Openings()).open(raw)

    return [
        Target("encrypted vector", lambda raw: evaluator.add(None, raw, sender="client"), message),
        Target("sum request", opened, request),
        Target("sum request signed", opened, request, lambda raw: raw[:-64] + SIGNER.sign(raw[:-64]).raw, 3),
        Target("opened sum", lambda raw: evaluator.unblind(blinded, raw), opened(request)),
    ]


# Parties of a deployment --------------------------------------------------------------------------


def deployment_doors() -> list[Target]:
    here = Deployment(MASKED)
    here.enter(bytes(32))
    here.query(1)
    name, nonces = NAMES[0], (number.to_bytes(32, "big") for number in count(1))
    party, key = here.residents[name], here.server_keys

    def envelope(raw: bytes) -> None:
        kinds = [kind for kind in KINDS if kind.__module__ == envelopes.__name__]
        found = decode_envelope(raw, *kinds, sender="peer")
        assert encode_envelope(found) == raw, "two encodings of one envelope"
        if isinstance(found, Enter):
            found.table(sender=SERVER)

    def plan(raw: bytes) -> None:
        """The plan of a server that signs what it likes."""
        one = here.request(bytes(32))
        own = vars(one) | {"plan": raw.decode(errors="replace"), "signature": b""}
        party.answer(encode_envelope(resigned(Enter(**own), key)))

    def turn(raw: bytes) -> None:
        """A turn of a server that signs what it likes, at a party that has just entered."""
        request = here.request(next(nonces))
        entered = decode_envelope(party.answer(encode_envelope(request)), Entered, sender=name)
        unsigned = SignedTurn(visit=entered.visit, number=entered.number, signature=b"", turn=raw)
        text = unsigned.text(party.session, name)
        signed = SignedTurn(**vars(unsigned) | {"signature": key.signing.sign(text).raw})
        party.answer(encode_envelope(signed))

    first = next(raw for to, raw in here.said if to == name and b"signed-turn" in raw[:20])
    told = decode_envelope(first, SignedTurn, sender=SERVER).turn
    entering = encode_envelope(here.request(bytes(32)))
    call = decode_envelope(told, Turn, sender=SERVER).call

    def called(raw: bytes) -> None:
        header, found = calls.decode_call(raw, peek(raw, SERVER).session, (0, 0, -1))
        if isinstance(found, calls.QueryCall):
            found.hidden_cohort()
        else:
            calls.members_of(found.members)
            found.attempt(header, found.sums({"own": here.spec}))

    own = [made(kind) for kind in KINDS if kind.__module__ == envelopes.__name__]
    own = [replace(one, kind="train") if isinstance(one, envelopes.Compute) else one for one in own]
    some = [encode_envelope(one) for one in own if one.fits()]
    return [
        Target("envelope", envelope, entering, weight=20, more=(first, *some)),
        Target("party", lambda raw: party.answer(raw), entering, weight=4, more=(first,)),
        Target("signed plan", plan, here.plan.text().encode()),
        Target("signed turn", turn, told),
        Target("call", called, call, weight=8, more=(encode(PLACE, sum_call()),)),
    ]


def resigned(unsigned: Enter, server: Any) -> Enter:
    return Enter(**vars(unsigned) | {"signature": server.signing.sign(unsigned.text()).raw})


DOORS: Mapping[str, Callable[[], Any]] = {
    "messages": message_doors,
    "masked sums": machine_doors,
    "two-server sums": two_server_doors,
    "encrypted sums": encrypted_sum_doors,
    "deployment": deployment_doors,
}
