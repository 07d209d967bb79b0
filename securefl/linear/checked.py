"""Checked openings: the key holder multiplies by the weights itself, and opens what a client signed.

    server      V = the weights as integers of a polynomial; tells each client d = H(salt, V) before it asks
    client      (c0, c1) as ever, and its signature of its place, d and H(c1)
    server      per query V and salt; per client c1 and the signature, all signed
    key holder  checks all of them; opens one coefficient, (V c1 s)_0 + flooding
    server      adds (V c0)_0, which it has, and so gets the score

A product with plaintext weights has no rescale, so both can compute their part exactly, and need no fresh
zero: nothing of the weights is left to hide from the key holder.

* The server sees what it sees without checks: the flooded score. A *malicious* server alone gets one sum per
  client with the weights that it declared before the client answered. Every other c1, digest or place lacks
  the client's signature.
* The key holder sees V, so it learns the server's weights, and who takes part. Nothing that it gets depends
  on c0, and so on the vector: it learns no score, and confirms no guess, whatever key it published.
* A server *with one colluding client* is not stopped: that client signs a c1 of the server's choice, such as
  c1(victim) x^j, or digits of the key, and the key holder opens it. So the key is read in some hundred
  openings. `linear.pads` have no key.
* Key holder and server together open everything.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from securefl.core.agreement import digest, fields, u32
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.formats import prefix
from securefl.core.keys import Guarded, PublicKey, Signature
from securefl.core.linear import LinearQuery
from securefl.core.signing import SIGNATURE_BYTES, SigningKey, Verify, verify
from securefl.he import gate
from securefl.he.gate import Residues
from securefl.he.integers import inner
from securefl.he.keys import KeyPair, agreed
from securefl.he.openings import Openings
from securefl.he.parameters import Parameters
from securefl.he.ring import Ring
from securefl.linear.checks import NUMBER, Checks, Coefficients, encoded, form, packed, unpacked
from securefl.linear.opener import flooded
from securefl.linear.pad_terms import INDEX, SALT
from securefl.linear.terms import LinearTerms

_C1 = prefix("checked/c1")


# What clients sign ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Halves:
    """Both halves of a client's ciphertexts, as bytes: every c0, and every c1."""

    c0: bytes = field(repr=False)
    c1: bytes = field(repr=False)

    @classmethod
    def of(cls, ciphertext: bytes, checks: Checks) -> Halves:
        raw, size = ciphertext[gate.TAG :], checks.half_bytes // checks.terms.ciphertexts
        parts = [raw[at : at + size] for at in range(0, len(raw), size)]
        return cls(b"".join(parts[::2]), b"".join(parts[1::2]))

    @property
    def h1(self) -> bytes:
        return hash_of(self.c1)


def hash_of(c1: bytes) -> bytes:
    """SHA-256 of every c1 of a client, which it signs.

    Nothing is made of c0 that leaves the server: a key holder that made its key so that c1 shows the
    encryption's randomness would try guesses of the vector against it.
    """
    found = hashlib.sha256(_C1)
    found.update(c1)
    return found.digest()


def commitment(checks: Checks, name: str, salt: bytes, weights: bytes) -> bytes:
    """The digest d of a query's weights. salt: 32 bytes, or others guess the weights."""
    return digest(b"checked", b"", fields(salt, checks.place, name.encode(), weights))


@dataclass(frozen=True, kw_only=True)
class Question:
    """One query of an exchange, as clients and key holder know it.

    Attributes:
        checks: of the exchange.
        key: 32 bytes that name the key holder's key (`EncryptionKey.session`).
        name: of the query.
        told: the digest of its weights, 32 bytes, as the server declared it.
    """

    checks: Checks
    key: bytes
    name: str
    told: bytes

    def statement(self, client: str, h1: bytes) -> bytes:
        """The bytes that a client signs. client: its name in the roster."""
        own = (self.key, self.checks.place, self.name.encode(), self.told)
        return prefix("checked/statement") + fields(*own, client.encode(), h1)

    def signed(self, ciphertext: bytes, client: str, own: SigningKey) -> bytes:
        """The client's message: its ciphertext, and its signature.

        Args:
            ciphertext: as `Encryptor.encrypt` returns it.
            client: its own name in the roster.
            own: the key that the roster has of this client.
        """
        said = self.statement(client, Halves.of(ciphertext, self.checks).h1)
        return ciphertext + own.sign(said).raw


def _transformed(weights: Coefficients, p: Parameters, ring: Ring) -> list[Residues]:
    """The weights' polynomials in NTT form, one (primes, N) array per ciphertext."""
    primes = np.array(p.primes, dtype=np.int64)[:, None]
    return [ring.transformed((part % primes).astype(np.uint64)) for part in weights]


def _coefficient(factors: Sequence[Residues], halves: Sequence[Residues], p: Parameters) -> int:
    """The first coefficient mod Q of the sum of products of polynomials in NTT form."""
    # The sum of a polynomial's values at all roots of X^N + 1 is N times its first coefficient.
    sums = [inner(a, b, p.primes) for a, b in zip(factors, halves, strict=True)]
    inverse = [pow(p.poly_modulus_degree, -1, prime) for prime in p.primes]
    whole = (sum(own) * inv % prime for *own, inv, prime in zip(*sums, inverse, p.primes, strict=True))
    return p.compose(tuple(whole))


def _unpacked_half(raw: bytes, checks: Checks, *, sender: str) -> list[Residues]:
    """The polynomials of one half, (primes, N) each. Raises RemoteProtocolError(sender) for other bytes."""
    p, count = checks.terms.parameters, checks.terms.ciphertexts
    size = len(raw) // count
    parts = (raw[at * size : (at + 1) * size] for at in range(count))
    return [gate.unpack(part, 1, p.primes, p.poly_modulus_degree, sender=sender)[0] for part in parts]


# The server -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Arrived:
    """One client's message as the server checked it."""

    number: int
    halves: Halves = field(repr=False)
    h1: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    own: int = field(repr=False)
    """(V c0)_0, which stays with the server."""


def framed(checks: Checks, body: bytes) -> bytes:
    """The bytes that the server signs: the place, the head, and the clients with hashes of their c1."""
    return prefix("checked/request") + fields(checks.place) + body


@dataclass(frozen=True, eq=False)
class Declared(Guarded):
    """A query's weights as the server declares them. `told` is their digest, which clients get."""

    told: bytes
    salt: bytes = field(repr=False)
    packed: bytes = field(repr=False)
    factors: list[Residues] = field(repr=False)

    @classmethod
    def of(
        cls, query: LinearQuery, checks: Checks, name: str, ring: Ring, *, salt: bytes | None = None
    ) -> Declared:
        """The weights of this query.

        Args:
            query: of the terms' bounds.
            checks: of the exchange.
            name: of the query.
            ring: of the terms' parameters.
            salt: 32 bytes that nobody guesses; None draws them.

        Raises:
            ConfigError: a query of other bounds, or with weights outside them.
        """
        salt = os.urandom(SALT) if salt is None else salt
        weights = encoded(query, checks, ring)
        whole = packed(weights, checks)
        factors = _transformed(weights, checks.terms.parameters, ring)
        return cls(commitment(checks, name, salt, whole), salt, whole, factors)


class CheckedServer(Guarded):
    """The server's part for one query: request the shares, and add its own.

    Args:
        question: the query, under the key holder's key.
        index: its number in the exchange.
        declared: its weights.
        signing: the server's key, as the roster has it.
    """

    def __init__(self, question: Question, index: int, declared: Declared, signing: SigningKey) -> None:
        self._question, self._checks, self._index = question, question.checks, index
        self._declared, self._signing = declared, signing

    def admit(
        self, message: bytes, number: int, client: str, public: PublicKey, *, check: Verify = verify
    ) -> Arrived:
        """A client's message, checked as the key holder will check it.

        Args:
            message: the ciphertext, which passed the gate, and the signature.
            number, client: the client's number and its name in the roster.
            public: its key in the roster.
            check: checks a signature.

        Raises:
            RemoteProtocolError: names the client whose signature is not of this message, place and digest.
        """
        ciphertext, signature = message[:-SIGNATURE_BYTES], message[-SIGNATURE_BYTES:]
        halves = Halves.of(ciphertext, self._checks)
        h1 = halves.h1
        try:
            check(public, Signature(signature), self._question.statement(client, h1))
        except CryptoError as error:
            raise _refusal(str(error), client) from None
        parts = _unpacked_half(halves.c0, self._checks, sender=client)
        own = _coefficient(self._declared.factors, parts, self._checks.terms.parameters)
        return Arrived(number, halves, h1, signature, own)

    def request(self, arrived: Sequence[Arrived]) -> bytes:
        """The signed request for the shares of these clients, in their order."""
        head = u32(self._index) + self._declared.salt + self._declared.packed
        heads = [u32(one.number) + one.signature for one in arrived]
        entries = b"".join(own + one.halves.c1 for own, one in zip(heads, arrived, strict=True))
        short = b"".join(own + one.h1 for own, one in zip(heads, arrived, strict=True))
        return head + entries + self._signing.sign(framed(self._checks, head + short)).raw

    def opened(self, arrived: Sequence[Arrived], reply: bytes, *, sender: str) -> list[int | None]:
        """The opened integer of each client, centred. None for a client that the key holder refused.

        Raises RemoteProtocolError(sender) for bytes that are no reply to this request.
        """
        p, size = self._checks.terms.parameters, self._checks.share_bytes
        tag = self._checks.reply_tag(self._question.key)
        raw = gate.body(reply, tag, size * len(arrived), sender=sender)
        shares = (int.from_bytes(raw[at : at + size], "little") for at in range(0, len(raw), size))
        return [
            None if share >= p.modulus else p.centre(share + one.own)
            for one, share in zip(arrived, shares, strict=True)
        ]


# The key holder -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Signed:
    """What the key holder gets of one client."""

    signature: bytes
    c1: bytes = field(repr=False)


def verified(
    question: Question,
    client: str,
    public: PublicKey,
    signed: Signed,
    *,
    check: Verify = verify,
    sender: str,
) -> tuple[bytes, list[Residues]]:
    """The statement that a client signed, and its c1 as polynomials in NTT form.

    Raises RemoteProtocolError(sender) if the client did not sign it for this question, or if it is no c1.
    """
    said = question.statement(client, hash_of(signed.c1))
    try:
        check(public, Signature(signed.signature), said)
    except CryptoError as error:
        raise _refusal(f"{client}: {error}", sender) from None
    parts = _unpacked_half(signed.c1, question.checks, sender=sender)
    for part in parts:
        gate.not_transparent(np.stack([part, part]), sender=sender)
    return said, parts


def key_factors(weights: Coefficients, keys: KeyPair, checks: Checks, ring: Ring) -> list[Residues]:
    """The weights' polynomials times the secret key, in NTT form: once a query, not once a client."""
    p = agreed(keys.public, checks.terms.parameters).parameters
    (secret,) = _transformed(keys.coefficients()[None, :], p, ring)
    return [_multiplied(part, secret, p) for part in _transformed(weights, p, ring)]


def share_of(
    factors: Sequence[Residues], parts: Sequence[Residues], terms: LinearTerms, rng: random.Random
) -> int:
    """(V c1 s)_0 with flooding, mod Q."""
    return flooded(_coefficient(factors, parts, terms.parameters), terms, rng)


class CheckedKeyHolder(Guarded):
    """The key holder's part of one exchange: one flooded share for each client and query.

    Args:
        keys: the key pair.
        checks: of the exchange, from its own copy of the plan.
        names: of the exchange's queries.
        cohort: the most clients of one query.
        server: the server's signing key.
        member: the name of the client of this number, and its key in the roster. Raises CryptoError for a
            number without a key.
        openings: the count of the key's openings.
        ring: of the terms' parameters.
        check: checks a signature.
    """

    def __init__(
        self,
        keys: KeyPair,
        checks: Checks,
        names: tuple[str, ...],
        cohort: int,
        server: PublicKey,
        member: Callable[[int], tuple[str, PublicKey]],
        openings: Openings,
        ring: Ring,
        *,
        check: Verify = verify,
        rng: random.Random | None = None,
    ) -> None:
        agreed(keys.public, checks.terms.parameters)
        self._keys = keys
        self._checks, self._names, self._cohort, self._server = checks, names, cohort, server
        self._key = keys.public.session
        self._member, self._openings, self._ring, self._verify = member, openings, ring, check
        self._rng = rng or random.SystemRandom()
        self._answered: dict[str, tuple[bytes, bytes]] = {}

    def open(self, request: bytes, *, report: Callable[[str, str], None], sender: str = "server") -> bytes:
        """The share of each client in a signed request. A client whose entry does not hold has none.

        The same request again gets the same reply. Another one of the same query is refused, so a ciphertext
        meets one set of weights.

        Args:
            request: the server's bytes.
            report: is told why a client's entry was refused.
            sender: the name for refusals.

        Raises:
            RemoteProtocolError: other bytes than a request's, weights of no query inside the bounds, a client
                that comes twice, or a second request of one query.
        """
        checks = self._checks
        listed, rest = divmod(len(request) - checks.request_bytes(0), checks.entry_bytes)
        if rest or not 0 < listed <= self._cohort:
            raise _refusal(
                f"Expected a request for the shares of 1 to {self._cohort} clients, got another length.",
                sender,
            )
        head, entries = request[: checks.head_bytes], self._entries(request)
        short = b"".join(one.head + one.h1 for one in entries)
        try:
            verify(self._server, Signature(request[-SIGNATURE_BYTES:]), framed(checks, head + short))
        except CryptoError as error:
            raise _refusal(str(error), sender) from None
        index = int.from_bytes(head[:INDEX], "little")
        if index >= len(self._names):
            raise _refusal(f"Expected one of {len(self._names)} queries, got number {index}.", sender)
        name, found = self._names[index], hashlib.sha256(head + short).digest()
        if name in self._answered:
            before, reply = self._answered[name]
            if before != found:
                raise _refusal(f"Expected the first request of {name!r} again, got another.", sender)
            return reply
        reply = self._shares(name, head, entries, report, sender)
        self._answered[name] = found, reply
        return reply

    def _entries(self, request: bytes) -> list[_Entry]:
        start, size = self._checks.head_bytes, self._checks.entry_bytes
        ends = range(start, len(request) - SIGNATURE_BYTES, size)
        return [_Entry.of(request[at : at + size]) for at in ends]

    def _shares(
        self,
        name: str,
        head: bytes,
        entries: Sequence[_Entry],
        report: Callable[[str, str], None],
        sender: str,
    ) -> bytes:
        checks = self._checks
        salt, sent = head[INDEX : INDEX + SALT], head[INDEX + SALT :]
        weights = unpacked(sent, checks)
        if (wrong := form(weights, checks)) is not None:
            raise _refusal(wrong, sender)
        if len({one.number for one in entries}) < len(entries):
            raise _refusal("Expected each client once, got one twice.", sender)
        # Computed from the weights that came, never taken from the request: a digest that the request stated
        # could be that of other weights.
        told = commitment(checks, name, salt, sent)
        question = Question(checks=checks, key=self._key, name=name, told=told)
        factors = key_factors(weights, self._keys, checks, self._ring)
        shares = []
        for one in entries:
            try:
                shares.append(self._share(question, factors, one, sender))
            except RemoteProtocolError as error:
                shares.append(b"\xff" * checks.share_bytes)
                report(error.sender, str(error))
        return checks.reply_tag(self._key) + b"".join(shares)

    def _share(self, question: Question, factors: Sequence[Residues], entry: _Entry, sender: str) -> bytes:
        checks, p = self._checks, self._checks.terms.parameters
        try:
            client, public = self._member(entry.number)
        except CryptoError as error:
            raise _refusal(f"Client {entry.number}: {error}", sender) from None
        signed = Signed(entry.signature, entry.c1)
        said, parts = verified(question, client, public, signed, check=self._verify, sender=sender)

        def reply() -> bytes:
            return gate.pack_integer(share_of(factors, parts, checks.terms, self._rng), p.modulus)

        once = hashlib.sha256(said).digest()
        return self._openings.once(once, 1, checks.terms.scores, reply, sender=sender)


@dataclass(frozen=True, eq=False)
class _Entry:
    """What a request has for one client."""

    number: int
    signature: bytes
    c1: bytes = field(repr=False)
    h1: bytes
    """Computed from the c1 that came."""

    @classmethod
    def of(cls, raw: bytes) -> _Entry:
        at = NUMBER + SIGNATURE_BYTES
        c1 = raw[at:]
        return cls(int.from_bytes(raw[:NUMBER], "little"), raw[NUMBER:at], c1, hash_of(c1))

    @property
    def head(self) -> bytes:
        return u32(self.number) + self.signature


def _multiplied(left: Residues, right: Residues, p: Parameters) -> Residues:
    """The product of two polynomials in NTT form."""
    # As Python's integers, since products have 120 bits. Once a query, not once a client.
    primes = np.array(p.primes, dtype=object)[:, None]
    return np.asarray(left.astype(object) * right.astype(object) % primes, dtype=np.uint64)


def _refusal(what: str, sender: str) -> RemoteProtocolError:
    return RemoteProtocolError(what, sender=sender, phase="checks")
