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
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from securefl.core.agreement import Directory, Identity, fields, u32
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.formats import prefix
from securefl.core.keys import Guarded, PublicKey, Signature
from securefl.core.linear import Floats, LinearBounds
from securefl.core.messages import client_name
from securefl.core.signing import SIGNATURE_BYTES, SigningKey, Verify, verify
from securefl.core.wire import Header
from securefl.he import gate
from securefl.he.gate import Residues
from securefl.he.integers import inner
from securefl.he.keys import EncryptionKey, KeyPair, agreed, checked
from securefl.he.openings import Openings
from securefl.he.parameters import Parameters, by_name
from securefl.linear.checks import NUMBER, Checks, Coefficients, hash_of
from securefl.linear.encryptor import Encryptor, admitted
from securefl.linear.scheme import LinearScheme, Report, Sent
from securefl.linear.terms import LinearTerms, flooded
from securefl.linear.turn import Answer, Declared, PublicQuery, refusal
from securefl.storage.own_record import PartyKeys

# The client -----------------------------------------------------------------------------------------


def statement(query: PublicQuery, client: str, h1: bytes) -> bytes:
    """The bytes that a client signs. client: its name in the roster."""
    own = (query.key, query.terms.digest, query.name.encode(), query.told)
    return prefix("checked/statement") + fields(*own, client.encode(), h1)


def c1_of(ciphertext: bytes, checks: Checks) -> bytes:
    """The second half of all ciphertexts of a message."""
    size = checks.half_bytes // checks.terms.ciphertexts
    starts = range(gate.TAG + size, len(ciphertext), 2 * size)
    return b"".join(ciphertext[at : at + size] for at in starts)


def signed(query: PublicQuery, ciphertext: bytes, client: str, own: SigningKey) -> bytes:
    """The client's message: its ciphertext, and its signature.

    Args:
        query: of the exchange.
        ciphertext: as `Encryptor.encrypt` returns it.
        client: its own name in the roster.
        own: the key that the roster has of this client.
    """
    said = statement(query, client, hash_of(c1_of(ciphertext, query.terms)))
    return ciphertext + own.sign(said).raw


# The server -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Encrypted:
    """A client's message as it passed the gate: every c0, which stays here, every c1, and the signature."""

    c0: tuple[Residues, ...] = field(repr=False)
    c1: bytes = field(repr=False)
    signature: bytes = field(repr=False)


def admit(message: bytes, checks: Checks, key: bytes, *, sender: str) -> Encrypted:
    """The gate: a client's message under the key of this name, or RemoteProtocolError(sender)."""
    if len(message) != checks.message_bytes:
        raise refusal(f"Expected {checks.message_bytes} bytes, got {len(message)}.", sender, "gate")
    ciphertext, terms = message[:-SIGNATURE_BYTES], checks.terms
    parts = admitted(ciphertext, gate.tag("ciphertext", key, terms.digest()), terms, sender=sender)
    # Copied, so that the other half is not kept with it.
    c0 = tuple(part[0].copy() for part in parts)
    return Encrypted(c0, c1_of(ciphertext, checks), message[-SIGNATURE_BYTES:])


def product_of(
    message: Encrypted,
    declared: Declared,
    query: PublicQuery,
    client: str,
    public: PublicKey,
    *,
    check: Verify = verify,
    sender: str,
) -> int:
    """(V c0)_0 of a message that its client signed for this query.

    Args:
        message: as `admit` returns it.
        declared: the weights.
        query: under the key holder's key.
        client, public: the client's name and key in the roster.
        check: checks a signature.
        sender: the name for refusals.

    Raises:
        RemoteProtocolError: names the client whose signature is not of this message, place and digest.
    """
    try:
        check(public, Signature(message.signature), statement(query, client, hash_of(message.c1)))
    except CryptoError as error:
        raise refusal(str(error), sender, "checks") from None
    return _coefficient(declared.factors, message.c0, query.terms.terms.parameters)


def _coefficient(factors: Sequence[Residues], halves: Sequence[Residues], p: Parameters) -> int:
    """The first coefficient mod Q of the sum of products of polynomials in NTT form."""
    # The sum of a polynomial's values at all roots of X^N + 1 is N times its first coefficient.
    sums = [inner(a, b, p.primes) for a, b in zip(factors, halves, strict=True)]
    inverse = [pow(p.poly_modulus_degree, -1, prime) for prime in p.primes]
    whole = (sum(own) * inv % prime for *own, inv, prime in zip(*sums, inverse, p.primes, strict=True))
    return p.compose(tuple(whole))


# The key holder -------------------------------------------------------------------------------------


def verified(
    query: PublicQuery,
    client: str,
    public: PublicKey,
    signature: bytes,
    c1: bytes,
    *,
    check: Verify = verify,
    sender: str,
) -> tuple[bytes, list[Residues]]:
    """The statement that a client signed, and its c1 as polynomials in NTT form.

    Raises RemoteProtocolError(sender) if the client did not sign it for this query, or if it is no c1.
    """
    said = statement(query, client, hash_of(c1))
    try:
        check(public, Signature(signature), said)
    except CryptoError as error:
        raise refusal(f"{client}: {error}", sender, "checks") from None
    terms, p = query.terms.terms, query.terms.terms.parameters
    size = len(c1) // terms.ciphertexts
    parts = [
        gate.unpack(c1[at : at + size], 1, p.primes, p.poly_modulus_degree, sender=sender)[0]
        for at in range(0, len(c1), size)
    ]
    for part in parts:
        gate.not_transparent(np.stack([part, part]), sender=sender)
    return said, parts


def key_factors(weights: Coefficients, keys: KeyPair, checks: Checks) -> list[Residues]:
    """The weights' polynomials times the secret key, in NTT form: once a query, not once a client."""
    p = agreed(keys.public, checks.terms.parameters).parameters
    (secret,) = checks.factors(keys.coefficients()[None, :])
    return [_multiplied(part, secret, p) for part in checks.factors(weights)]


def share_of(
    factors: Sequence[Residues], parts: Sequence[Residues], terms: LinearTerms, rng: random.Random
) -> int:
    """(V c1 s)_0 with flooding, mod Q."""
    return flooded(_coefficient(factors, parts, terms.parameters), terms, rng)


class CheckedAnswerer(Guarded):
    """The key holder's part: a flooded share of each client whose entry holds. All bits set for the others.

    Args:
        keys: the key pair.
        member: the name of the client of this number, and its key in the roster. Raises CryptoError for a
            number without a key.
        openings: the count of the key's openings.
        report: is told why a client's entry was refused.
        check: checks a signature.
        rng: of the flooding; by default the operating system's.
    """

    def __init__(
        self,
        keys: KeyPair,
        member: Callable[[int], tuple[str, PublicKey]],
        openings: Openings,
        report: Report,
        *,
        check: Verify = verify,
        rng: random.Random | None = None,
    ) -> None:
        self._keys, self.key = keys, keys.public.session
        self._member, self._openings, self._report, self._verify = member, openings, report, check
        self._rng = rng or random.SystemRandom()

    def begin(self, query: PublicQuery, weights: Coefficients) -> Answer:
        factors = key_factors(weights, self._keys, query.terms)

        def answer(entry: bytes, sender: str) -> bytes:
            try:
                return self._share(query, factors, entry, sender)
            except RemoteProtocolError as error:
                self._report(error.sender, str(error))
                return b"\xff" * int(query.terms.answer_bytes)

        return answer

    def _share(self, query: PublicQuery, factors: Sequence[Residues], entry: bytes, sender: str) -> bytes:
        terms, at = query.terms.terms, NUMBER + SIGNATURE_BYTES
        number = int.from_bytes(entry[:NUMBER], "little")
        try:
            client, public = self._member(number)
        except CryptoError as error:
            raise refusal(f"Client {number}: {error}", sender, "checks") from None
        said, parts = verified(
            query, client, public, entry[NUMBER:at], entry[at:], check=self._verify, sender=sender
        )

        def reply() -> bytes:
            return gate.pack_integer(share_of(factors, parts, terms, self._rng), terms.parameters.modulus)

        once = hashlib.sha256(said).digest()
        return self._openings.once(once, 1, terms.scores, reply, sender=sender)


def _multiplied(left: Residues, right: Residues, p: Parameters) -> Residues:
    """The product of two polynomials in NTT form."""
    # As Python's integers, since products have 120 bits. Once a query, not once a client.
    primes = np.array(p.primes, dtype=object)[:, None]
    return np.asarray(left.astype(object) * right.astype(object) % primes, dtype=np.uint64)


# The scheme -----------------------------------------------------------------------------------------


class CheckedCkks(LinearScheme):
    """`scores = "ckks"`: one signed ciphertext per client.

    Args:
        parameters: the name of the key's parameters.
        asks: the most queries of the session.
        clients: the most clients of one query.
    """

    key_holder_learns: ClassVar[str] = (
        "who takes part, and the weights of each query, such as the server's baseline"
    )
    limit: ClassVar[str] = (
        "a server that breaks the protocol, with one client as its accomplice, reads any entry of it, and "
        "the key holder's key"
    )
    signs: ClassVar[bool] = True

    def __init__(self, parameters: str, asks: int, clients: int) -> None:
        self._parameters: Parameters = by_name(parameters)
        self._scores = asks * clients

    def terms(self, bounds: LinearBounds, header: Header) -> Checks:
        terms = LinearTerms(parameters=self._parameters, bounds=bounds, scores=self._scores)
        return Checks(terms=terms, context=header.session + u32(*header.place()))

    def purpose(self, terms: Checks) -> bytes:
        # Queries under these terms, which size the flooding of their key.
        return b"scores" + terms.terms.digest()

    def generated(self, terms: Checks, own: PartyKeys, report: Report) -> tuple[CheckedAnswerer, bytes]:
        directory, pair = own.directory, KeyPair.generate(self._parameters)

        def member(number: int) -> tuple[str, PublicKey]:
            name = client_name(number)
            return name, directory.roster([name]).members[0].identity

        made = CheckedAnswerer(pair, member, Openings(), report, check=directory.verify)
        return made, pair.public.key.raw

    def public(self, terms: Checks, raw: bytes) -> CheckedKey:
        return CheckedKey(checked(self._parameters, raw))

    def admit(self, sealed: bytes, terms: Checks, key: CheckedKey, sender: str) -> Encrypted:
        return admit(sealed, terms, key.name, sender=sender)

    def entry(
        self, declared: Declared, key: CheckedKey, one: Sent, directory: Directory
    ) -> tuple[bytes, int]:
        message, query, name = one.message, declared.public(key.name), one.sender
        public = directory.roster([name]).members[0].identity
        own = product_of(message, declared, query, name, public, check=directory.verify, sender=name)
        return u32(one.client) + message.signature + message.c1, own


@dataclass(frozen=True)
class CheckedKey:
    """The key holder's encryption key, which it signed."""

    public: EncryptionKey

    @cached_property
    def name(self) -> bytes:
        return self.public.session

    def concealer(self, terms: Checks) -> SignedEncryption:
        return SignedEncryption(Encryptor(self.public, terms.terms))


@dataclass(frozen=True)
class SignedEncryption:
    """A client's part: it encrypts, and signs what it sends."""

    encryptor: Encryptor

    def conceal(self, query: PublicQuery, own: Identity, hidden: Floats) -> bytes:
        return signed(query, self.encryptor.encrypt(hidden), own.name, own.signing)

    def prepare(self) -> bool:
        return self.encryptor.prepare()
