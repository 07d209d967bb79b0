"""Files of ciphertexts with a declared baseline: what no given client signed is not read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support.every import every
from support.tiny_he import SURELY

from securefl.core.errors import ConfigError, DataError, RemoteProtocolError
from securefl.core.linear import LinearQuery
from securefl.core.signing import SIGNATURE_BYTES, seal, unseal
from securefl.he import gate
from securefl.he.openings import Openings
from securefl.he.ring import Ring
from securefl.linear import checked
from securefl.linear.addressed import QUERY
from securefl.linear.addressed_checked import CheckedFiles
from securefl.linear.checks import hash_of
from securefl.linear.encryptor import admitted
from securefl.linear.turn import Declared, commitment, told_weights
from securefl.matching import (
    ClientKey,
    ClientPublic,
    Declaration,
    Evaluator,
    KeyHolder,
    Options,
    Profile,
    Scores,
    Sealed,
)
from securefl.matching.document import Document
from securefl.matching.keys import pads_key
from securefl.matching.matchers import requests_context
from securefl.matching.profiles import Variant, divergence

BASE = Profile(np.array([0.0, 0.1, 0.0]), np.array([1.0, 1.5, 1.0]))
OTHER = Profile(np.array([0.3, 0.1, 0.0]), np.array([1.0, 1.5, 1.2]))
OWNED = [
    Profile(np.array([0.1, 0.2, -1.0]), np.array([1.0, 2.0, 0.5])),
    Profile(np.array([1.0, 0.0, 0.0]), np.array([1.0, 1.0, 1.0])),
]
LABELS = ["p1", "p2"]
CLIENTS = [ClientKey.generate(), ClientKey.generate()]
GIVEN = [one.public for one in CLIENTS]


@cache
def parties() -> tuple[KeyHolder, Evaluator]:
    return KeyHolder.generate(openings=100, parameters="strong"), Evaluator.generate()


def declared(options: Options, baseline: Profile = BASE) -> Options:
    holder, evaluator = parties()
    declaration = evaluator.declare(holder.public, baseline, options=options)
    return Declaration.from_document(declaration.to_document()).checked(holder.public, evaluator.public)


def sealed(options: Options, at: int = 0, label: str | None = None, own: ClientKey | None = None) -> Sealed:
    holder, evaluator = parties()
    signer = own or CLIENTS[at]
    return OWNED[at].encrypt(
        holder.public, evaluator.public, label=label or LABELS[at], options=options, own=signer
    )


COMPACT = Options(parameters="compact")


@every("variant", Variant)
@every("word", ["strong", "compact"])
def test_scores_of_a_declared_baseline_are_the_divergences(word: str, variant: Variant) -> None:
    holder, evaluator = parties()
    options = declared(Options(parameters=word, variant=variant))  # type: ignore[arg-type]
    files = [Sealed.from_document(sealed(options, at).to_document()) for at in range(2)]
    scores = evaluator.match(holder.public, BASE, files)
    found = holder.reveal(Scores.from_document(scores.to_document()), evaluator.public, clients=GIVEN)
    assert found.refused == {}
    for label, own in zip(LABELS, OWNED, strict=True):
        apart = abs(found.scores[label] - divergence(own, BASE))
        assert apart <= SURELY * found.error_bound < 0.01


def test_a_profile_of_a_client_that_was_not_given_is_not_read() -> None:
    holder, evaluator = parties()
    options = declared(COMPACT)
    scores = evaluator.match(holder.public, BASE, [sealed(options, 0), sealed(options, 1)])
    found = holder.reveal(scores, evaluator.public, clients=GIVEN[:1])
    assert list(found.scores) == ["p1"]
    assert "client whose key was given" in found.refused["p2"]
    # As keygen prints it, so that a person can tell whose key is missing.
    assert GIVEN[1].fingerprint in found.refused["p2"]
    assert "phase checks" in found.refused["p2"]
    assert set(holder.reveal(scores, evaluator.public).refused) == set(LABELS)


def test_without_a_key_or_a_declaration_nothing_is_encrypted() -> None:
    holder, evaluator = parties()
    with pytest.raises(ConfigError, match="key to sign with"):
        OWNED[0].encrypt(holder.public, evaluator.public, options=declared(COMPACT))
    for word in ("strong", "compact"):
        options = Options(parameters=word)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=f"{word}, got none"):
            OWNED[0].encrypt(holder.public, evaluator.public, options=options, own=CLIENTS[0])


def test_another_baseline_than_the_declared_is_refused() -> None:
    holder, evaluator = parties()
    with pytest.raises(ConfigError, match=r"baseline .*was declared"):
        evaluator.match(holder.public, OTHER, [sealed(declared(COMPACT))])


def test_an_encrypted_baseline_is_none_that_can_be_declared() -> None:
    holder, evaluator = parties()
    options = declared(Options(parameters="strong"))
    with pytest.raises(DataError, match="encrypted baseline"):
        BASE.encrypt_baseline(holder.public, evaluator.public, options=options)


# What an evaluator could forge ------------------------------------------------------------------------

Forge = Callable[[bytes, list[bytes]], tuple[bytes, list[bytes]]]
KEY, SIGNATURE = slice(0, 32), slice(32, 32 + SIGNATURE_BYTES)


def forged(scores: Scores, forge: Forge) -> Scores:
    """The scores as an evaluator sends them that does not follow the protocol."""
    holder, evaluator = parties()
    context, own = requests_context(scores.header), pads_key(holder.signing)
    plain = unseal(own, scores.body[:-SIGNATURE_BYTES], context)
    options, length = Options.from_header(scores.header)
    files = options.files(length, holder.public, evaluator.public.fingerprint)
    at, size = files.head_bytes, files.item_bytes
    head, items = forge(plain[:at], [plain[i : i + size] for i in range(at, len(plain), size)])
    body = seal(holder.public.agreement, head + b"".join(items), context)
    signature = evaluator.signing.sign(Document("encrypted-scores", scores.header, body).signed_part())
    return Scores(scores.header, body + signature.raw)


def spliced(item: bytes, at: slice, piece: bytes) -> bytes:
    return item[: at.start] + piece + item[at.stop :]


def other_half(head: bytes, items: list[bytes]) -> tuple[bytes, list[bytes]]:
    return head, [items[0][:-64] + items[1][-64:], items[1]]


def half_of_another(head: bytes, items: list[bytes]) -> tuple[bytes, list[bytes]]:
    at = SIGNATURE.stop + 12
    return head, [items[0][:at] + items[1][at:], items[1]]


def unsigned(head: bytes, items: list[bytes]) -> tuple[bytes, list[bytes]]:
    return head, [spliced(items[0], SIGNATURE, bytes(SIGNATURE_BYTES)), items[1]]


def of_no_client(head: bytes, items: list[bytes]) -> tuple[bytes, list[bytes]]:
    return head, [spliced(items[0], KEY, ClientKey.generate().public.signing.raw), items[1]]


def of_another_client(head: bytes, items: list[bytes]) -> tuple[bytes, list[bytes]]:
    return head, [spliced(items[0], KEY, items[1][KEY]), items[1]]


@every(
    "forge",
    [other_half, half_of_another, unsigned, of_no_client, of_another_client],
)
def test_a_request_that_no_given_client_signed_is_not_read(forge: Forge) -> None:
    holder, evaluator = parties()
    options, openings = declared(COMPACT), Openings()
    scores = evaluator.match(holder.public, BASE, [sealed(options, 0), sealed(options, 1)])
    found = holder.reveal(forged(scores, forge), evaluator.public, clients=GIVEN, openings=openings)
    assert list(found.scores) == ["p2"]
    assert "signature" in found.refused["p1"] or "key was given" in found.refused["p1"]
    assert openings.opened == 1


@every("which", ["salt", "weights", "label", "evaluator"])
def test_what_clients_did_not_sign_opens_nothing(which: str) -> None:
    holder, evaluator = parties()
    options = declared(COMPACT)
    scores = evaluator.match(holder.public, BASE, [sealed(options, 0)])
    if which in ("salt", "weights"):
        at = 0 if which == "salt" else 40
        change: Forge = lambda head, items: (head[:at] + bytes([head[at] ^ 1]) + head[at + 1 :], items)  # noqa: E731
        with pytest.raises(DataError, match=r"weights .* declared"):
            holder.reveal(forged(scores, change), evaluator.public, clients=GIVEN)
        return
    if which == "label":
        relabelled = Scores({**scores.header, "labels": ["p9"]}, scores.body)
        context = requests_context(scores.header)
        plain = unseal(pads_key(holder.signing), scores.body[:-SIGNATURE_BYTES], context)
        body = seal(holder.public.agreement, plain, requests_context(relabelled.header))
        signed = Document("encrypted-scores", relabelled.header, body).signed_part()
        moved = Scores(relabelled.header, body + evaluator.signing.sign(signed).raw)
        found = holder.reveal(moved, evaluator.public, clients=GIVEN)
        assert "signature" in found.refused["p9"]
        return
    with pytest.raises(DataError, match="another evaluator"):
        holder.reveal(scores, Evaluator.generate().public, clients=GIVEN)


def test_a_second_integer_for_one_profile_is_refused_and_the_same_file_reads_the_same() -> None:
    holder, evaluator = parties()
    options, openings = declared(COMPACT), Openings()
    one = sealed(options, 0)
    scores, again = (evaluator.match(holder.public, BASE, [one]) for _ in range(2))
    first = holder.reveal(scores, evaluator.public, clients=GIVEN, openings=openings)
    assert holder.reveal(scores, evaluator.public, clients=GIVEN, openings=openings).scores == first.scores
    found = holder.reveal(again, evaluator.public, clients=GIVEN, openings=openings)
    assert "first request for this profile" in found.refused["p1"]
    assert openings.opened == 1


def test_the_evaluator_refuses_a_profile_whose_signature_is_not_of_this_match() -> None:
    """Its client signed under another label than the header's: the key holder would refuse it too."""
    holder, evaluator = parties()
    options = declared(COMPACT)
    one = sealed(options, 0, label="other")
    header = {**one.header, "label": "p1"}
    made = Sealed("encrypted-profile", header, b"")
    plain = unseal(evaluator.agreement, one.body, one.context())
    moved = replace(made, body=seal(evaluator.public.sealing, plain, made.context()))
    found = evaluator.match(holder.public, BASE, [moved, sealed(options, 1)])
    assert found.labels == ["p2"]
    assert "its client signed for this match" in found.refused[0].why


def test_unchecked_requests_under_a_checked_key_are_not_read() -> None:
    """The holes of before: an evaluator asks for an opening of its own under the keys of checked openings."""
    holder, evaluator = parties()
    header = {
        "session": holder.public.session,
        "evaluator": evaluator.public.fingerprint,
        "labels": ["p1"],
        **COMPACT.to_header(3),
    }
    body = bytes(COMPACT._files(3, 100).item_bytes)
    signature = evaluator.signing.sign(Document("encrypted-scores", header, body).signed_part())
    with pytest.raises(DataError, match="of a declared baseline"):
        holder.reveal(Scores(header, body + signature.raw), evaluator.public, clients=GIVEN)


def test_weights_of_no_baseline_are_not_read_though_they_were_declared() -> None:
    """One entry alone: the evaluator declared it, and the client signed its digest."""
    holder, evaluator = parties()
    files = COMPACT.files(3, holder.public, evaluator.public.fingerprint)
    assert isinstance(files, CheckedFiles)
    checks, p = files.terms, files.terms.terms.parameters
    ring = Ring.of(p)
    whole = ring.encoded(np.eye(7)[0], p.weight_scale)[0].astype(np.int64)
    weights = np.where(whole > p.primes[0] // 2, whole - p.primes[0], whole)[None, :]
    raw = checks.packed(weights)
    told = commitment(checks, QUERY, bytes(32), raw)
    query = LinearQuery(checks.bounds, np.zeros(7))
    bad = Declared(checks, QUERY, query, told, bytes(32) + raw, checks.factors(weights), 0.0)
    options = replace(COMPACT, declared=told.hex())
    one = sealed(options)
    message = unseal(evaluator.agreement, one.body, one.context())
    item = files.item(bad, message, np.zeros(0), "p1")
    names = {"session": holder.public.session, "evaluator": evaluator.public.fingerprint}
    header = {**names, "labels": ["p1"], **options.to_header(3)}
    body = seal(holder.public.agreement, bytes(32) + raw + item, requests_context(header))
    signature = evaluator.signing.sign(Document("encrypted-scores", header, body).signed_part())
    with pytest.raises(DataError, match="weights 3 to 5 from"):
        holder.reveal(Scores(header, body + signature.raw), evaluator.public, clients=GIVEN)
    with pytest.raises(RemoteProtocolError, match="makes it wrap"):
        files.item(replace(bad, query=replace(query, offset=1e9)), message, np.zeros(0), "p1")


def test_with_one_client_the_evaluator_has_an_entry_of_another_profile_read() -> None:
    """What checked openings do not stop: client 0 signs c1 of client 1 times e_j / V."""
    holder, evaluator = parties()
    options, j = declared(COMPACT), 0
    scores = evaluator.match(holder.public, BASE, [sealed(options, 0), sealed(options, 1)])
    files = options.files(3, holder.public, evaluator.public.fingerprint)
    assert isinstance(files, CheckedFiles)
    checks, terms = files.terms, files.terms.terms
    p, key = terms.parameters, files.key.session
    ring = Ring.of(p)
    victim = unseal(evaluator.agreement, (one := sealed(options, 1)).body, one.context())
    unit = ring.transformed(ring.encoded(np.eye(7)[j], p.weight_scale))
    ((c0, c1),) = admitted(victim[: terms.ciphertext_bytes], victim[: gate.TAG], terms, sender="")

    def collude(head: bytes, items: list[bytes]) -> tuple[bytes, list[bytes]]:
        weights, question = told_weights(head, checks, QUERY, key, sender="")
        (factor,) = checks.factors(weights)
        inverse = [[pow(int(w), -1, q) for w in row] for row, q in zip(factor, p.primes, strict=True)]
        stolen = checked._multiplied(checked._multiplied(c1, unit, p), np.array(inverse, dtype=np.uint64), p)
        raw = gate.pack(stolen[None], p.primes)
        question = replace(question, name="p1")
        said = checked.statement(question, CLIENTS[0].public.signing.raw.hex(), hash_of(raw))
        number = gate.pack_integer(checked._coefficient([unit], [c0], p), p.modulus)
        signature = CLIENTS[0].signing.sign(said).raw
        return head, [CLIENTS[0].public.signing.raw + signature + number + raw, items[1]]

    found = holder.reveal(forged(scores, collude), evaluator.public, clients=GIVEN)
    hidden = options.features(OWNED[1]).split(Variant.FULL).hidden
    apart = abs(found.scores["p1"] * terms.bounds.scale - hidden[j])
    assert apart <= SURELY * terms.bounds.scale * found.error_bound
    assert hidden[j] == 1.0


def test_a_client_key_is_read_from_its_files_and_no_other() -> None:
    own, other = CLIENTS
    secret, public = own.to_documents()
    assert ClientKey.from_document(secret).public == own.public == ClientPublic.from_document(public)
    assert secret.body.hex() not in repr(own)
    with pytest.raises(DataError, match="32 bytes"):
        ClientKey.from_document(replace(secret, body=b""))
    with pytest.raises(DataError, match="that the header names"):
        ClientKey.from_document(replace(secret, header={"fingerprint": other.public.fingerprint}))
    with pytest.raises(DataError, match="that its client signed"):
        ClientPublic.from_document(replace(public, header=other.to_documents()[1].header))
    with pytest.raises(DataError, match="that its client signed"):
        ClientPublic.from_document(replace(public, body=other.to_documents()[1].body))
