"""One turn of scores: weights are declared, vectors concealed under the declaration, and each is opened once.

    server      declares d = H(salt, weights), and tells it to each client before it asks
    client      conceals its vector under d
    server      one signed request for each query: salt, weights, and an entry for each client
    key holder  checks the weights, computes d from them, and answers each entry with one integer
    server      the client's score follows from this integer and one of its own

Two ciphers conceal: `pads`, and `checked` CKKS, whose clients sign too. Each says what its parties see.
`Terms` is what a cipher gives; rounds (`scheme`) and files (`addressed`) play the same turn.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import numpy as np

from securefl.core.agreement import digest, fields, u32
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.formats import prefix
from securefl.core.keys import Guarded, PublicKey, Signature
from securefl.core.linear import Floats, LinearBounds, LinearQuery, spread_of, too_sharp
from securefl.core.signing import SIGNATURE_BYTES, SigningKey, verify

INDEX: Final = 4
SALT: Final = 32


class Terms(Protocol):
    """The public terms of one exchange under one cipher.

    Attributes:
        commits, requests: labels of the digest of weights, and of a signed request.
        sign: of the key holder's integer in a score, 1 or -1.
        bounds: of the exchange's queries.
        digest: names terms and place. What is made for one exchange is of no use in another.
        message_bytes: exact length of a client's message.
        weights_bytes: of the weights in a request.
        entry_bytes: of what a request has for each client. The first `name_bytes` come once in a request.
        answer_bytes: of the key holder's integer.
        modulus: of all integers.
        unit: the value of one step of an opened integer.
    """

    commits: ClassVar[bytes]
    requests: ClassVar[str]
    sign: ClassVar[int]
    name_bytes: ClassVar[int]

    @property
    def bounds(self) -> LinearBounds: ...
    @property
    def digest(self) -> bytes: ...
    @property
    def message_bytes(self) -> int: ...
    @property
    def weights_bytes(self) -> int: ...
    @property
    def entry_bytes(self) -> int: ...
    @property
    def answer_bytes(self) -> int: ...
    @property
    def modulus(self) -> int: ...
    @property
    def unit(self) -> float: ...

    def encoded(self, query: LinearQuery) -> Any:
        """A query's weights as integers. Raises ConfigError for other bounds, or weights outside them."""
        ...

    def packed(self, weights: Any) -> bytes:
        """These integers as bytes, `weights_bytes` of them."""
        ...

    def unpacked(self, raw: bytes) -> Any:
        """The inverse of `packed`."""
        ...

    def form(self, weights: Any) -> str | None:
        """Why these integers are the weights of no query inside the bounds. None if they may be."""
        ...

    def factors(self, weights: Any) -> Any:
        """The weights in the form in which the server multiplies by them."""
        ...

    def short(self, entry: bytes) -> bytes:
        """What the server signs of an entry."""
        ...

    def reply_tag(self, key: bytes) -> bytes:
        """The first bytes of a reply under the key holder's key of this name."""
        ...

    def error_of(self, query: LinearQuery, weights: Any) -> float:
        """The largest error of this query's scores, except with probability 1e-6."""
        ...


@dataclass(frozen=True)
class Score:
    """A released number. |value - exact| <= error_bound, except with probability 1e-6."""

    value: float
    error_bound: float


def commitment(terms: Terms, name: str, salt: bytes, weights: bytes) -> bytes:
    """The digest d of a query's weights. salt: 32 bytes, or others guess the weights."""
    return digest(terms.commits, b"", fields(salt, terms.digest, name.encode(), weights))


def framed(terms: Terms, body: bytes) -> bytes:
    """The bytes that the server signs, with the terms: the head, and what is short of each entry."""
    return prefix(terms.requests) + fields(terms.digest) + body


@dataclass(frozen=True, kw_only=True)
class PublicQuery:
    """One query of an exchange, as clients and key holder know it.

    Attributes:
        terms: of the exchange.
        name: of the query.
        told: the digest of its weights, 32 bytes, as the server declared it.
        key: names the key holder's key, if the cipher binds it.
    """

    terms: Any
    name: str
    told: bytes
    key: bytes = b""


def wrong_weights(values: Floats, bounds: LinearBounds, slack: Callable[[float], float]) -> str | None:
    """Why no query inside the bounds has these hidden weights, beside their norm. None if one may.

    slack: how far rounding moves a weight of at most this size.
    """
    if not values.any():
        return "Expected a weight that is not 0, got none."
    if not spread_of(values) <= bounds.spread * (1 + 1e-9):
        return too_sharp(values, bounds)
    at = 0
    for run in bounds.weights:
        own, room = values[at : at + run.count], slack(max(abs(run.low), abs(run.high)))
        if not ((own >= run.low - room) & (own <= run.high + room)).all():
            last = at + run.count - 1
            return f"Expected weights {at} to {last} from {run.low:g} to {run.high:g}, got some outside."
        at += run.count
    return None


# The server -----------------------------------------------------------------------------------------


def _drawn(packed: bytes) -> bytes:
    return os.urandom(SALT)


@dataclass(frozen=True, eq=False)
class Arrived:
    """One client's message as the server checked it, and its part of the score.

    Attributes:
        sender: the client, for refusals.
        entry, short: what the request has for it, and what the server signs of that.
        own: the server's integer, which stays with the server.
        offset: the query's, and the product of the plaintext part.
    """

    sender: str
    entry: bytes = field(repr=False)
    short: bytes = field(repr=False)
    own: int = field(repr=False)
    offset: float = field(repr=False)


@dataclass(frozen=True, eq=False)
class Declared(Guarded):
    """A query's weights as the server declares them. `told` is their digest, which clients get.

    head: salt and weights, which the key holder gets. error: the largest error of the scores.
    """

    terms: Any
    name: str
    query: LinearQuery
    told: bytes
    head: bytes = field(repr=False)
    factors: Any = field(repr=False)
    error: float

    @classmethod
    def of(
        cls, query: LinearQuery, terms: Terms, name: str, *, salt: Callable[[bytes], bytes] = _drawn
    ) -> Declared:
        """The weights of this query.

        Args:
            query: of the terms' bounds.
            terms: of the exchange.
            name: of the query.
            salt: 32 bytes that nobody guesses, from the packed weights. By default they are drawn.

        Raises:
            ConfigError: a query of other bounds, or with weights outside them.
        """
        weights = terms.encoded(query)
        packed = terms.packed(weights)
        chosen = salt(packed)
        told, error = commitment(terms, name, chosen, packed), terms.error_of(query, weights)
        return cls(terms, name, query, told, chosen + packed, terms.factors(weights), error)

    def public(self, key: bytes) -> PublicQuery:
        """What clients and key holder know of it, under the key of this name."""
        return PublicQuery(terms=self.terms, name=self.name, told=self.told, key=key)

    def arrived(self, entry: bytes, own: int, clear: Floats, sender: str) -> Arrived:
        """A client's message: what the request has for it, the server's integer, and its plaintext part.

        Raises RemoteProtocolError(sender) unless each plaintext value is inside its range.
        """
        offset = self.query.offset + float(clear_part(clear, self.terms.bounds, sender) @ self.query.clear)
        return Arrived(sender, entry, self.terms.short(entry), own, offset)


class QueryServer(Guarded):
    """The server's part for one query: request the integers, and add its own.

    Args:
        declared: the weights.
        index: the query's number in the exchange.
        signing: the server's key, as the roster has it.
        key: names the key holder's key.
    """

    def __init__(self, declared: Declared, index: int, signing: SigningKey, key: bytes = b"") -> None:
        self.declared, self._terms = declared, declared.terms
        self._index, self._signing, self._key = index, signing, key

    def request(self, arrived: Sequence[Arrived]) -> bytes:
        """The signed request for the integers of these clients, in their order."""
        head = u32(self._index) + self.declared.head
        entries, short = (b"".join(getattr(a, name) for a in arrived) for name in ("entry", "short"))
        return head + entries + self._signing.sign(framed(self._terms, head + short)).raw

    def opened(self, arrived: Sequence[Arrived], reply: bytes, *, sender: str) -> list[int | None]:
        """The opened integer of each client, centred. None for a client that the key holder refused.

        Raises RemoteProtocolError(sender) for bytes that are no reply to this request.
        """
        terms, size, tag = self._terms, self._terms.answer_bytes, self._terms.reply_tag(self._key)
        if len(reply) != len(tag) + size * len(arrived) or not reply.startswith(tag):
            raise refusal(
                f"Expected one integer for each of {len(arrived)} clients, got other bytes.", sender
            )
        places = range(len(tag), len(reply), size)
        found = [int.from_bytes(reply[at : at + size], "little") for at in places]
        return [
            None if came >= terms.modulus else centred(one.own + terms.sign * came, terms.modulus)
            for one, came in zip(arrived, found, strict=True)
        ]

    def score(self, one: Arrived, opened: int) -> Score:
        """A client's score. Raises RemoteProtocolError that names it if no honest client has such a score."""
        hidden, bounds, error = opened * self._terms.unit, self._terms.bounds, self.declared.error
        value = (hidden + one.offset) / bounds.scale
        if abs(hidden) > bounds.product + bounds.scale * error or not bounds.allows(value, error):
            raise _no_score(one.sender)
        return Score(value, error)


def clear_part(clear: Floats | None, bounds: LinearBounds, sender: str) -> Floats:
    """A client's plaintext part. Raises RemoteProtocolError(sender) unless each value is inside its range."""
    values = np.empty(0) if clear is None else np.asarray(clear, dtype=np.float64)
    if bounds.holds_clear(values):
        return values
    size = bounds.clear_length
    came = "some outside" if values.shape == (size,) else f"shape {values.shape}"
    raise refusal(f"Expected {size} plaintext values inside the declared bounds, got {came}.", sender, "gate")


# The key holder -------------------------------------------------------------------------------------

Answer = Callable[[bytes, str], bytes]
"""The answer to one entry. The text is the sender, for refusals."""


class Answerer(Protocol):
    """The key holder's secret of one key, and how it answers. key: the name of this key."""

    @property
    def key(self) -> bytes: ...

    def begin(self, query: PublicQuery, weights: Any) -> Answer:
        """The function that answers the entries of a request. Its RemoteProtocolError refuses all of them."""
        ...


class QueryKeyHolder(Guarded):
    """The key holder's part of one exchange: one integer with noise for each client and query.

    Args:
        terms: of the exchange, from its own copy of the plan.
        names: of the exchange's queries.
        cohort: the most clients of one query.
        server: the server's signing key.
        answerer: has the secret.
    """

    def __init__(
        self, terms: Terms, names: tuple[str, ...], cohort: int, server: PublicKey, answerer: Answerer
    ) -> None:
        self._terms, self._names, self._cohort, self._server = terms, names, cohort, server
        self._answerer = answerer
        self._answered: dict[str, tuple[bytes, bytes]] = {}

    @property
    def request_bytes(self) -> int:
        """The length of the largest request, with the length of its item."""
        terms = self._terms
        head = INDEX + SALT + terms.weights_bytes
        return head + terms.entry_bytes * self._cohort + SIGNATURE_BYTES + 8

    def open(self, request: bytes, *, sender: str = "server") -> bytes:
        """The integer of each client in a signed request.

        The same request again gets the same reply. Another one of the same query is refused, so a client's
        vector meets one set of weights.

        Args:
            request: the server's bytes.
            sender: the name for refusals.

        Raises:
            RemoteProtocolError: other bytes than a request's, weights of no query inside the bounds, a client
                that comes twice, or a second request of one query.
        """
        terms, start = self._terms, INDEX + SALT + self._terms.weights_bytes
        listed, rest = divmod(len(request) - start - SIGNATURE_BYTES, terms.entry_bytes)
        if rest or not 0 < listed <= self._cohort:
            raise refusal(
                f"Expected a request for the integers of 1 to {self._cohort} clients, got another length.",
                sender,
            )
        places = range(start, len(request) - SIGNATURE_BYTES, terms.entry_bytes)
        head, entries = request[:start], [request[at : at + terms.entry_bytes] for at in places]
        body = head + b"".join(map(terms.short, entries))
        try:
            verify(self._server, Signature(request[-SIGNATURE_BYTES:]), framed(terms, body))
        except CryptoError as error:
            raise refusal(str(error), sender) from None
        index = int.from_bytes(head[:INDEX], "little")
        if index >= len(self._names):
            raise refusal(f"Expected one of {len(self._names)} queries, got number {index}.", sender)
        name, found = self._names[index], hashlib.sha256(body).digest()
        if name in self._answered:
            before, reply = self._answered[name]
            if before != found:
                raise refusal(
                    f"Expected the first request of {name!r} again, got a second one: one is opened.", sender
                )
            return reply
        weights, query = told_weights(head[INDEX:], terms, name, self._answerer.key, sender=sender)
        if len({one[: terms.name_bytes] for one in entries}) < len(entries):
            raise refusal("Expected each client once, got one twice.", sender)
        answer = self._answerer.begin(query, weights)
        reply = terms.reply_tag(self._answerer.key) + b"".join(answer(one, sender) for one in entries)
        self._answered[name] = found, reply
        return reply


def told_weights(head: bytes, terms: Terms, name: str, key: bytes, *, sender: str) -> tuple[Any, PublicQuery]:
    """The weights in a head that came, and the query that they answer.

    Raises RemoteProtocolError(sender) if no query inside the bounds has them.
    """
    salt, sent = head[:SALT], head[SALT:]
    weights = terms.unpacked(sent)
    if (wrong := terms.form(weights)) is not None:
        raise refusal(wrong, sender)
    # Computed from the weights that came, never taken from the request: a digest that the request stated
    # could be that of other weights.
    told = commitment(terms, name, salt, sent)
    return weights, PublicQuery(terms=terms, name=name, told=told, key=key)


def centred(value: int, modulus: int) -> int:
    """The integer of smallest size with this residue."""
    value %= modulus
    return value - modulus if 2 * value >= modulus else value


def read_score(opened: int, terms: Any, error: float, *, sender: str) -> Score:
    """The score in an integer that has its offset and the noise of all, for a key holder that reads it.

    Raises RemoteProtocolError(sender) if no honest client has it.
    """
    product = centred(opened, terms.modulus) * terms.unit
    value = product / terms.bounds.scale
    if not terms.bounds.allows(value, error) or abs(product) > terms.capacity:
        raise _no_score(sender)
    return Score(value, error)


def refusal(what: str, sender: str, phase: str = "turn") -> RemoteProtocolError:
    return RemoteProtocolError(what, sender=sender, phase=phase)


def _no_score(sender: str) -> RemoteProtocolError:
    return refusal(
        "Expected a score inside the declared bounds, got one that no honest client gives.", sender, "score"
    )
