"""The evaluator's two ways to score a sealed profile: ciphertexts, and words under pads.

Ciphertexts: a request is an encrypted score, which the key holder decrypts. Pads: a request is a word and a
share of the weights. Of the two kinds of pads, files take the dealt ones. The evaluator learns no score, so
weights that are bound to a digest beforehand (told pads) would keep nothing from it, and the key holder would
read the baseline. Nor need clients wait until an evaluator has declared its weights.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from securefl.core.agreement import fields
from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.linear import Floats, LinearQuery
from securefl.core.signing import seal
from securefl.linear.addressed_pads import addressed, message_bytes, received
from securefl.linear.evaluator import Baseline, LinearEvaluator
from securefl.linear.pad_terms import KEY, PLACE, PadTerms
from securefl.linear.pads import weights_of
from securefl.linear.terms import LinearTerms
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
    """Scores ciphertexts with a baseline that `LinearEvaluator` prepared."""

    def __init__(self, evaluator: LinearEvaluator, baseline: Baseline, terms: LinearTerms) -> None:
        self._evaluator, self._baseline, self._terms = evaluator, baseline, terms

    def request(self, message: bytes, label: str) -> bytes:
        size = self._terms.ciphertext_bytes
        clear = _clear_values(message[size:], self._terms.clear_length, label)
        return self._evaluator.addressed(message[:size], self._baseline, clear, sender=label)

    def body(self, requests: Iterable[bytes], header: Header) -> bytes:
        return b"".join(requests)


class PadMatcher:
    """Scores words under pads.

    Args:
        public: the key holder's public keys.
        terms: of this session, evaluator and these options.
        query: the baseline.
        messages: those of all profiles. If two have one fresh key, neither is scored: one of them copied it,
            and nobody can tell which.
        matched: the evaluator's record.

    Raises:
        ConfigError: a baseline whose scores could wrap.
    """

    def __init__(
        self,
        public: PublicKeys,
        terms: PadTerms,
        query: LinearQuery,
        messages: Iterable[bytes],
        matched: Matched,
    ) -> None:
        if not terms.bounds.clear and terms.bounds.product + abs(query.offset) > terms.capacity:
            raise ConfigError(
                "Expected a baseline whose scores fit words of "
                f"{terms.word_bits} bits, got one whose constant {query.offset:.3g} makes them wrap. Give "
                "all parties a public --anchor near the baseline, or wider bounds."
            )
        self._public, self._terms, self._query, self._matched = public, terms, query, matched
        self._weights = weights_of(query, terms)
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
        item = addressed(masked, tag, self._weights, self._query, self._terms)
        # Also over the terms: under others the client's share would be another part of one stream.
        self._matched.once(masked.fresh.raw, item_digest(self._terms, label, item), sender=label)
        return item

    def body(self, requests: Iterable[bytes], header: Header) -> bytes:
        context = requests_context(header)
        # Sealed: whoever reads the shares together with a client would know the baseline.
        return seal(self._public.agreement, b"".join(requests), context)


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


def item_digest(terms: PadTerms, label: str, item: bytes) -> bytes:
    """SHA-256 of a request under pads, with its terms and label."""
    return hashlib.sha256(b"securefl/matching/item/1|" + fields(terms.digest, label.encode(), item)).digest()


def requests_context(header: Header) -> bytes:
    """The bytes that the seal of requests binds: kind and header of their file."""
    return Document("encrypted-scores", header, b"").signed_part()
