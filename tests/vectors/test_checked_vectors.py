"""Frozen bytes of checked openings, and a second implementation that reads and writes the same.

`PYTHONPATH=tests python tests/vectors/test_checked_vectors.py` writes checked/checked.json anew; do so only
together with a new version of a label. Randomness is SHAKE-256 of labels. Ciphertexts are random residues,
which every step but the score takes as any other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference import second_checked as second
from reference.second_secagg import Refused
from support.every import every
from support.tiny_he import BOUNDS, Quiet, by_ckks

from securefl.core.agreement import u32
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import PublicKey, SecretKey
from securefl.core.linear import LinearQuery
from securefl.core.signing import SigningKey
from securefl.he import gate
from securefl.he.keys import EncryptionKey, KeyPair
from securefl.he.openings import Openings
from securefl.he.parameters import COMPACT
from securefl.linear import checked
from securefl.linear.checks import Checks
from securefl.linear.terms import LinearTerms
from securefl.linear.turn import SALT as SALT_BYTES
from securefl.linear.turn import Declared, PublicQuery, QueryKeyHolder, QueryServer, commitment
from securefl.matching.profiles import Variant

FILE = Path(__file__).parent / "checked" / "checked.json"
NAME, Q = "profile", 3


def drawn(label: str, count: int) -> bytes:
    return hashlib.shake_256(b"checked/" + label.encode()).digest(count)


def signing(label: str) -> SigningKey:
    return SigningKey(SecretKey(drawn(label, 32)))


def half(label: str) -> bytes:
    rows = []
    for prime in COMPACT.primes:
        words = np.frombuffer(drawn(f"{label}/{prime}", 8 * COMPACT.poly_modulus_degree), dtype="<u8")
        rows.append(words % np.uint64(prime))
    return gate.pack(np.array([rows], dtype=np.uint64), COMPACT.primes)


def pair() -> KeyPair:
    """Not a real pair: an opening uses the secret alone."""
    n = COMPACT.poly_modulus_degree
    secret = (np.frombuffer(drawn("secret", n), dtype=np.uint8) % 3).tobytes()
    return KeyPair(EncryptionKey(COMPACT, PublicKey(drawn("public", 64))), SecretKey(secret))


TERMS = LinearTerms(parameters=COMPACT, bounds=BOUNDS.linear(Q, Variant.FULL), scores=10)
CHECKS = Checks(terms=TERMS, context=drawn("context", 40))
PAIR = pair()
SERVER, CLIENTS = signing("server"), [signing(f"client {number}") for number in range(2)]
QUERY = LinearQuery(TERMS.bounds, np.array([0.5, -1.0, 0.25, 0.5, 1.0, 2.0, -0.5]))
SECOND = second.Terms(
    text=TERMS.text(),
    context=CHECKS.context,
    key=PAIR.public.session,
    weight_norm=TERMS.bounds.weight_norm,
)
SALT = drawn("salt", 32)


def client(number: int) -> str:
    return f"client-{number:04d}"


def member(number: int) -> tuple[str, PublicKey]:
    if number >= len(CLIENTS):
        raise CryptoError("Expected clients whose keys are pinned.")
    return client(number), CLIENTS[number].public


MEMBERS = {number: (client(number), own.public.raw) for number, own in enumerate(CLIENTS)}


def fail(sender: str, why: str) -> None:
    pytest.fail(why)


def holder(report: Callable[[str, str], None] = fail) -> QueryKeyHolder:
    answerer = checked.CheckedAnswerer(PAIR, member, Openings(), report, rng=Quiet())
    return QueryKeyHolder(CHECKS, (NAME, "another"), 4, SERVER.public, answerer)


def message(number: int, told: bytes) -> bytes:
    tag = gate.tag("ciphertext", PAIR.public.session, TERMS.digest())
    ciphertext = tag + half(f"c0 {number}") + half(f"c1 {number}")
    question = PublicQuery(terms=CHECKS, key=PAIR.public.session, name=NAME, told=told)
    return checked.signed(question, ciphertext, client(number), CLIENTS[number])


def exchange() -> dict[str, Any]:
    """Every step, by the first implementation."""
    declared = Declared.of(QUERY, CHECKS, NAME, salt=lambda packed: SALT)
    server = QueryServer(declared, 0, SERVER, PAIR.public.session)
    messages = [message(number, declared.told) for number in range(2)]
    arrived = [
        by_ckks(declared, PAIR.public.session, one, number, *member(number))
        for number, one in enumerate(messages)
    ]
    request = server.request(arrived)
    reply = holder().open(request)
    return {
        "weights": declared.head[SALT_BYTES:],
        "told": declared.told,
        "messages": messages,
        "request": request,
        "reply": reply,
        "opened": server.opened(arrived, reply, sender="key holder"),
    }


def made() -> dict[str, Any]:
    found = exchange()
    return {
        "place": CHECKS.digest.hex(),
        "weight_bytes": CHECKS.weight_bytes,
        "weights": found["weights"].hex(),
        "told": found["told"].hex(),
        "signatures": [one[-64:].hex() for one in found["messages"]],
        "messages_sha256": [hashlib.sha256(one).hexdigest() for one in found["messages"]],
        "request_sha256": hashlib.sha256(found["request"]).hexdigest(),
        "request_signature": found["request"][-64:].hex(),
        "reply": found["reply"].hex(),
        "opened": list(map(str, found["opened"])),
    }


VECTORS = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
WEIGHTS = bytes.fromhex(VECTORS.get("weights", ""))


def test_bytes_are_frozen() -> None:
    assert made() == VECTORS


def second_request(**changed: Any) -> bytes:
    """A request as the second implementation makes it, with one part spoilt."""
    told = SECOND.commitment(NAME, SALT, WEIGHTS)
    entries = []
    for number in range(2):
        said = SECOND.said(NAME, told, client(number), second.hash_of(half(f"c1 {number}")))
        signature = second.sign(drawn(f"client {number}", 32), said)
        entries.append(u32(number) + signature + half(f"c1 {number}"))
    whole: dict[str, Any] = {
        "index": 0,
        "salt": SALT,
        "weights": WEIGHTS,
        "entries": entries,
        "own": drawn("server", 32),
        **{name: change(entries) if callable(change) else change for name, change in changed.items()},
    }
    return second.request(SECOND, **whole)


def secret() -> list[int]:
    return PAIR.coefficients().tolist()


def test_the_second_makes_what_the_first_makes() -> None:
    told = SECOND.commitment(NAME, SALT, WEIGHTS)
    assert (SECOND.place.hex(), SECOND.width) == (VECTORS["place"], VECTORS["weight_bytes"])
    assert told.hex() == VECTORS["told"] == commitment(CHECKS, NAME, SALT, WEIGHTS).hex()
    tag = gate.tag("ciphertext", PAIR.public.session, TERMS.digest())
    for number, expected in enumerate(VECTORS["messages_sha256"]):
        c0, c1 = half(f"c0 {number}"), half(f"c1 {number}")
        own = second.client_message(
            SECOND, tag, c0, c1, NAME, told, client(number), drawn(f"client {number}", 32)
        )
        assert hashlib.sha256(own).hexdigest() == expected
    assert hashlib.sha256(second_request()).hexdigest() == VECTORS["request_sha256"]


def test_the_second_opens_what_the_first_opens() -> None:
    """The shares without noise, but for the grid; and the whole of one integer with the server's part."""
    reply = bytes.fromhex(VECTORS["reply"])
    found = second.shares(SECOND, second_request(), (NAME, "another"), SERVER.public.raw, MEMBERS, secret())
    weights = second.integers(WEIGHTS, SECOND.width)
    one = [1] + [0] * (second.N - 1)
    for number, share in enumerate(found):
        assert share is not None
        at = gate.TAG + number * second.SHARE
        told = int.from_bytes(reply[at : at + second.SHARE], "little")
        assert abs(COMPACT.centre(told - share)) <= TERMS.grid
        own = second.opened(weights, one, second.residues(half(f"c0 {number}")))
        assert COMPACT.centre(told + own) == int(VECTORS["opened"][number])


def with_entry(change: Any) -> Any:
    return lambda entries: [change(entries), entries[1]]


DEFECTS: dict[str, dict[str, Any]] = {
    "other c1": {"entries": with_entry(lambda e: e[0][:68] + half("c1 9"))},
    "c1 of another": {"entries": with_entry(lambda e: e[0][:68] + e[1][68:])},
    "unsigned": {"entries": with_entry(lambda e: e[0][:4] + bytes(64) + e[0][68:])},
    "no member": {"entries": with_entry(lambda e: u32(7) + e[0][4:])},
    "another member's number": {"entries": lambda e: [u32(1) + e[0][4:], u32(0) + e[1][4:]]},
    "other salt": {"salt": bytes(32)},
    "other query": {"index": 1},
}
"""Each costs its entries alone."""
WHOLE: dict[str, dict[str, Any]] = {
    "twice": {"entries": lambda e: [e[0], e[0]]},
    "not the server": {"own": bytes(32)},
    "no query": {"index": 2},
    "nobody": {"entries": lambda e: []},
    "longer weights": {"weights": bytes.fromhex("ffffff7f" * 4096) if SECOND.width == 4 else b""},
}
"""Each costs the whole request."""


@every("defect", DEFECTS)
def test_both_refuse_a_spoilt_entry(defect: str) -> None:
    request = second_request(**DEFECTS[defect])
    first = holder(lambda sender, why: None).open(request)
    parts = [first[at : at + second.SHARE] for at in range(gate.TAG, len(first), second.SHARE)]
    found = second.shares(SECOND, request, (NAME, "another"), SERVER.public.raw, MEMBERS, secret())
    assert [part == second.REFUSED for part in parts] == [share is None for share in found]
    assert found[0] is None


@every("defect", WHOLE)
def test_both_refuse_a_spoilt_request(defect: str) -> None:
    request = second_request(**WHOLE[defect])
    with pytest.raises(RemoteProtocolError):
        holder(lambda sender, why: None).open(request)
    with pytest.raises(Refused):
        second.shares(SECOND, request, (NAME, "another"), SERVER.public.raw, MEMBERS, secret())


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(json.dumps(made(), indent=1) + "\n")
