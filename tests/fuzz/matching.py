"""Doors of encrypted matching: what parties and files bring to ciphertexts, pads, keys and scores."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tenseal as ts
from fuzz.target import Target
from support.tiny_he import SIGNER, Checked, pad_holder, pad_request, pad_score, pad_server

from securefl.core.errors import DataError, SecureFLError
from securefl.core.keys import PublicKey
from securefl.core.signing import AgreementKey, SigningKey, seal, unseal
from securefl.dp.moments import MeanVariance
from securefl.he.keys import EncryptionKey, KeyPair
from securefl.he.openings import Openings
from securefl.he.parameters import COMPACT, STRONG_ENCRYPTED
from securefl.linear.checked import admit as admit_ckks
from securefl.linear.encrypted import LinearEvaluator, Opener
from securefl.linear.encryptor import Encryptor
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import admit, mask
from securefl.linear.terms import LinearTerms
from securefl.linear.turn import INDEX, SALT, QueryServer, framed
from securefl.matching import Declaration, KeyHolder, Options, Profile, PublicKeys, Scores, Sealed
from securefl.matching import Evaluator as FileEvaluator
from securefl.matching.document import Document
from securefl.matching.keys import EvaluatorPublic, pads_key
from securefl.matching.matched import Matched
from securefl.matching.matchers import requests_context
from securefl.matching.profiles import Anchor, Bounds, Variant, features, linear_query

Q = 4
BOUNDS = Bounds(mean=16, variance_high=64, weight=16)
SIGNING = SigningKey.generate()


def signed(raw: bytes) -> bytes:
    """What a corrupted evaluator would send: damage under a signature that fits."""
    return raw[:-64] + SIGNING.sign(raw[:-64]).raw


def checksummed(raw: bytes) -> bytes:
    return raw[:-32] + hashlib.sha256(raw[:-32]).digest()


def ciphertext_doors() -> list[Target]:
    some, anchor = MeanVariance(np.zeros(Q), np.ones(Q), 1), Anchor(np.zeros(Q), np.ones(Q))
    parties = Checked(COMPACT, linear_query(some, anchor, BOUNDS, Variant.MEAN_ONLY), scores=10**6)
    split, key = features(some, anchor, BOUNDS).split(Variant.MEAN_ONLY), parties.pair.public
    message = parties.message(split.hidden)
    arrived = parties.arrived(message, split.clear)
    request = parties.server.request([arrived])
    reply = parties.holder().open(request)

    def admitted(raw: bytes) -> object:
        return admit_ckks(raw, parties.checks, key.session, sender="fuzz")

    def opened(raw: bytes) -> object:
        def report(sender: str, why: str) -> None:
            raise DataError(why)

        return parties.holder(report=report).open(raw)

    def plaintext_part(raw: bytes) -> object:
        values = np.frombuffer(raw[: len(raw) // 8 * 8], dtype=np.float64)
        return parties.declared.arrived(arrived.entry, 0, values, "fuzz")

    def resigned(raw: bytes) -> bytes:
        """What a corrupted server would send: damage under a signature that fits."""
        head = INDEX + SALT + parties.checks.weights_bytes
        body = raw[:head] + parties.checks.short(raw[head:-64])
        return raw[:-64] + SIGNER.sign(framed(parties.checks, body)).raw

    return [
        Target("match", lambda raw: parties.arrived(raw, split.clear), message),
        Target(
            "admit",
            lambda raw: admit_ckks(raw, parties.checks, key.session, sender="fuzz"),
            message,
            weight=30,
        ),
        Target("clear", plaintext_part, split.clear.tobytes(), weight=2),
        Target("open", opened, request, weight=30),
        Target("open signed", opened, request, resigned, weight=8),
        Target("add", lambda raw: parties.server.opened([arrived], raw, sender="fuzz"), reply, weight=60),
        Target(
            "key",
            lambda raw: EncryptionKey(COMPACT, PublicKey(raw)).residues(),
            key.key.raw,
            weight=8,
        ),
    ]


def encrypted_baseline_doors() -> list[Target]:
    terms = LinearTerms(parameters=STRONG_ENCRYPTED, bounds=BOUNDS.linear(Q, Variant.FULL), scores=10**6)
    keys, anchor = KeyPair.generate(STRONG_ENCRYPTED), Anchor(np.zeros(Q), np.ones(Q))
    evaluator, client = LinearEvaluator(keys.public, terms, SIGNING), Encryptor(keys.public, terms)
    some = MeanVariance(np.zeros(Q), np.ones(Q), 1)
    message = client.encrypt_baseline(linear_query(some, anchor, BOUNDS))
    ciphertext = client.encrypt(features(some, anchor, BOUNDS).split(Variant.FULL).hidden)
    baseline, opener = evaluator.encrypted_baseline(message), Opener(keys, terms, SIGNING.public)
    request = evaluator.addressed(ciphertext, baseline)
    return [
        Target("baseline", evaluator.encrypted_baseline, message, weight=4),
        Target("address", lambda raw: evaluator.addressed(raw, baseline), ciphertext, weight=4),
        Target("read", opener.read, request, weight=8),
        Target("read signed", opener.read, request, signed, weight=8),
    ]


def pad_doors() -> list[Target]:
    some, anchor = MeanVariance(np.zeros(Q), np.ones(Q), 1), Anchor(np.zeros(Q), np.ones(Q))
    query, split = linear_query(some, anchor, BOUNDS), features(some, anchor, BOUNDS).split(Variant.FULL)
    terms = PadTerms(bounds=BOUNDS.linear(Q, Variant.FULL), context=b"fuzz")
    agreement = AgreementKey.generate()
    server = pad_server(terms, 0, "profile", SIGNING, query)
    masked = mask(split.hidden, terms, "profile", server.declared.told, agreement.public)
    request = pad_request(server, [masked])
    doors = PadDoors((agreement, terms, ("profile",), 9, SIGNING.public), terms, server, masked)
    return [
        Target("pad request", doors.open, request, weight=30),
        Target("pad request signed", doors.open, request, doors.signed, weight=6),
        Target("pad sums", doors.score, doors.open(request), weight=60),
        Target("pad message", doors.message, masked, weight=30),
    ]


@dataclass(frozen=True)
class PadDoors:
    """What reads bytes under pads. A key holder is made anew for each request: it answers one of a query."""

    own: tuple[Any, ...]
    terms: PadTerms
    server: QueryServer
    masked: bytes

    def open(self, raw: bytes) -> bytes:
        return pad_holder(*self.own).open(raw)

    def signed(self, raw: bytes) -> bytes:
        return raw[:-64] + SIGNING.sign(framed(self.terms, raw[:-64])).raw

    def score(self, raw: bytes) -> object:
        return pad_score(self.server, self.masked, raw[:8])

    def message(self, raw: bytes) -> object:
        return admit(raw, self.terms, sender="fuzz")


class PadFileDoors:
    """What is inside the seals of files under pads. The evaluator's record and the count are made anew."""

    def __init__(self, keys: KeyHolder, server: FileEvaluator, padded: Sealed, words: Scores) -> None:
        self.keys, self.server, self.padded, self.words = keys, server, padded, words
        self.message = unseal(server.agreement, padded.body, padded.context())
        self.plain = unseal(pads_key(keys.signing), words.body[:-64], requests_context(words.header))

    def profile(self, raw: bytes) -> object:
        one, base = self.padded, Profile(np.zeros(Q), np.ones(Q))
        body = seal(self.server.public.sealing, raw, one.context())
        sent = [Sealed(one.kind, one.header, body)]
        return self.server.match(self.keys.public, base, sent, matched=Matched())

    def scores(self, raw: bytes) -> object:
        header = self.words.header
        body = seal(self.keys.public.agreement, raw, requests_context(header))
        signed = Document("encrypted-scores", header, body).signed_part()
        made = Scores(header, body + self.server.signing.sign(signed).raw)
        if refused := self.keys.reveal(made, self.server.public, openings=Openings()).refused:
            raise DataError(str(refused))
        return made


def file_doors() -> list[Target]:
    keys, server = KeyHolder.generate(openings=10**6, parameters="strong"), FileEvaluator.generate()
    some, mode_e = Profile(np.zeros(Q), np.ones(Q)), Options(parameters="strong-encrypted")
    sealed = some.encrypt(keys.public, server.public, label="p", options=mode_e)
    scores = server.match(
        keys.public, some.encrypt_baseline(keys.public, server.public, options=mode_e), [sealed]
    )
    secret, public = server.to_documents()

    def reads(kind: str, use: Callable[[Document], object]) -> Callable[[bytes], object]:
        return lambda raw: use(Document.from_bytes(raw, kind))

    def unsealed(content: Document) -> object:
        one = Sealed.from_document(content)
        return (
            one.label,
            server._check(keys.public, one, content.kind),
            Options.from_header(one.header),
            server._unsealed(one),
        )

    found = []
    options = Options(parameters="pads")
    base = Profile(np.zeros(Q), np.ones(Q))
    declaration = server.declare(keys.public, base, options=options)
    told = declaration.checked(keys.public, server.public)
    dealt_doors, told_doors = (
        PadFileDoors(keys, server, padded, server.match(keys.public, base, [padded]))
        for padded in (
            base.encrypt(keys.public, server.public, label="p", options=one) for one in (options, told)
        )
    )

    def declared(content: Document) -> object:
        return Declaration.from_document(content).checked(keys.public, server.public)

    def resigned(raw: bytes) -> bytes:
        """What a corrupted evaluator would declare: damage under a signature that fits."""
        try:
            came = Document.from_bytes(checksummed(raw), "declared-baseline")
        except SecureFLError:
            return raw
        own = server.signing.sign(Document(came.kind, came.header, b"").signed_part())
        return Document(came.kind, came.header, own.raw).to_bytes()

    for name, content, use, weight in (
        ("public.key", keys.public.to_document(), PublicKeys.from_document, 2),
        ("secret.key", keys.to_document(), KeyHolder.from_document, 2),
        ("evaluator.key", secret, FileEvaluator.from_document, 30),
        ("evaluator.pub", public, EvaluatorPublic.from_document, 30),
        ("p.enc", sealed.to_document(), unsealed, 4),
        (
            "scores.enc",
            scores.to_document(),
            lambda c: keys.reveal(Scores.from_document(c), server.public),
            3,
        ),
        ("padded p.enc", dealt_doors.padded.to_document(), unsealed, 20),
        ("told p.enc", told_doors.padded.to_document(), unsealed, 20),
        ("b.declared", declaration.to_document(), declared, 30),
    ):
        enter = reads(content.kind, use)
        found.append(Target(name, enter, content.to_bytes(), weight=weight))
        found.append(Target(f"{name} checksummed", enter, content.to_bytes(), checksummed, weight=weight))
    context = sealed.context()
    return [
        *found,
        Target(
            "b.declared signed",
            reads("declared-baseline", declared),
            declaration.to_document().to_bytes(),
            resigned,
            weight=30,
        ),
        Target("padded profile", dealt_doors.profile, dealt_doors.message, weight=20),
        Target("padded scores", dealt_doors.scores, dealt_doors.plain, weight=20),
        Target("told profile", told_doors.profile, told_doors.message, weight=20),
        Target("told scores", told_doors.scores, told_doors.plain, weight=20),
        Target("seal", lambda raw: unseal(server.agreement, raw, context), sealed.body, weight=3),
    ]


def attacks() -> list[bytes]:
    """What crashes TenSEAL or passes it in silence (its own format, which no door reads)."""
    context = ts.context(ts.SCHEME_TYPE.CKKS, 4096, coeff_mod_bit_sizes=[40, 20, 40])
    vector = ts.ckks_vector(context, [1.0] * 8, 2.0**20).serialize()
    rests = (b"", b"\x0a\x00", b"\x0a\x02\x80\x20", vector[:40], vector[40:])
    return [vector, *rests, vector + vector, context.serialize(save_secret_key=False), b"\x00" * 16, b"{}"]


DOORS: Mapping[str, Callable[[], list[Target]]] = {
    "ciphertexts": ciphertext_doors,
    "encrypted baselines": encrypted_baseline_doors,
    "pads": pad_doors,
    "matching files": file_doors,
}
