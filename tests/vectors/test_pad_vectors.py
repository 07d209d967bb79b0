"""Both implementations of pads give the bytes of pads/pads.json, and refuse what it refuses.

`PYTHONPATH=tests python tests/vectors/test_pad_vectors.py` writes the file, by the second implementation; do
so only together with a new version of a label. Randomness is SHAKE-256 of labels.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support import second_pads as second
from support.second_secagg import x25519_public

from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import PublicKey, SecretKey
from securefl.core.linear import LinearBounds, LinearQuery, Range
from securefl.core.signing import AgreementKey, SigningKey
from securefl.linear import dealt_pads, pads
from securefl.linear.pad_terms import PadTerms

FILE = Path(__file__).parent / "pads" / "pads.json"
NAMES = ("profile", "beside")
COHORT, CLIENTS, ROW = 4, 3, 5
WEIGHTS = np.array([-0.75, 0.125, 0.5, 0.25, -0.5])
VECTORS = np.array([[1.5, -0.25, 0.75, 0.0, 3.0], [0.0] * 5, [-2.0, 1.0, -1.0, 0.5, 2.5]])
BOUNDS = LinearBounds(
    hidden_length=ROW,
    norm=8.0,
    weight_norm=2.0,
    row_norm=2.0,
    product=16.0,
    weights=(Range(2, -2.0, 2.0), Range(2, 0.125, 1.0), Range(1, -0.5, -0.5)),
)
CASES = [(bits, dealt) for bits in (64, 128) for dealt in (False, True)]
IDS = [f"{'dealt' if dealt else 'told'}, {bits} bits" for bits, dealt in CASES]


def drawn(*labels: str | int) -> bytes:
    return hashlib.shake_256("/".join(map(str, ("pads", *labels))).encode()).digest(32)


SALT, HOLDER, SERVER = drawn("salt"), drawn("holder"), drawn("server")
CONTEXT = drawn("session") + bytes([7, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0])
SERVER_PUBLIC = Ed25519PrivateKey.from_private_bytes(SERVER).public_key().public_bytes_raw()
TEXT = (
    "PadTerms/2(bounds=linear/1(hidden=5,clear=,norm=8.0,weights=2.0,row=2.0,product=16.0,scale=1.0,least=-inf,"
    "most=inf), weights=2*[-2.0,2.0],2*[0.125,1.0],1*[-0.5,-0.5], context={}, word_bits={}, dealt={})"
)
SCALES = {64: (28, 30), 128: (60, 62)}
"""log2 of s_x and s_w, worked out by hand: room is 58 of 64 bits and 122 of 128."""


def terms_of(bits: int, dealt: bool) -> second.Terms:
    scale = 2.0 ** SCALES[bits][1]
    ends = [(run.low * scale, run.high * scale) for run in BOUNDS.weights for _ in range(run.count)]
    text = TEXT.format(CONTEXT.hex(), bits, dealt).encode()
    return second.Terms(text, bits, ROW, scale * BOUNDS.weight_norm + 5**0.5 / 2, tuple(ends))


def whole(values: Any, bits: int, which: int) -> list[int]:
    return [round(one * 2 ** SCALES[bits][which]) for one in values]


def holder(bits: int, dealt: bool) -> second.Holder:
    names = [name.encode() for name in NAMES]
    return second.Holder(terms_of(bits, dealt), HOLDER, SERVER_PUBLIC, names, COHORT, dealt)


def made(bits: int, dealt: bool) -> dict[str, Any]:
    """Every message of one exchange, by the second implementation."""
    terms, name = terms_of(bits, dealt), NAMES[0].encode()
    v = whole(WEIGHTS, bits, 1)
    d = second.weights_digest(terms, name, SALT, v)
    kh = x25519_public(HOLDER)
    messages = []
    for k in range(CLIENTS):
        e, x = drawn("fresh", k), whole(VECTORS[k], bits, 0)
        if dealt:
            messages.append(second.dealt_message(terms, name, e, kh, drawn("rho", k), x))
        else:
            messages.append(second.told_message(terms, name, e, kh, d, x))
    fresh = [one[16:48] for one in messages]
    if dealt:
        rhos = [one[48:80] for one in messages]
        request = second.dealt_item(terms, SERVER, 0, v, list(zip(fresh, rhos, strict=True)))
    else:
        request = second.told_item(terms, SERVER, 0, SALT, v, fresh)
    return {
        "terms": terms.text.decode(),
        "digest of the weights": "" if dealt else d.hex(),
        "messages": [one.hex() for one in messages],
        "request": request.hex(),
        "reply": holder(bits, dealt).answer(request).hex(),
        "defects": {name: one.hex() for name, one in defects(bits, dealt, request).items()},
    }


def defects(bits: int, dealt: bool, good: bytes) -> dict[str, bytes]:
    """Requests that a key holder refuses, by what is wrong. The signature fits again where it can."""
    terms, body = terms_of(bits, dealt), good[:-64]
    each = 32 + (ROW * bits // 8 if dealt else 0)
    last = body[-each:]

    def signed(changed: bytes) -> bytes:
        return second.item(terms, SERVER, changed)

    found = {
        "a signature that is another's": second.item(terms, drawn("other"), body),
        "a byte less": signed(body[:-1]),
        "no client": signed(body[: len(body) - CLIENTS * each]),
        "more clients than the cohort": signed(body + drawn("a") + last[32:] + drawn("b") + last[32:]),
        "a name that is none": signed(bytes([9]) + body[1:]),
        "a fresh key twice": signed(body + last),
        "a fresh key of small order": signed(body[:-each] + bytes(32) + last[32:]),
        "another place": second.item(
            second.Terms(terms.text + b" ", bits, ROW, terms.longest, terms.ranges), SERVER, body
        ),
    }
    if dealt:
        return found
    for what, at, to in (
        ("a weight below its range", 2, 0.0),
        ("a weight above its range", 3, 1.5),
        ("a weight that is one number, and is not", 4, -0.25),
        ("weights that are too long", 0, 1.99),
    ):
        changed = list(WEIGHTS)
        changed[at] = to
        if what == "weights that are too long":
            changed[1] = -1.99
        v = second.pack(terms, whole(changed, bits, 1))
        found[what] = signed(body[:36] + v + body[36 + len(v) :])
    return found


@pytest.fixture(params=CASES, ids=IDS)
def case(request: pytest.FixtureRequest) -> tuple[int, bool, dict[str, Any]]:
    bits, dealt = request.param
    return bits, dealt, json.loads(FILE.read_text())[IDS[CASES.index((bits, dealt))]]


def first_holder(bits: int, dealt: bool) -> pads.PadKeyHolder:
    kind = dealt_pads.DealtKeyHolder if dealt else pads.PadKeyHolder
    terms = PadTerms(bounds=BOUNDS, context=CONTEXT, word_bits=bits, dealt=dealt)
    return kind(AgreementKey(SecretKey(HOLDER)), terms, NAMES, COHORT, PublicKey(SERVER_PUBLIC))


def test_the_second_implementation_gives_the_bytes(case: tuple[int, bool, dict[str, Any]]) -> None:
    bits, dealt, stored = case
    assert made(bits, dealt) == stored


def test_the_first_gives_the_bytes_and_the_scores(case: tuple[int, bool, dict[str, Any]]) -> None:
    bits, dealt, stored = case
    terms = PadTerms(bounds=BOUNDS, context=CONTEXT, word_bits=bits, dealt=dealt)
    assert terms.text() == stored["terms"]
    assert (terms.data_bits, terms.weight_bits) == SCALES[bits]
    signing, query = SigningKey(SecretKey(SERVER)), LinearQuery(BOUNDS, WEIGHTS)
    kh, none = PublicKey(x25519_public(HOLDER)), np.zeros(0)
    own = [AgreementKey(SecretKey(drawn("fresh", k))) for k in range(CLIENTS)]
    server: pads.PadServer | dealt_pads.DealtServer
    if dealt:
        server = dealt_pads.DealtServer(terms, 0, signing, query)
        masked = [
            dealt_pads.mask(VECTORS[k], none, terms, NAMES[0], kh, own=own[k], seed=drawn("rho", k))
            for k in range(CLIENTS)
        ]
    else:
        server = pads.PadServer(terms, 0, NAMES[0], signing, query, salt=SALT)
        assert server.told.hex() == stored["digest of the weights"]
        masked = [
            pads.mask(VECTORS[k], none, terms, NAMES[0], server.told, kh, own=own[k]) for k in range(CLIENTS)
        ]
    assert [one.packed.hex() for one in masked] == stored["messages"]
    assert server.request(masked).hex() == stored["request"]
    reply = first_holder(bits, dealt).open(server.request(masked))
    assert reply.hex() == stored["reply"]
    for k, one in enumerate(masked):
        score = server.score(one, reply[k * terms.word_bytes :][: terms.word_bytes])
        assert score.value == VECTORS[k] @ WEIGHTS, "all are whole in these units"


def test_both_refuse_what_is_spoilt_and_the_good_request_after_it(
    case: tuple[int, bool, dict[str, Any]],
) -> None:
    bits, dealt, stored = case
    one, other = first_holder(bits, dealt), holder(bits, dealt)
    for what, bad in stored["defects"].items():
        with pytest.raises(RemoteProtocolError):
            pytest.fail(f"{what}: the first answered {one.open(bytes.fromhex(bad)).hex()}")
        with pytest.raises(second.Refused):
            pytest.fail(f"{what}: the second answered {other.answer(bytes.fromhex(bad)).hex()}")
    good = bytes.fromhex(stored["request"])
    assert one.open(good).hex() == other.answer(good).hex() == stored["reply"]


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    written = {name: made(*case) for name, case in zip(IDS, CASES, strict=True)}
    FILE.write_text(json.dumps(written, indent=1) + "\n")
