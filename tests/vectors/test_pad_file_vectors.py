"""Both implementations of files under pads give the bytes of pads/files.json, and refuse what it refuses.

`PYTHONPATH=tests python tests/vectors/test_pad_file_vectors.py` writes the file, by the second
implementation; do so only together with a new version of a label. Randomness is SHAKE-256 of labels.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from reference import second_pads as second
from reference.second_secagg import Refused, sign, x25519_public
from reference.second_two_server import seal, unseal

from securefl.core.errors import DataError
from securefl.core.keys import SecretKey
from securefl.core.signing import AgreementKey, SigningKey
from securefl.linear.addressed import PadFiles
from securefl.matching import Bounds, Evaluator, KeyHolder, Options, Profile, PublicKeys, Scores, Sealed
from securefl.matching.document import Document

FILE = Path(__file__).parent / "pads" / "files.json"
BITS = (64, 128)
LABELS = ("north", "süd")
OPENINGS = 10
MEANS = ([0.5, -0.25], [1.0, 0.0])
BASE = [0.25, 0.5]
"""All variances are 1, so that every number of this page is whole in units of the words."""
VECTORS = [[*mean, *(m * m + 1 for m in mean), 0.0] for mean in MEANS]
WEIGHTS = [*(-m for m in BASE), 0.5, 0.5, -0.5]
CONSTANT = 0.5 * (0.0625 + 0.25 - 2)
SCORES = [((0.25**2 + 0.75**2) / 2 + 3 / 2**30) / 2, ((0.75**2 + 0.5**2) / 2 - 3 / 2**30) / 2]
"""With the noise of each client."""
BOUNDS = {"mean": 2.0, "variance_low": 0.25, "variance_high": 4.0, "weight": 2.0, "spread": 3.0}
TEXT = (
    "PadTerms(bounds=LinearBounds(hidden_length=5, clear=, norm=11.986961592609331, "
    "weight_norm=2.8284271247461903, row_norm=2.8284271247461903, product=34.37113936606118, scale=2.0, "
    "least=0.0, most=inf, "
    "weights=2*[-2.8284271247461903,2.8284271247461903],2*[0.125,2.0],1*[-0.5,-0.5], spread=3.0), "
    "context={}, word_bits={}, dealt={})"
)
SCALES = {64: (29, 28), 128: (48, 73)}
"""log2 of s_x and s_w."""


def drawn(*labels: str | int) -> bytes:
    return hashlib.shake_256("/".join(map(str, ("pad files", *labels))).encode()).digest(32)


def ed25519_public(secret: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


HOLDER, SEALING, SIGNING = drawn("holder"), drawn("sealing"), drawn("signing")
EVALUATOR = hashlib.sha256(x25519_public(SEALING) + ed25519_public(SIGNING)).digest()[:16]
STATEMENT = b"securefl/8|matching/keys|" + OPENINGS.to_bytes(8, "big")
SESSION = hashlib.sha256(ed25519_public(HOLDER) + STATEMENT).digest()
AGREEMENT = x25519_public(second.pads_secret(HOLDER))


def word(bits: int) -> str:
    return {64: "pads", 128: "pads-128"}[bits]


def options(bits: int) -> dict[str, Any]:
    return {"length": 2, "variant": "full", "parameters": word(bits), "bounds": BOUNDS, "anchor": None}


def terms_of(bits: int, dealt: bool = True) -> second.Terms:
    context = b"securefl/8|matching/pads|" + SESSION + EVALUATOR
    scale = 2.0 ** SCALES[bits][1]
    ends = [(-(8**0.5), 8**0.5)] * 2 + [(0.125, 2.0)] * 2 + [(-0.5, -0.5)]
    ranges = tuple((low * scale, high * scale) for low, high in ends)
    longest = scale * 8**0.5 + 5**0.5 / 2
    return second.Terms(TEXT.format(context.hex(), bits, dealt).encode(), bits, 5, longest, ranges, 3.0)


def whole(values: list[float], bits: int, which: int) -> list[int]:
    return [round(one * 2 ** SCALES[bits][which]) for one in values]


def noise(bits: int, k: int) -> int:
    """Each client's noise: +3 and -3 units of 2^-30."""
    return (3, -3)[k] << sum(SCALES[bits]) - 30


def messages(bits: int, labels: tuple[str, ...] = LABELS) -> list[bytes]:
    return [
        second.file_message(
            terms_of(bits),
            label.encode(),
            drawn("fresh", k),
            AGREEMENT,
            drawn("rho", k),
            whole(VECTORS[k], bits, 0),
            noise(bits, k),
        )
        for k, label in enumerate(labels)
    ]


def items(bits: int, made: list[bytes]) -> list[bytes]:
    constant = round(CONSTANT * 2 ** sum(SCALES[bits]))
    return [second.file_item(terms_of(bits), one, whole(WEIGHTS, bits, 1), constant) for one in made]


def header_of(bits: int, labels: tuple[str, ...] = LABELS, evaluator: bytes = EVALUATOR) -> dict[str, Any]:
    return second.file_header(SESSION, evaluator, labels, options(bits))


def scores(
    header: dict[str, Any], plain: bytes, *, by: bytes = SIGNING, to: bytes = AGREEMENT
) -> dict[str, Any]:
    body = seal(drawn("seal"), to, plain, second.file_text(header, b""))
    return {"header": header, "body": (body + sign(by, second.file_text(header, body))).hex()}


def profile(bits: int, k: int, message: bytes) -> dict[str, Any]:
    header = {
        "session": SESSION.hex(),
        "evaluator": EVALUATOR.hex(),
        "label": LABELS[k],
        **options(bits),
    }
    context = second.file_text(header, b"", "encrypted-profile")
    return {"header": header, "body": seal(drawn("seal", k), x25519_public(SEALING), message, context).hex()}


def made(bits: int) -> dict[str, Any]:
    """Every file of one matching, by the second implementation."""
    sent = messages(bits)
    own = items(bits, sent)
    told = scores(header_of(bits), b"".join(own))
    return {
        "terms": terms_of(bits).text.decode(),
        "pads": second.pads_public(HOLDER, SESSION).hex(),
        "messages": [one.hex() for one in sent],
        "profiles": [profile(bits, k, one) for k, one in enumerate(sent)],
        "items": [one.hex() for one in own],
        "scores": told,
        "words": [str(one) for one in words_in(holder(), bits, told)],
        "defects": defects(bits, own),
        "told": declared_files(bits),
    }


def declared_files(bits: int) -> dict[str, Any]:
    """The same with a declared baseline."""
    terms, v, salt = terms_of(bits, dealt=False), whole(WEIGHTS, bits, 1), second_salt(bits)
    d = second.declared_digest(terms, salt, v)
    sent = [
        second.told_file_message(
            terms, label.encode(), drawn("fresh", k), AGREEMENT, d, whole(VECTORS[k], bits, 0), noise(bits, k)
        )
        for k, label in enumerate(LABELS)
    ]
    constant = round(CONSTANT * 2 ** sum(SCALES[bits]))
    own = [second.told_file_item(terms, one, v, constant) for one in sent]
    head = salt + second.pack(terms, v)
    header = {**header_of(bits), "declared": d.hex()}
    other = whole([*WEIGHTS[:2], 0.5, 0.25, -0.5], bits, 1)
    none = whole([1.0, 0.0, 0.0, 0.0, 0.0], bits, 1)
    odd = second.declared_digest(terms, salt, none).hex()
    return {
        "declared": d.hex(),
        "messages": [one.hex() for one in sent],
        "scores": scores(header, head + b"".join(own)),
        "defects": {
            "another salt": scores(header, bytes(32) + head[32:] + b"".join(own)),
            "other weights": scores(header, salt + second.pack(terms, other) + b"".join(own)),
            "weights of no baseline": scores(
                {**header, "declared": odd}, salt + second.pack(terms, none) + b"".join(own)
            ),
            "other weights that a header declares": scores(
                {**header, "declared": second.declared_digest(terms, salt, other).hex()},
                salt + second.pack(terms, other) + b"".join(own),
            ),
            "labels that are swapped": scores({**header, "labels": list(LABELS[::-1])}, head + b"".join(own)),
        },
    }


def second_salt(bits: int) -> bytes:
    """As an evaluator derives it. Nobody else needs to."""
    terms = terms_of(bits, dealt=False)
    whole_ = second.fields(terms.text, second.pack(terms, whole(WEIGHTS, bits, 1)))
    key = hmac.digest(SEALING, b"securefl/8|matching/salt|", "sha256")
    return hmac.digest(key, whole_, "sha256")


def holder() -> second.FileHolder:
    return second.FileHolder(HOLDER, ed25519_public(SIGNING), EVALUATOR)


def words_in(one: second.FileHolder, bits: int, told: dict[str, Any]) -> list[int]:
    return one.read(terms_of(bits), told["header"], bytes.fromhex(told["body"]))


def defects(bits: int, own: list[bytes]) -> dict[str, Any]:
    """Files of scores that a key holder refuses whole, or for each label, by what is wrong."""
    good, plain = header_of(bits), b"".join(own)
    weak = [bytes(32) + one[32:] for one in own]
    other = Ed25519PrivateKey.from_private_bytes(drawn("other signing")).public_key().public_bytes_raw()
    elsewhere = hashlib.sha256(x25519_public(SEALING) + other).digest()[:16]
    wide = 192 - bits
    changed = [one[:32] + bytes([one[32] ^ 1]) + one[33:] for one in own]
    found = {
        "a signature that is another's": scores(good, plain, by=drawn("other")),
        "sealed to another key": scores(good, plain, to=x25519_public(drawn("other"))),
        "a byte less": scores(good, plain[:-1]),
        "a request less": scores(good, own[0]),
        "words of the other length": scores(good, b"".join(items(wide, messages(wide)))),
        "labels that are swapped": scores(header_of(bits, LABELS[::-1]), plain),
        "a label that is another": scores(header_of(bits, ("north", "sud")), own[1] + own[1]),
        "a fresh key twice": scores(good, own[0] * 2),
        "fresh keys of small order": scores(good, b"".join(weak)),
        "another evaluator's": scores(header_of(bits, evaluator=elsewhere), plain),
        "a tag with one bit changed": scores(good, b"".join(changed)),
    }
    swapped = scores(good, plain)
    swapped["header"] = header_of(bits, LABELS[::-1])
    found["a header that is not the signed one"] = swapped
    return found


@pytest.fixture(params=BITS, ids=[f"{bits} bits" for bits in BITS])
def case(request: pytest.FixtureRequest) -> tuple[int, dict[str, Any]]:
    return request.param, json.loads(FILE.read_text())[f"{request.param} bits"]


def first_holder() -> KeyHolder:
    signing = SigningKey(SecretKey(HOLDER))
    pads = second.pads_public(HOLDER, SESSION)
    return KeyHolder(PublicKeys(b"", signing.public, OPENINGS, signing.sign(STATEMENT), pads), (), signing)


def first_evaluator() -> Evaluator:
    return Evaluator(AgreementKey(SecretKey(SEALING)), SigningKey(SecretKey(SIGNING)))


def read(told: dict[str, Any]) -> Scores:
    return Scores(told["header"], bytes.fromhex(told["body"]))


def test_the_second_implementation_gives_the_bytes(case: tuple[int, dict[str, Any]]) -> None:
    bits, stored = case
    assert made(bits) == stored


def test_the_first_gives_the_terms_and_the_messages(case: tuple[int, dict[str, Any]]) -> None:
    bits, stored = case
    own = Options.from_header(options(bits))[0]
    assert own.bounds == Bounds(**BOUNDS)
    files = own.files(2, first_holder().public, EVALUATOR.hex())
    assert isinstance(files, PadFiles)
    terms = files.terms
    assert terms.digest.decode() == stored["terms"]
    assert (terms.data_bits, terms.weight_bits) == SCALES[bits]
    for k, label in enumerate(LABELS):
        message = files.message(
            np.array(VECTORS[k]),
            label,
            b"",
            own=AgreementKey(SecretKey(drawn("fresh", k))),
            seed=drawn("rho", k),
            noise=noise(bits, k),
        )
        assert message.hex() == stored["messages"][k]


def test_the_first_matches_the_profiles_and_reads_the_scores(case: tuple[int, dict[str, Any]]) -> None:
    bits, stored = case
    keys, evaluator = first_holder(), first_evaluator()
    assert keys.public.session == SESSION.hex()
    assert evaluator.public.fingerprint == EVALUATOR.hex()
    sealed = [
        Sealed("encrypted-profile", one["header"], bytes.fromhex(one["body"])) for one in stored["profiles"]
    ]
    found = evaluator.match(keys.public, Profile(np.array(BASE), np.ones(2)), sealed)
    assert found.header == stored["scores"]["header"]
    context = second.file_text(found.header, b"")
    plain = unseal(second.pads_secret(HOLDER), found.body[:-64], context)
    assert plain.hex() == "".join(stored["items"])
    for told in (found, read(stored["scores"])):
        assert list(keys.reveal(told, evaluator.public).scores.values()) == SCORES
    words = holder().read(terms_of(bits), found.header, found.body)
    assert [str(one) for one in words] == stored["words"]
    assert [one / 2 ** sum(SCALES[bits]) / 2 for one in words] == SCORES


def test_both_refuse_what_is_spoilt_and_read_the_good_file_after_it(case: tuple[int, dict[str, Any]]) -> None:
    bits, stored = case
    one, other, evaluator = first_holder(), holder(), first_evaluator()
    for what, told in stored["defects"].items():
        with suppress(DataError):
            assert not one.reveal(read(told), evaluator.public).scores, what
        with pytest.raises(Refused):
            pytest.fail(f"{what}: {words_in(other, bits, told)}")
    good = stored["scores"]
    assert list(one.reveal(read(good), evaluator.public).scores.values()) == SCORES
    assert [str(one) for one in words_in(other, bits, good)] == stored["words"]


def test_a_second_request_is_refused_by_both(case: tuple[int, dict[str, Any]]) -> None:
    bits, stored = case
    one, other, evaluator = first_holder(), holder(), first_evaluator()
    good = stored["scores"]
    for told in (good, good):
        assert list(one.reveal(read(told), evaluator.public).scores.values()) == SCORES
        words_in(other, bits, told)
    changed = b"".join(
        bytes.fromhex(item)[:-1] + bytes([bytes.fromhex(item)[-1] ^ 1]) for item in stored["items"]
    )
    second_request = scores(header_of(bits), changed)
    found = one.reveal(read(second_request), evaluator.public)
    assert not found.scores
    assert all("scored once" in why for why in found.refused.values())
    with pytest.raises(Refused, match="scored once"):
        words_in(other, bits, second_request)


def test_both_read_a_declared_baseline(case: tuple[int, dict[str, Any]]) -> None:
    bits, stored = case
    mine, keys, evaluator = stored["told"], first_holder(), first_evaluator()
    base = Profile(np.array(BASE), np.ones(2))
    made_ = evaluator.declare(keys.public, base, options=Options.from_header(options(bits))[0])
    assert made_.header["declared"] == mine["declared"]
    for k, label in enumerate(LABELS):
        files = made_.checked(keys.public, evaluator.public).files(2, keys.public, EVALUATOR.hex())
        assert isinstance(files, PadFiles)
        message = files.message(
            np.array(VECTORS[k]),
            label,
            bytes.fromhex(mine["declared"]),
            own=AgreementKey(SecretKey(drawn("fresh", k))),
            noise=noise(bits, k),
        )
        assert message.hex() == mine["messages"][k]
    for what, bad in mine["defects"].items():
        with suppress(DataError):
            assert not keys.reveal(read(bad), evaluator.public).scores, what
        with pytest.raises(Refused):
            pytest.fail(f"{what}: {told_words(bits, bad)}")
    assert list(keys.reveal(read(mine["scores"]), evaluator.public).scores.values()) == SCORES
    assert [one / 2 ** sum(SCALES[bits]) / 2 for one in told_words(bits, mine["scores"])] == SCORES


def told_words(bits: int, told: dict[str, Any]) -> list[int]:
    """Unsealed and read by the second implementation."""
    terms, size = terms_of(bits, dealt=False), bits // 8
    body = bytes.fromhex(told["body"])
    plain = unseal(second.pads_secret(HOLDER), body[:-64], second.file_text(told["header"], b""))
    start, each = 32 + 5 * size, 48 + size
    return [
        second.told_file_word(
            terms,
            label.encode(),
            second.pads_secret(HOLDER),
            plain[:start],
            bytes.fromhex(told["header"]["declared"]),
            plain[start + k * each :][:each],
        )
        for k, label in enumerate(told["header"]["labels"])
    ]


def test_a_document_of_the_first_is_what_the_second_signs() -> None:
    header = header_of(64)
    assert Document("encrypted-scores", header, b"body").signed_part() == second.file_text(header, b"body")


if __name__ == "__main__":
    written = {f"{bits} bits": made(bits) for bits in BITS}
    FILE.write_text(json.dumps(written, indent=1) + "\n")
