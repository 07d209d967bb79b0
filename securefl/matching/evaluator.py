"""The evaluator: matches sealed profiles with a baseline; learns no score."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from securefl.errors import ConfigError, CryptoError, DataError, RemoteProtocolError
from securefl.he.client import Encryptor
from securefl.he.match import Baseline
from securefl.he.match import Evaluator as Matcher
from securefl.he.terms import Terms
from securefl.keys import PublicKey, SecretKey, Signature
from securefl.matching.envelope import Envelope
from securefl.matching.keys import PublicKeys, hexadecimal
from securefl.matching.options import Options
from securefl.matching.sealed import BASELINE, PROFILE, Profile, Scores, Sealed
from securefl.signing import AgreementKey, SigningKey, unseal, verify

KIND: Final = "evaluator-key"
PUBLIC_KIND: Final = "evaluator-public"


@dataclass(frozen=True)
class EvaluatorPublic:
    """What the evaluator gives to clients (`sealing`, X25519) and to the key holder (`signing`, Ed25519)."""

    sealing: PublicKey
    signing: PublicKey

    @property
    def fingerprint(self) -> str:
        """32 hex digits; every file for or from this evaluator carries them."""
        return hashlib.sha256(self.sealing.raw + self.signing.raw).hexdigest()[:32]

    def to_envelope(self, signature: Signature) -> Envelope:
        header = {
            "session": self.fingerprint,
            "sealing": self.sealing.raw.hex(),
            "signing": self.signing.raw.hex(),
        }
        return Envelope(PUBLIC_KIND, header, signature.raw)

    @classmethod
    def from_envelope(cls, content: Envelope) -> EvaluatorPublic:
        """Raises DataError for a file that its evaluator did not sign."""
        sealing, signing = (hexadecimal(content.header.get(name), 32) for name in ("sealing", "signing"))
        found = cls(PublicKey(sealing), PublicKey(signing))
        if content.header.get("session") != found.fingerprint:
            raise DataError("The evaluator's keys are not those its header names.")
        try:
            verify(found.signing, Signature(content.body), _statement(sealing + signing))
        except CryptoError as error:
            raise DataError(f"The evaluator's keys are forged or damaged: {error}") from None
        return found


@dataclass(frozen=True)
class Evaluator:
    """The evaluator's keys, for as many sessions as it likes."""

    agreement: AgreementKey
    signing: SigningKey

    @classmethod
    def generate(cls) -> Evaluator:
        """Fresh keys, from the operating system's randomness."""
        return cls(AgreementKey.generate(), SigningKey.generate())

    @property
    def public(self) -> EvaluatorPublic:
        return EvaluatorPublic(self.agreement.public, self.signing.public)

    def match(self, public: PublicKeys, baseline: Profile | Sealed, sealed: Sequence[Sealed]) -> Scores:
        """Every profile's divergence from the baseline, for the key holder's eyes.

        baseline: a Profile this evaluator knows (mode P), or one that its owner encrypted (mode E).
        Raises DataError for messages of another session, evaluator or options, or two of one label;
        RemoteProtocolError, naming the label, for what does not pass the gate.
        """
        if not sealed:
            raise DataError("Expected at least one encrypted profile.")
        options, length = Options.from_header(sealed[0].header)
        for one in sealed:
            self._ours(public, one, PROFILE, options, length)
        labels = [one.label for one in sealed]
        if len(set(labels)) < len(labels):
            raise DataError(
                f"Expected each label once, got {', '.join(sorted(labels))}; encrypt under others."
            )
        terms = options.terms(length, public.openings)
        matcher = Matcher(public.of(terms.parameters), terms, self.signing)
        weights = self._baseline(public, baseline, matcher, options, terms)
        requests = [self._addressed(one, matcher, weights, terms) for one in sealed]
        header: dict[str, Any] = {
            "session": public.session,
            "evaluator": self.public.fingerprint,
            "labels": labels,
            **options.to_header(length),
        }
        content = Envelope("encrypted-scores", header, b"".join(requests))
        return Scores(header, content.body + self.signing.sign(content.signed_part()).raw)

    def _addressed(self, one: Sealed, matcher: Matcher, weights: Baseline, terms: Terms) -> bytes:
        message = self._unsealed(one)
        clear = message[matcher.ciphertext_bytes :]
        if len(clear) != 8 * terms.clear_length:
            raise RemoteProtocolError("The message has another length.", sender=one.label, phase="gate")
        values = np.frombuffer(clear, dtype="<f8").astype(np.float64)
        return matcher.addressed(message[: matcher.ciphertext_bytes], weights, values, sender=one.label)

    def _baseline(
        self, public: PublicKeys, baseline: Profile | Sealed, matcher: Matcher, options: Options, terms: Terms
    ) -> Baseline:
        if isinstance(baseline, Sealed):
            self._ours(public, baseline, BASELINE, options, terms.length)
            return matcher.encrypted_baseline(self._unsealed(baseline), sender=baseline.label)
        if len(baseline.plain) != terms.length:
            raise ConfigError(
                f"The profiles have {terms.length} elements, the baseline {len(baseline.plain)}."
            )
        query = options.query(baseline.plain)
        if not terms.parameters.encrypted_baseline:
            return matcher.baseline(query)
        own = Encryptor(public.of(terms.parameters), terms)
        return matcher.encrypted_baseline(own.encrypt_baseline(query))

    def _unsealed(self, one: Sealed) -> bytes:
        try:
            return unseal(self.agreement, one.body, one.context())
        except CryptoError as error:
            raise DataError(f"{one.label}: {error}") from None

    def _ours(self, public: PublicKeys, one: Sealed, kind: str, options: Options, length: int) -> None:
        """Raises DataError unless the message is of this session, evaluator, kind and set of options."""
        theirs, its_length = Options.from_header(one.header)
        agreed = options.to_header(length)
        differing = [name for name, value in theirs.to_header(its_length).items() if value != agreed[name]]
        if one.kind != kind:
            raise DataError(f"{one.label} is an {one.kind}, expected an {kind}.")
        if one.header.get("session") != public.session:
            raise DataError(f"{one.label} belongs to another key holder's session: encrypt it to this one.")
        if one.header.get("evaluator") != self.public.fingerprint:
            raise DataError(f"{one.label} is sealed to another evaluator.")
        if differing:
            raise DataError(f"{one.label} was encrypted with another {', '.join(differing)} than the first.")

    # As files -------------------------------------------------------------------------------------

    def to_envelopes(self) -> tuple[Envelope, Envelope]:
        """The secret file and the public one."""
        own = self.public
        secret = self.agreement.secret.reveal() + self.signing.secret.reveal()
        signature = self.signing.sign(_statement(own.sealing.raw + own.signing.raw))
        return Envelope(KIND, {"session": own.fingerprint}, secret), own.to_envelope(signature)

    @classmethod
    def from_envelope(cls, content: Envelope) -> Evaluator:
        if len(content.body) != 64:
            raise DataError("This is no key of an evaluator.")
        found = cls(AgreementKey(SecretKey(content.body[:32])), SigningKey(SecretKey(content.body[32:])))
        if content.header.get("session") != found.public.fingerprint:
            raise DataError("The evaluator's key is not that its header names.")
        return found


def _statement(keys: bytes) -> bytes:
    """What an evaluator signs of its own keys."""
    return b"securefl/matching/evaluator/1|" + keys
