"""The key holder's ways to read a score that is addressed to it: ciphertexts, and words under pads."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from typing import Protocol

from securefl.core.errors import ConfigError, CryptoError, DataError, RemoteProtocolError
from securefl.core.formats import prefix
from securefl.core.signing import SIGNATURE_BYTES, AgreementKey, unseal
from securefl.he import gate
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.he.ring import Ring
from securefl.linear import addressed_checked, addressed_pads, addressed_told
from securefl.linear.checked import Question, key_factors, share_of, verified
from securefl.linear.checks import Checks
from securefl.linear.opener import Opener, Score, addressed_score
from securefl.linear.pad_terms import KEY, PadTerms
from securefl.linear.terms import LinearTerms
from securefl.linear.words import Words
from securefl.matching.clients import ClientPublic
from securefl.matching.matchers import Header, item_digest, requests_context

_DIGEST = 32


class Reader(Protocol):
    """One way to read the scores of one file."""

    @property
    def requests(self) -> tuple[bytes, ...]:
        """One request for each label, in order."""
        ...

    @property
    def error_bound(self) -> float:
        """The largest error of all scores."""
        ...

    def name(self, request: bytes) -> str:
        """16 hex digits that name a request in the ledger."""
        ...

    def read(self, request: bytes, label: str) -> Score:
        """The score. Raises RemoteProtocolError(label) for a request that must not be answered."""
        ...


def split(body: bytes, count: int) -> tuple[bytes, ...]:
    """One request for each of `count` labels. Raises DataError for a body of another length."""
    size, rest = divmod(len(body), count)
    if rest:
        raise DataError(
            f"Expected one request for each of {count} labels, got {len(body)} bytes. Have the profiles "
            "matched again."
        )
    return tuple(body[i * size : (i + 1) * size] for i in range(count))


class CkksReader:
    """Reads encrypted scores."""

    def __init__(self, opener: Opener, terms: LinearTerms, body: bytes, count: int) -> None:
        self._opener = opener
        self.requests = split(body, count)
        self.error_bound = terms.error_bound(count, floods=2)

    def name(self, request: bytes) -> str:
        return hashlib.sha256(request[:-SIGNATURE_BYTES]).hexdigest()[:16]

    def read(self, request: bytes, label: str) -> Score:
        return self._opener.read(request, together=len(self.requests), sender=label)


class CheckedReader:
    """Reads scores of ciphertexts that the given clients signed, with the declared weights.

    Args:
        pair: the key of these terms.
        agreement: the key holder's X25519 key, to which requests are sealed.
        checks: of this session, evaluator and these options.
        body, header, count: of the file, and its number of labels.
        clients: the signing keys of those who may be opened.
        openings: the durable record. A statement is opened once.

    Raises:
        DataError: requests that were not sealed to this key with this header, or of another length, or
            weights that no baseline inside the bounds has or that were not the declared ones.
    """

    def __init__(
        self,
        pair: KeyPair,
        agreement: AgreementKey,
        checks: Checks,
        body: bytes,
        header: Header,
        count: int,
        clients: frozenset[bytes],
        openings: Openings,
    ) -> None:
        plain = _unsealed(agreement, body, header)
        head, size = addressed_checked.head_bytes(checks), addressed_checked.item_bytes(checks)
        if len(plain) != head + count * size:
            raise DataError(
                f"Expected {count} requests of {size} bytes, got {len(plain) - head} bytes. Have the "
                "profiles matched again."
            )
        try:
            weights, self._told = addressed_checked.checked_head(plain[:head], checks)
        except ConfigError as error:
            raise DataError(f"{error} Have the profiles matched again.") from None
        _require_the_told(self._told, header)
        self._checks, self._clients, self._openings = checks, clients, openings
        self._key, self._rng = pair.public.session, random.SystemRandom()
        self._factors = key_factors(weights, pair, checks, Ring.of(checks.terms.parameters))
        self.requests = split(plain[head:], count)
        self.error_bound = checks.terms.error_bound(count, floods=2)

    def name(self, request: bytes) -> str:
        return hashlib.sha256(request).hexdigest()[:16]

    def read(self, request: bytes, label: str) -> Score:
        terms, p = self._checks.terms, self._checks.terms.parameters
        public, signed, number = addressed_checked.parsed(request, self._checks, sender=label)
        if public.raw not in self._clients:
            own_name = ClientPublic(public).fingerprint
            raise _refusal(
                "Expected a profile of a client whose key was given, got one of the client with fingerprint "
                f"{own_name}. Give its client.pub as --client.",
                label,
                phase="checks",
            )
        question = Question(checks=self._checks, key=self._key, name=label, told=self._told)
        said, parts = verified(question, public.raw.hex(), public, signed, sender=label)
        own = hashlib.sha256(prefix("matching/checked/item") + said + request).digest()

        def reply() -> bytes:
            share = share_of(self._factors, parts, terms, self._rng)
            return own + gate.pack_integer((number + share) % p.modulus, p.modulus)

        once = hashlib.sha256(said).digest()
        stored = self._openings.once(once, 1, terms.scores, reply, sender=label)
        if stored[:_DIGEST] != own:
            raise _refusal(
                "Expected the first request for this profile again, got another. Have it encrypted again.",
                label,
                phase="checks",
            )
        opened = int.from_bytes(stored[_DIGEST:], "little")
        return addressed_score(opened, terms, len(self.requests), sender=label)


class PadReader:
    """Reads words under pads, dealt or told, of each fresh key one.

    The record of openings is keyed by the fresh key, so it holds over restarts. A second difference for one
    fresh key would be a second equation on its client's profile.

    Raises:
        DataError: requests that were not sealed to this key with this header, or of another length, or told
            weights that no baseline inside the bounds has or that were not the declared ones.
    """

    def __init__(
        self,
        agreement: AgreementKey,
        terms: PadTerms,
        body: bytes,
        header: Header,
        count: int,
        openings: Openings,
        most: int,
    ) -> None:
        self._agreement, self._terms = agreement, terms
        self._openings, self._most = openings, most
        self._told = b""
        self._weights: Words | None = None
        self.requests = self._unsealed(body, header, count)
        self.error_bound = addressed_pads.error_bound(terms)
        self._uses = Counter(one[:KEY] for one in self.requests)

    def _unsealed(self, body: bytes, header: Header, count: int) -> tuple[bytes, ...]:
        plain, terms = _unsealed(self._agreement, body, header), self._terms
        size, head = addressed_pads.item_bytes(terms), 0 if terms.dealt else addressed_told.head_bytes(terms)
        if len(plain) != head + count * size:
            raise DataError(
                f"Expected {count} requests of {size} bytes, words of {terms.word_bits} bits, got "
                f"{len(plain) - head} bytes. Have the profiles matched again."
            )
        if not terms.dealt:
            self._read_weights(plain[:head], header)
        return split(plain[head:], count)

    def _read_weights(self, head: bytes, header: Header) -> None:
        try:
            self._weights, self._told = addressed_told.checked(head, self._terms)
        except ConfigError as error:
            raise DataError(f"{error} Have the profiles matched again.") from None
        _require_the_told(self._told, header)

    def name(self, request: bytes) -> str:
        return hashlib.sha256(request).hexdigest()[:16]

    def read(self, request: bytes, label: str) -> Score:
        fresh, terms = request[:KEY], self._terms
        if self._uses[fresh] > 1:
            raise _refusal(
                "Expected each fresh key once, got one twice. Have the profile encrypted again.", label
            )
        own = item_digest(terms, label, request, self._told)

        def reply() -> bytes:
            return own + self._word(request, label).to_bytes(terms.word_bytes, "little")

        once = hashlib.sha256(prefix("matching/once") + fresh).digest()
        stored = self._openings.once(once, 1, self._most, reply, sender=label)
        if stored[:_DIGEST] != own:
            raise _refusal(
                "Expected the first request for this profile again, got another: under pads a profile is "
                "scored once. Have it encrypted again.",
                label,
            )
        return addressed_pads.score(int.from_bytes(stored[_DIGEST:], "little"), terms, sender=label)

    def _word(self, request: bytes, label: str) -> int:
        own, terms = self._agreement, self._terms
        if self._weights is None:
            return addressed_pads.read(own, terms, label, request, sender=label)
        return addressed_told.read(own, terms, label, self._told, self._weights, request, sender=label)


def _unsealed(agreement: AgreementKey, body: bytes, header: Header) -> bytes:
    try:
        return unseal(agreement, body, requests_context(header))
    except CryptoError as error:
        raise DataError(f"{error} Have the profiles matched again.") from None


def _require_the_told(told: bytes, header: Header) -> None:
    if told.hex() != header["declared"]:
        raise DataError(
            "Expected the weights that were declared to the clients, got others. Have the profiles "
            "matched again."
        )


def _refusal(what: str, sender: str, phase: str = "pads") -> RemoteProtocolError:
    return RemoteProtocolError(what, sender=sender, phase=phase)
