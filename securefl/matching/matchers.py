"""The evaluator's ways to score a sealed profile: ciphertexts, signed or not, and words under pads.

Ciphertexts with an encrypted baseline: a request is an encrypted score, which the key holder decrypts. Signed
ciphertexts: it is half of one, which the key holder multiplies by the declared weights. Pads: a request is a
word, and a share of the weights if they are dealt.

Files take dealt pads unless the evaluator declared its baseline. The evaluator gets no score back, so weights
that are bound to a digest keep nothing from the evaluator alone. They keep it from having the key holder read
something else than a score, which counts if the key holder tells scores. The price: clients wait for the
declaration, and the key holder learns the baseline.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from securefl.core.agreement import fields
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.formats import prefix
from securefl.core.linear import Floats, LinearQuery
from securefl.core.signing import seal
from securefl.linear import addressed_checked, addressed_pads, addressed_told
from securefl.linear.addressed_pads import message_bytes, received
from securefl.linear.checked import Declared, Question
from securefl.linear.checks import Checks
from securefl.linear.evaluator import Baseline, LinearEvaluator
from securefl.linear.pad_terms import KEY, PLACE, PadTerms
from securefl.linear.pads import Masked, weights_of
from securefl.linear.terms import LinearTerms, clear_part
from securefl.matching.declared import Weights
from securefl.matching.document import Document
from securefl.matching.keys import PublicKeys
from securefl.matching.matched import Matched

Header = Mapping[str, Any]


class Matcher(Protocol):
    """One way to score the profiles of one match."""

    def request(self, message: bytes, label: str) -> bytes:
        """The request for one score. Raises RemoteProtocolError(label) for a message that does not pass."""
        ...

    def body(self, requests: Iterable[bytes], header: Header) -> bytes:
        """The requests as the body of a file with this header, before it is signed."""
        ...


class CkksMatcher:
    """Scores ciphertexts with an encrypted baseline."""

    def __init__(self, evaluator: LinearEvaluator, baseline: Baseline, terms: LinearTerms) -> None:
        self._evaluator, self._baseline, self._terms = evaluator, baseline, terms

    def request(self, message: bytes, label: str) -> bytes:
        size = self._terms.ciphertext_bytes
        clear = _clear_values(message[size:], self._terms.clear_length, label)
        return self._evaluator.addressed(message[:size], self._baseline, clear, sender=label)

    def body(self, requests: Iterable[bytes], header: Header) -> bytes:
        return b"".join(requests)


class CheckedMatcher:
    """Scores ciphertexts that their clients signed, with the declared baseline.

    Args:
        public: the key holder's public keys.
        checks: of this session, evaluator and these options.
        declared: the weights.
        query: the baseline.
        digest: the digest that the clients were told.

    Raises:
        ConfigError: another baseline than the declared one.
    """

    def __init__(
        self, public: PublicKeys, checks: Checks, declared: Declared, query: LinearQuery, digest: str
    ) -> None:
        _require_the_declared(declared.told, digest)
        self._public, self._checks, self._declared, self._query = public, checks, declared, query
        self._key, self._rng = public.of(checks.terms.parameters).session, random.SystemRandom()

    def request(self, message: bytes, label: str) -> bytes:
        checks = self._checks
        size = addressed_checked.message_bytes(checks)
        raw = _clear_values(message[size:], checks.terms.clear_length, label)
        clear = clear_part(raw, checks.terms.bounds, label)
        offset = self._query.offset + float(clear @ self._query.clear)
        question = Question(checks=checks, key=self._key, name=label, told=self._declared.told)
        return addressed_checked.addressed(
            message[:size], question, self._declared, offset, self._rng, sender=label
        )

    def body(self, requests: Iterable[bytes], header: Header) -> bytes:
        head = self._declared.salt + self._declared.packed
        # Sealed: the weights before the requests are for the key holder alone.
        return seal(self._public.agreement, head + b"".join(requests), requests_context(header))


class PadMatcher:
    """Scores words under pads.

    Args:
        public: the key holder's public keys.
        terms: of this session, evaluator and these options.
        query: the baseline.
        messages: those of all profiles. If two have one fresh key, neither is scored: one of them copied it,
            and nobody can tell which.
        requests: the kind of pads.

    Raises:
        ConfigError: a baseline whose scores could wrap.
    """

    def __init__(
        self,
        public: PublicKeys,
        terms: PadTerms,
        query: LinearQuery,
        messages: Iterable[bytes],
        requests: Dealt | Told,
    ) -> None:
        if not terms.bounds.clear and terms.bounds.product + abs(query.offset) > terms.capacity:
            raise ConfigError(
                "Expected a baseline whose scores fit words of "
                f"{terms.word_bits} bits, got one whose constant {query.offset:.3g} makes them wrap. Give "
                "all parties a public --anchor near the baseline, or wider bounds."
            )
        self._public, self._terms, self._query, self._requests = public, terms, query, requests
        self._uses = Counter(map(_fresh_key, messages))

    def request(self, message: bytes, label: str) -> bytes:
        size = message_bytes(self._terms)
        clear = _clear_values(message[size:], self._terms.bounds.clear_length, label)
        masked, tag = received(message[:size], clear, self._terms, sender=label)
        if self._uses[masked.fresh.raw] > 1:
            raise RemoteProtocolError(
                "Expected a fresh key of its own, got one that another profile has too. Encrypt it again.",
                sender=label,
                phase="pads",
            )
        return self._requests.request(masked, tag, self._query, label)

    def body(self, requests: Iterable[bytes], header: Header) -> bytes:
        context = requests_context(header)
        # Sealed: whoever reads the shares together with a client would know the baseline.
        return seal(self._public.agreement, self._requests.head + b"".join(requests), context)


class Dealt:
    """Requests with a share of the weights. Of each profile there is one, ever."""

    head = b""

    def __init__(self, terms: PadTerms, query: LinearQuery, matched: Matched) -> None:
        self._terms, self._matched, self._weights = terms, matched, weights_of(query, terms)

    def request(self, masked: Masked, tag: bytes, query: LinearQuery, label: str) -> bytes:
        item = addressed_pads.addressed(masked, tag, self._weights, query, self._terms)
        # Also over the terms: under others the client's share would be another part of one stream.
        self._matched.once(masked.fresh.raw, item_digest(self._terms, label, item), sender=label)
        return item


class Told:
    """Requests whose weights stand before them. Raises ConfigError for another baseline than the declared."""

    def __init__(self, terms: PadTerms, weights: Weights, declared: str) -> None:
        _require_the_declared(weights.digest, declared)
        self._terms, self._weights, self.head = terms, weights.words, weights.head

    def request(self, masked: Masked, tag: bytes, query: LinearQuery, label: str) -> bytes:
        return addressed_told.addressed(masked, tag, self._weights, query, self._terms)


def _require_the_declared(digest: bytes, declared: str) -> None:
    if digest.hex() != declared:
        raise ConfigError(
            "Expected the baseline that was declared to the clients, got another. Give that one, or "
            "declare this one and have the profiles encrypted again."
        )


def _fresh_key(message: bytes) -> bytes:
    return message[PLACE : PLACE + KEY]


def _clear_values(raw: bytes, count: int, label: str) -> Floats:
    if len(raw) != 8 * count:
        raise RemoteProtocolError(
            f"Expected {8 * count} bytes in the clear, got {len(raw)}. Encrypt it again.",
            sender=label,
            phase="gate",
        )
    return np.frombuffer(raw, dtype="<f8").astype(np.float64)


def item_digest(terms: PadTerms, label: str, item: bytes, told: bytes = b"") -> bytes:
    """SHA-256 of a request under pads, with its terms, its label, and the digest of told weights."""
    whole = fields(terms.digest, label.encode(), item, told)
    return hashlib.sha256(prefix("matching/item") + whole).digest()


def requests_context(header: Header) -> bytes:
    """The bytes that the seal of requests binds: kind and header of their file."""
    return Document("encrypted-scores", header, b"").signed_part()
