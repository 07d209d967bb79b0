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
from reference import second_pads as second
from reference.second_secagg import Refused, x25519_public
from support.tiny_he import by_pads

from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import PublicKey, SecretKey
from securefl.core.linear import LinearBounds, LinearQuery, Range
from securefl.core.signing import AgreementKey, SigningKey
from securefl.linear import pads
from securefl.linear.pad_terms import PadTerms
from securefl.linear.turn import Declared, QueryKeyHolder, QueryServer

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
    spread=1.75,
)
CASES = (64, 128)
IDS = [f"told, {bits} bits" for bits in CASES]


def drawn(*labels: str | int) -> bytes:
    return hashlib.shake_256("/".join(map(str, ("pads", *labels))).encode()).digest(32)


SALT, HOLDER, SERVER = drawn("salt"), drawn("holder"), drawn("server")
CONTEXT = drawn("session") + bytes([7, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0])
SERVER_PUBLIC = Ed25519PrivateKey.from_private_bytes(SERVER).public_key().public_bytes_raw()
TEXT = (
    "PadTerms(bounds=LinearBounds(hidden_length=5, clear=, norm=8.0, weight_norm=2.0, row_norm=2.0, "
    "product=16.0, scale=1.0, least=-inf, most=inf, weights=2*[-2.0,2.0],2*[0.125,1.0],1*[-0.5,-0.5], "
    "spread=1.75), context={}, word_bits={}, dealt=False)"
)
SCALES = {64: (30, 28), 128: (48, 74)}
"""log2 of s_x and s_w, worked out by hand: room is 58 of 64 bits and 122 of 128, and s_x has 48 bits at
most.
"""


def terms_of(bits: int) -> second.Terms:
    scale = 2.0 ** SCALES[bits][1]
    ends = [(run.low * scale, run.high * scale) for run in BOUNDS.weights for _ in range(run.count)]
    text = TEXT.format(CONTEXT.hex(), bits).encode()
    return second.Terms(text, bits, ROW, scale * BOUNDS.weight_norm + 5**0.5 / 2, tuple(ends), 1.75)


def whole(values: Any, bits: int, which: int) -> list[int]:
    return [round(one * 2 ** SCALES[bits][which]) for one in values]


def holder(bits: int) -> second.Holder:
    names = [name.encode() for name in NAMES]
    return second.Holder(terms_of(bits), HOLDER, SERVER_PUBLIC, names, COHORT)


def made(bits: int) -> dict[str, Any]:
    """Every message of one exchange, by the second implementation."""
    terms, name = terms_of(bits), NAMES[0].encode()
    v = whole(WEIGHTS, bits, 1)
    d = second.weights_digest(terms, name, SALT, v)
    kh = x25519_public(HOLDER)
    messages = []
    for k in range(CLIENTS):
        e, x = drawn("fresh", k), whole(VECTORS[k], bits, 0)
        messages.append(second.told_message(terms, name, e, kh, d, x))
    fresh = [one[16:48] for one in messages]
    request = second.told_item(terms, SERVER, 0, SALT, v, fresh)
    return {
        "terms": terms.text.decode(),
        "digest of the weights": d.hex(),
        "messages": [one.hex() for one in messages],
        "request": request.hex(),
        "reply": holder(bits).answer(request).hex(),
        "defects": {name: one.hex() for name, one in defects(bits, request).items()},
    }


def defects(bits: int, good: bytes) -> dict[str, bytes]:
    """Requests that a key holder refuses, by what is wrong. The signature fits again where it can."""
    terms, body = terms_of(bits), good[:-64]

    def signed(changed: bytes) -> bytes:
        return second.item(terms, SERVER, changed)

    found = {
        "a signature that is another's": second.item(terms, drawn("other"), body),
        "a byte less": signed(body[:-1]),
        "no client": signed(body[: len(body) - CLIENTS * 32]),
        "more clients than the cohort": signed(body + drawn("a") + drawn("b")),
        "a name that is none": signed(bytes([9]) + body[1:]),
        "a fresh key twice": signed(body + body[-32:]),
        "a fresh key of small order": signed(body[:-32] + bytes(32)),
        "another place": second.item(
            second.Terms(terms.text + b" ", bits, ROW, terms.longest, terms.ranges, 1.75), SERVER, body
        ),
    }
    for what, at, to in (
        ("a weight below its range", 2, 0.0),
        ("a weight above its range", 3, 1.5),
        ("a weight that is one number, and is not", 4, -0.25),
        ("weights that are too long", 0, 1.99),
        ("a weight that stands out", 0, -1.9),
    ):
        changed = list(WEIGHTS)
        changed[at] = to
        if what == "weights that are too long":
            changed[1] = -1.99
        v = second.pack(terms, whole(changed, bits, 1))
        found[what] = signed(body[:36] + v + body[36 + len(v) :])
    return found


@pytest.fixture(params=CASES, ids=IDS)
def case(request: pytest.FixtureRequest) -> tuple[int, dict[str, Any]]:
    bits = request.param
    return bits, json.loads(FILE.read_text())[IDS[CASES.index(bits)]]


def first_holder(bits: int) -> QueryKeyHolder:
    terms = PadTerms(bounds=BOUNDS, context=CONTEXT, word_bits=bits)
    answerer = pads.PadAnswerer(AgreementKey(SecretKey(HOLDER)))
    return QueryKeyHolder(terms, NAMES, COHORT, PublicKey(SERVER_PUBLIC), answerer)


def test_the_second_implementation_gives_the_bytes(case: tuple[int, dict[str, Any]]) -> None:
    bits, stored = case
    assert made(bits) == stored


def test_the_first_gives_the_bytes_and_the_scores(case: tuple[int, dict[str, Any]]) -> None:
    bits, stored = case
    terms = PadTerms(bounds=BOUNDS, context=CONTEXT, word_bits=bits)
    assert terms.digest.decode() == stored["terms"]
    assert (terms.data_bits, terms.weight_bits) == SCALES[bits]
    signing, query = SigningKey(SecretKey(SERVER)), LinearQuery(BOUNDS, WEIGHTS)
    kh = PublicKey(x25519_public(HOLDER))
    own = [AgreementKey(SecretKey(drawn("fresh", k))) for k in range(CLIENTS)]
    declared = Declared.of(query, terms, NAMES[0], salt=lambda packed: SALT)
    server = QueryServer(declared, 0, signing)
    assert declared.told.hex() == stored["digest of the weights"]
    masked = [pads.mask(VECTORS[k], terms, NAMES[0], declared.told, kh, own=own[k]) for k in range(CLIENTS)]
    assert [one.hex() for one in masked] == stored["messages"]
    arrived = [by_pads(declared, one) for one in masked]
    assert server.request(arrived).hex() == stored["request"]
    reply = first_holder(bits).open(server.request(arrived))
    assert reply.hex() == stored["reply"]
    server_told = bytes.fromhex(stored["digest of the weights"])
    opened = server.opened(arrived, reply, sender="key holder")
    for k, (one, value) in enumerate(zip(arrived, opened, strict=True)):
        assert value is not None
        score = server.score(one, value)
        _, secret = second.told_pad(
            terms_of(bits), NAMES[0].encode(), HOLDER, *[own[k].public.raw] * 2, server_told
        )
        noise = second.noise(secret, whole(WEIGHTS, bits, 1))
        assert score.value == VECTORS[k] @ WEIGHTS + noise / 2 ** sum(SCALES[bits]), (
            "all are whole in these units"
        )
        assert 0 < abs(score.value - VECTORS[k] @ WEIGHTS) <= score.error_bound


def test_both_refuse_what_is_spoilt_and_the_good_request_after_it(
    case: tuple[int, dict[str, Any]],
) -> None:
    bits, stored = case
    one, other = first_holder(bits), holder(bits)
    for what, bad in stored["defects"].items():
        with pytest.raises(RemoteProtocolError):
            pytest.fail(f"{what}: the first answered {one.open(bytes.fromhex(bad)).hex()}")
        with pytest.raises(Refused):
            pytest.fail(f"{what}: the second answered {other.answer(bytes.fromhex(bad)).hex()}")
    good = bytes.fromhex(stored["request"])
    assert one.open(good).hex() == other.answer(good).hex() == stored["reply"]


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    written = {name: made(case) for name, case in zip(IDS, CASES, strict=True)}
    FILE.write_text(json.dumps(written, indent=1) + "\n")
