"""Checked openings: a server alone has one declared sum of each client read, and with one client more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from support.every import every
from support.tiny_he import BOUNDS, by_ckks, profile, seeded

from securefl.core.agreement import u32
from securefl.core.errors import ConfigError, CryptoError, RemoteProtocolError
from securefl.core.keys import PublicKey
from securefl.core.linear import LinearBounds, LinearQuery
from securefl.core.signing import SIGNATURE_BYTES, SigningKey
from securefl.dp.moments import MeanVariance
from securefl.he import gate
from securefl.he.keys import KeyPair
from securefl.he.keys import checked as checked_key
from securefl.he.openings import Openings
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED, Parameters
from securefl.he.ring import Ring
from securefl.linear import checked
from securefl.linear.checked import CheckedAnswerer, c1_of, signed, statement
from securefl.linear.checks import Checks, Coefficients, hash_of
from securefl.linear.encryptor import Encryptor, admitted
from securefl.linear.terms import LinearTerms
from securefl.linear.turn import (
    Arrived,
    Declared,
    PublicQuery,
    QueryKeyHolder,
    QueryServer,
    commitment,
    framed,
)
from securefl.matching.profiles import Anchor, Variant, features, linear_query

NAME, COHORT = "profile", 8
SERVER = SigningKey.generate()
CLIENTS = [SigningKey.generate() for _ in range(4)]
BOTH = pytest.mark.parametrize("parameters", [STRONG, COMPACT], ids=lambda one: one.name)


@cache
def made(parameters: Parameters) -> tuple[KeyPair, Ring]:
    return KeyPair.generate(parameters), Ring.of(parameters)


def client(number: int) -> str:
    return f"client-{number:04d}"


def member(number: int) -> tuple[str, PublicKey]:
    if number >= len(CLIENTS):
        raise CryptoError("Expected clients whose keys are pinned.")
    return client(number), CLIENTS[number].public


Member = Callable[[int], tuple[str, PublicKey]]


@dataclass
class Entry:
    """What a request has for one client, with every part free to choose."""

    number: int
    signature: bytes
    c1: bytes


class Parties:
    """Server, key holder and clients of one exchange."""

    def __init__(
        self,
        parameters: Parameters = COMPACT,
        variant: Variant = Variant.FULL,
        q: int = 10,
        scores: int = 50,
        context: bytes = b"here",
        seed: int = 99,
    ) -> None:
        self.pair, self.ring = made(parameters)
        bounds = BOUNDS.linear(q, variant)
        self.terms = LinearTerms(parameters=parameters, bounds=bounds, scores=scores)
        self.checks = Checks(terms=self.terms, context=context)
        self.q, self.variant, self.anchor = q, variant, Anchor(np.zeros(q), np.ones(q))
        self.base = profile(seed, q)
        self.query = linear_query(self.base, self.anchor, BOUNDS, variant)
        self.declared = Declared.of(self.query, self.checks, NAME)
        self.server = QueryServer(self.declared, 0, SERVER, self.pair.public.session)
        self.told: list[tuple[str, str]] = []
        self.openings, self.rng = Openings(), seeded()
        self.holder = self.held_by(member)

    def held_by(self, member: Member) -> QueryKeyHolder:
        answerer = CheckedAnswerer(self.pair, member, self.openings, self.report, rng=seeded())
        return QueryKeyHolder(self.checks, (NAME, "another"), COHORT, SERVER.public, answerer)

    def report(self, sender: str, why: str) -> None:
        self.told.append((sender, why))

    def public(self, declared: Declared | None = None) -> PublicQuery:
        return (declared or self.declared).public(self.pair.public.session)

    def arrived(self, message: bytes, number: int) -> Arrived:
        return by_ckks(self.declared, self.pair.public.session, message, number, *member(number))

    def c0(self, ciphertext: bytes) -> list[NDArray[np.uint64]]:
        return [part[0] for part in self.parts(ciphertext)]

    def c1(self, ciphertext: bytes) -> list[NDArray[np.uint64]]:
        return [part[1] for part in self.parts(ciphertext)]

    def parts(self, ciphertext: bytes) -> list[NDArray[np.uint64]]:
        tag = ciphertext[: gate.TAG]
        return list(admitted(ciphertext, tag, self.terms, sender=""))

    def ciphertext(self, own: MeanVariance) -> bytes:
        split = features(own, self.anchor, BOUNDS).split(self.variant)
        return Encryptor(self.pair.public, self.terms).encrypt(split.hidden)

    def message(self, number: int, own: MeanVariance, question: PublicQuery | None = None) -> bytes:
        asked = question or self.public()
        return signed(asked, self.ciphertext(own), client(number), CLIENTS[number])

    def entry(self, number: int, question: PublicQuery | None = None) -> Entry:
        """An honest client's entry."""
        message = self.message(number, profile(number, self.q), question)
        return Entry(number, message[-SIGNATURE_BYTES:], c1_of(message[:-SIGNATURE_BYTES], self.checks))

    def request(
        self,
        entries: Sequence[Entry],
        declared: Declared | None = None,
        index: int = 0,
        own: SigningKey = SERVER,
    ) -> bytes:
        """A request as a server makes it that need not follow the protocol."""
        weights = declared or self.declared
        head = u32(index) + weights.head
        heads = [u32(one.number) + one.signature for one in entries]
        short = b"".join(h + hash_of(one.c1) for h, one in zip(heads, entries, strict=True))
        whole = b"".join(h + one.c1 for h, one in zip(heads, entries, strict=True))
        return head + whole + own.sign(framed(self.checks, head + short)).raw

    def open(self, request: bytes) -> list[bytes | None]:
        """The shares of a request. None for those that the key holder refuses."""
        reply = self.holder.open(request)
        size = self.checks.answer_bytes
        parts = [reply[at : at + size] for at in range(gate.TAG, len(reply), size)]
        return [None if part == b"\xff" * size else part for part in parts]

    def weights(self, values: Sequence[float] | NDArray[np.float64]) -> Declared:
        """Declared weights that no check of the server's own stopped."""
        return self.of_coefficients(self.coefficients(values))

    def coefficients(self, values: Sequence[float] | NDArray[np.float64]) -> Coefficients:
        p = self.terms.parameters
        whole = self.ring.encoded(np.asarray(values, dtype=np.float64), p.weight_scale)[0].astype(np.int64)
        return np.asarray(np.where(whole > p.primes[0] // 2, whole - p.primes[0], whole)[None, :])

    def of_coefficients(self, coefficients: Coefficients) -> Declared:
        packed, salt, factors = self.checks.packed(coefficients), bytes(32), self.checks.factors(coefficients)
        told = commitment(self.checks, NAME, salt, packed)
        return replace(self.declared, told=told, head=salt + packed, factors=factors)


# Scores -------------------------------------------------------------------------------------------


@BOTH
def test_a_share_has_the_flooding_of_an_opening_without_checks(parameters: Parameters) -> None:
    """Against the share without noise: the noise has the terms' sigma. False alarm 4e-7."""
    parties, p = Parties(parameters, scores=400), parameters
    weights = parties.checks.unpacked(parties.declared.head[32:])
    entry, found = parties.entry(0), []
    whole = u32(0) + entry.signature + entry.c1
    answerer = CheckedAnswerer(parties.pair, member, Openings(), parties.report, rng=parties.rng)
    answer = answerer.begin(parties.public(), weights)
    for _ in range(400):
        answerer._openings = Openings()  # or one statement has one share
        found.append(int.from_bytes(answer(whole, "server"), "little"))
    half = gate.unpack(entry.c1, 1, p.primes, p.poly_modulus_degree, sender="")
    factors = checked.key_factors(weights, parties.pair, parties.checks)
    plain = checked._coefficient(factors, list(half), p)
    noise = [p.centre(share - plain) / parties.terms.sigma for share in found]
    low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], len(noise))
    assert low < np.sum(np.square(noise)) < high
    assert abs(np.mean(noise)) < 0.26  # 5.2 deviations


def test_the_key_holder_gets_no_first_half() -> None:
    """With both halves it would read the score, and more."""
    parties = Parties()
    message = parties.message(0, profile(0, 10))
    request, half = parties.server.request([parties.arrived(message, 0)]), parties.checks.half_bytes
    assert message[gate.TAG + half :][:half] in request
    assert message[gate.TAG :][:64] not in request


def test_terms_that_cannot_be_checked_are_refused() -> None:
    bounds = BOUNDS.linear(10, Variant.FULL)
    with pytest.raises(ConfigError, match="plaintext weights"):
        Checks(terms=LinearTerms(parameters=STRONG_ENCRYPTED, bounds=bounds, scores=10), context=b"")
    wide = replace(bounds, weight_norm=1e10, weights=())
    with pytest.raises(ConfigError, match="declare smaller weights"):
        Checks(terms=LinearTerms(parameters=STRONG, bounds=wide, scores=1), context=b"")


# The server alone: forged requests --------------------------------------------------------------------

Forge = Callable[[Parties], bytes]


def junk(parties: Parties, rng: int = 5) -> bytes:
    p = parties.terms.parameters
    rows = [np.random.default_rng(rng).integers(0, prime, p.poly_modulus_degree) for prime in p.primes]
    return gate.pack(np.stack(rows).astype(np.uint64)[None], p.primes)


def other_half(parties: Parties) -> bytes:
    return parties.request([replace(parties.entry(0), c1=junk(parties))])


def half_of_another(parties: Parties) -> bytes:
    return parties.request([replace(parties.entry(0), c1=parties.entry(1).c1)])


def other_weights(parties: Parties) -> bytes:
    other = linear_query(profile(7, parties.q), parties.anchor, BOUNDS, parties.variant)
    declared = Declared.of(other, parties.checks, NAME, salt=lambda packed: parties.declared.head[:32])
    return parties.request([parties.entry(0)], declared)


def other_salt(parties: Parties) -> bytes:
    return parties.request(
        [parties.entry(0)], replace(parties.declared, head=bytes(32) + parties.declared.head[32:])
    )


def other_place(parties: Parties) -> bytes:
    there = Checks(terms=parties.terms, context=b"there")
    return parties.request([parties.entry(0, replace(parties.public(), terms=there))])


def other_question(parties: Parties) -> bytes:
    return parties.request([parties.entry(0, replace(parties.public(), name="another"))])


def other_key(parties: Parties) -> bytes:
    return parties.request([parties.entry(0, replace(parties.public(), key=bytes(32)))])


def unsigned(parties: Parties) -> bytes:
    return parties.request([replace(parties.entry(0), signature=bytes(SIGNATURE_BYTES))])


def signed_by_the_server(parties: Parties) -> bytes:
    entry = replace(parties.entry(0), c1=junk(parties))
    said = statement(parties.public(), client(0), hash_of(entry.c1))
    return parties.request([replace(entry, signature=SERVER.sign(said).raw)])


def signed_by_no_member(parties: Parties) -> bytes:
    entry = replace(parties.entry(0), number=len(CLIENTS), c1=junk(parties))
    said = statement(parties.public(), client(len(CLIENTS)), hash_of(entry.c1))
    return parties.request([replace(entry, signature=SigningKey.generate().sign(said).raw)])


def under_another_name(parties: Parties) -> bytes:
    return parties.request([replace(parties.entry(0), number=1)])


ONE_ENTRY: Sequence[Forge] = (
    other_half,
    half_of_another,
    other_weights,
    other_salt,
    other_place,
    other_question,
    other_key,
    unsigned,
    signed_by_the_server,
    signed_by_no_member,
    under_another_name,
)


@every("forge", ONE_ENTRY)
def test_what_no_client_signed_is_not_opened(forge: Forge) -> None:
    parties = Parties()
    assert parties.open(forge(parties)) == [None]
    ((sender, why),) = parties.told
    assert sender == "server"
    assert "signature" in why or "pinned" in why
    assert parties.openings.opened == 0


def test_a_statement_counts_for_its_own_client_though_two_have_one_key() -> None:
    """A roster has no key twice. If one had, one ciphertext would be opened under two names."""
    parties = Parties()
    parties.holder = parties.held_by(lambda number: (client(number), CLIENTS[0].public))
    entry = parties.entry(0)
    found = parties.open(parties.request([entry, replace(entry, number=1)]))
    assert [share is None for share in found] == [False, True]


def test_a_forged_entry_costs_no_other_client_its_share() -> None:
    parties = Parties()
    forged = replace(parties.entry(1), c1=junk(parties))
    found = parties.open(parties.request([parties.entry(0), forged, parties.entry(2)]))
    assert [share is None for share in found] == [False, True, False]


def test_a_second_request_of_a_query_is_refused_and_the_same_one_gets_the_same_reply() -> None:
    parties = Parties()
    first = parties.request([parties.entry(0)])
    found = parties.open(first)
    assert parties.open(first) == found
    for other in (
        parties.request([parties.entry(1)]),
        parties.request([parties.entry(0)]),
        other_weights(parties),
    ):
        with pytest.raises(RemoteProtocolError, match="equest of 'profile' again"):
            parties.open(other)
    assert parties.openings.opened == 1


def test_of_two_digests_for_one_query_one_is_opened() -> None:
    """The server declared other weights to client 1. A request has one set of weights."""
    parties = Parties()
    other = Declared.of(
        linear_query(profile(7, 10), parties.anchor, BOUNDS, parties.variant),
        parties.checks,
        NAME,
    )
    entries = [parties.entry(0), parties.entry(1, parties.public(other))]
    found = parties.open(parties.request(entries))
    assert [share is None for share in found] == [False, True]
    with pytest.raises(RemoteProtocolError, match="first request"):
        parties.open(parties.request(entries, other))


@every(
    ("forge", "said"),
    [
        (lambda own: own.request([own.entry(0), own.entry(0)]), "each client once"),
        (lambda own: own.request([own.entry(0)], own=CLIENTS[0]), "signature"),
        (lambda own: own.request([own.entry(0)], index=2), "one of 2 queries, got number 2"),
        (lambda own: own.request([own.entry(0)])[:-1], "another length"),
        (lambda own: own.request([]), "another length"),
        (lambda own: own.request([own.entry(0)] * (COHORT + 1)), "another length"),
    ],
)
def test_a_request_in_another_form_is_refused_as_a_whole(forge: Forge, said: str) -> None:
    parties = Parties()
    with pytest.raises(RemoteProtocolError, match=said):
        parties.open(forge(parties))
    assert parties.openings.opened == 0


def beside(own: Parties) -> Declared:
    return own.weights([*own.query.hidden, 1.0])


def imaginary(own: Parties) -> Declared:
    whole = own.coefficients(own.query.hidden)
    whole[0, COMPACT.poly_modulus_degree // 2] += 2**18
    return own.of_coefficients(whole)


def moved(at: int, by: float) -> Callable[[Parties], Declared]:
    def of(own: Parties) -> Declared:
        values = own.query.hidden.copy()
        values[at] += by
        return own.weights(values)

    return of


@every(
    ("weights", "said"),
    [
        (moved(-1, 0.25), "weights 20 to 20 from -0.5 to -0.5"),
        (moved(-1, -0.001), "weights 20 to 20"),
        (moved(10, -1.0), "weights 10 to 19"),
        (lambda own: own.weights([51.0, *own.query.hidden[1:]]), "norm up to"),
        (lambda own: own.weights([*np.eye(20)[3], 0.0]), "weights 10 to 19"),
        (beside, "numbers beside them"),
        (imaginary, "numbers beside them"),
    ],
)
def test_weights_of_no_baseline_are_refused(weights: Callable[[Parties], Declared], said: str) -> None:
    """Though the server declared them, and the client signed their digest."""
    parties = Parties()
    declared = weights(parties)
    entry = parties.entry(0, parties.public(declared))
    with pytest.raises(RemoteProtocolError, match=said):
        parties.open(parties.request([entry], declared))
    assert parties.openings.opened == 0


def test_a_server_notices_weights_of_no_baseline_before_it_asks() -> None:
    parties = Parties()
    outside = replace(parties.query, hidden=np.where(np.arange(21) == 20, 0.0, parties.query.hidden))
    with pytest.raises(ConfigError, match="weights 20 to 20 from -"):
        Declared.of(outside, parties.checks, NAME)


@every(
    "spoil",
    [lambda own: bytes(len(own.c1)), lambda own: b"\xff" * len(own.c1)],
)
def test_what_is_no_half_is_not_opened_though_its_client_signed_it(spoil: Callable[[Entry], bytes]) -> None:
    parties = Parties()
    entry = parties.entry(0)
    assert parties.open(parties.request([colluding(parties, entry, spoil(entry))])) == [None]


def test_openings_end_at_the_cap() -> None:
    parties = Parties(scores=2)
    found = parties.open(parties.request([parties.entry(number) for number in range(4)]))
    assert [share is None for share in found] == [False, False, True, True]
    assert "used up" in parties.told[0][1]


def test_the_server_finds_what_the_key_holder_would_refuse() -> None:
    parties = Parties()
    message = bytearray(parties.message(0, profile(0, 10)))
    message[-1] ^= 1
    with pytest.raises(RemoteProtocolError, match="signature") as refused:
        parties.arrived(bytes(message), 0)
    assert refused.value.sender == client(0)


# The server with one client ----------------------------------------------------------------------------


def colluding(parties: Parties, entry: Entry, c1: bytes) -> Entry:
    """An entry whose client signs any c1 that the server wants."""
    said = statement(parties.public(), client(entry.number), hash_of(c1))
    return replace(entry, c1=c1, signature=CLIENTS[entry.number].sign(said).raw)


def divided(parties: Parties, polynomial: NDArray[np.uint64]) -> bytes:
    """A c1 whose product with the declared weights is this polynomial, in NTT form (primes, N)."""
    p = parties.terms.parameters
    (weights,) = parties.declared.factors
    inverse = [[pow(int(w), -1, prime) for w in row] for row, prime in zip(weights, p.primes, strict=True)]
    whole = checked._multiplied(polynomial, np.array(inverse, dtype=np.uint64), p)
    return gate.pack(whole[None], p.primes)


@BOTH
@pytest.mark.parametrize("coordinate", [0, 7, 15])
def test_with_one_client_the_server_reads_a_coordinate_of_an_honest_profile(
    parameters: Parameters, coordinate: int
) -> None:
    """What checked openings do not stop: c1(victim) e_j / w, signed by a client that is the server's."""
    parties = Parties(parameters)
    p, terms, victim = parameters, parties.terms, profile(3, 10)
    ciphertext = parties.ciphertext(victim)
    (unit,) = parties.checks.factors(parties.coefficients(np.eye(terms.hidden_length)[coordinate]))
    (stolen,) = parties.c1(ciphertext)
    entry = colluding(parties, parties.entry(0), divided(parties, checked._multiplied(stolen, unit, p)))
    (share,) = parties.open(parties.request([entry]))
    assert share is not None
    (rest,) = parties.c0(ciphertext)
    whole = p.centre(int.from_bytes(share, "little") + checked._coefficient([unit], [rest], p))
    hidden = features(victim, parties.anchor, BOUNDS).split(Variant.FULL).hidden
    assert abs(whole * terms.unit - hidden[coordinate]) <= terms.bounds.scale * terms.error_bound()
    assert abs(hidden[coordinate]) > 10 * terms.bounds.scale * terms.error_bound(), "it is no noise"


@BOTH
def test_with_one_client_the_server_reads_digits_of_the_key(parameters: Parameters) -> None:
    """As `test_malicious`, by a c1 that the client signs: some hundred such openings are the whole key."""
    parties = Parties(parameters, scores=500)
    p, n = parameters, parameters.poly_modulus_degree
    step, count = int(12 * parties.terms.sigma), 0
    while step * 3 ** (count + 1) < p.modulus:
        count += 1
    rows = np.zeros((len(p.primes), n), dtype=np.uint64)
    for i in range(count):
        value = step * 3**i * (1 if i == 0 else -1)  # x^n = -1
        rows[:, -i % n] = [value % prime for prime in p.primes]
    entry = colluding(parties, parties.entry(0), divided(parties, parties.ring.transformed(rows)))
    (share,) = parties.open(parties.request([entry]))
    assert share is not None
    rest, found = (2 * p.centre(int.from_bytes(share, "little")) + step) // (2 * step), []
    for _ in range(count):
        digit = (rest + 1) % 3 - 1
        found.append(digit)
        rest = (rest - digit) // 3
    assert count >= 14
    assert found == parties.pair.coefficients()[:count].tolist()


# The key holder, if it breaks the protocol ------------------------------------------------------------


def test_a_key_holder_with_a_key_of_its_own_making_gets_nothing_that_confirms_a_guess() -> None:
    """Both halves of its key are constants, so c1 shows the encryption's randomness u, and c0 follows from a
    guess of the vector. Its request is the same to the last byte for two vectors: no guess is confirmed.
    """
    parties = Parties()
    p, ring, terms = parties.terms.parameters, parties.ring, parties.terms
    primes, bits = (*p.primes, p.special_prime), (11, 10)
    halves = [[(p.special_prime * 2**bit + 1) % prime for prime in primes] for bit in bits]
    shape = (2, len(primes), p.poly_modulus_degree)
    forged = np.broadcast_to(np.array(halves, dtype=np.uint64)[:, :, None], shape)
    public = checked_key(p, gate.pack(np.ascontiguousarray(forged), primes))
    own, other = (
        features(profile(seed, parties.q), parties.anchor, BOUNDS).split(parties.variant).hidden
        for seed in (3, 4)
    )
    ciphertext = Encryptor(public, terms).encrypt(own)
    (c1,) = parties.c1(ciphertext)
    sent, half = ciphertext[gate.TAG :], parties.checks.half_bytes
    # c1 = 2^10 u, exactly: the division by the special prime rounds its noise away.
    u = [_over(row, 2 ** bits[1], prime) for row, prime in zip(c1, p.primes, strict=True)]

    def c0_with(guess: NDArray[np.float64]) -> bytes:
        (plain,) = [ring.transformed(ring.encoded(guess, terms.data_scale))]
        rows = [
            (row.astype(object) * 2 ** bits[0] + of) % prime
            for row, of, prime in zip(u, plain.astype(object), p.primes, strict=True)
        ]
        return gate.pack(np.array(rows, dtype=np.uint64)[None], p.primes)

    assert c0_with(own) == sent[:half], "the key holder can compute what it does not get"
    question = parties.declared.public(public.session)
    server = QueryServer(parties.declared, 0, SERVER, public.session)
    requests = []
    for guess in (own, other):
        guessed = ciphertext[: gate.TAG] + c0_with(guess) + sent[half:]
        message = signed(question, guessed, client(0), CLIENTS[0])
        arrived = by_ckks(parties.declared, public.session, message, 0, *member(0))
        requests.append(server.request([arrived]))
    assert requests[0] == requests[1]


def _over(values: NDArray[np.uint64], by: int, prime: int) -> NDArray[np.object_]:
    return values.astype(object) * pow(by, -1, prime) % prime


def test_the_digest_of_weights_cannot_be_guessed() -> None:
    """Without a salt that nobody knows, a client tries baselines until one has the digest it was told."""
    parties = Parties()
    made = [Declared.of(parties.query, parties.checks, NAME) for _ in range(2)]
    salts = [one.head[:32] for one in made]
    assert len({one.told for one in made} | {*salts} | {bytes(32)}) == 5
    again = Declared.of(parties.query, parties.checks, NAME, salt=lambda packed: salts[0])
    assert again.told == made[0].told


def test_a_refused_share_is_no_score() -> None:
    parties = Parties()
    arrived = [
        parties.arrived(parties.message(number, profile(number, parties.q)), number) for number in range(2)
    ]
    size = parties.checks.answer_bytes
    reply = parties.checks.reply_tag(parties.pair.public.session) + b"\xff" * size + bytes(size)
    refused, opened = parties.server.opened(arrived, reply, sender="key-holder")
    assert refused is None
    assert opened == parties.terms.parameters.centre(arrived[1].own)


# The spread of a query ----------------------------------------------------------------------------------


@BOTH
def test_a_query_that_is_nearly_one_entry_is_refused_under_ckks_too(parameters: Parameters) -> None:
    """By the server before it asks, and by the key holder though its client signed it."""
    length = 100
    bounds = LinearBounds(
        hidden_length=length, norm=1, weight_norm=4, row_norm=4, product=4, least=-4, most=4, spread=5
    )
    pair, _ = made(parameters)
    checks = Checks(terms=LinearTerms(parameters=parameters, bounds=bounds, scores=10), context=b"")
    spike, flat = np.full(length, 0.01), np.tile([0.1, -0.1], length // 2)
    spike[7] = 3.0
    assert Declared.of(LinearQuery(bounds, flat), checks, NAME)
    looser = replace(bounds, spread=10.0)
    loose = Checks(terms=replace(checks.terms, bounds=looser), context=b"")
    assert loose.digest != checks.digest, "who signed for one bound signed for no other"
    for weights in (spike, -spike, np.where(spike > 1, 5e-324, 0.0)):
        with pytest.raises(ConfigError):
            Declared.of(LinearQuery(bounds, weights), checks, NAME)
    sharp = Declared.of(LinearQuery(looser, spike), loose, NAME, salt=lambda packed: bytes(32))
    told = commitment(checks, NAME, bytes(32), sharp.head[32:])
    sharp = replace(sharp, terms=checks, told=told)
    server, key = QueryServer(sharp, 0, SERVER, pair.public.session), pair.public.session
    ciphertext = Encryptor(pair.public, checks.terms).encrypt(flat / 2)
    message = signed(sharp.public(key), ciphertext, client(0), CLIENTS[0])
    answerer = CheckedAnswerer(pair, member, Openings(), lambda sender, why: None)
    holder = QueryKeyHolder(checks, (NAME,), 1, SERVER.public, answerer)
    with pytest.raises(RemoteProtocolError, match="nearly that one entry"):
        holder.open(server.request([by_ckks(sharp, key, message, 0, *member(0))]))
