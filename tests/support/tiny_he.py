"""What tests of encrypted matching share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from securefl.core.agreement import u32
from securefl.core.keys import PublicKey
from securefl.core.linear import Floats, LinearQuery
from securefl.core.signing import AgreementKey, SigningKey
from securefl.dp.moments import MeanVariance
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.he.parameters import Parameters
from securefl.linear import checked, pads, words
from securefl.linear.checks import Checks
from securefl.linear.encrypted import LinearEvaluator, Opener
from securefl.linear.encryptor import Encryptor
from securefl.linear.pad_terms import PadTerms
from securefl.linear.scheme import Report
from securefl.linear.terms import LinearTerms
from securefl.linear.turn import SALT, Arrived, Declared, QueryKeyHolder, QueryServer, Score
from securefl.matching import Profile
from securefl.matching.profiles import Bounds

SIGNER = SigningKey.generate()
NOTHING: Floats = np.zeros(0)
BOUNDS = Bounds(mean=16, variance_high=64, weight=16)


class Quiet(random.Random):
    """Takes the flooding away, so that what lies under it can be looked at."""

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        return 0.0


def seeded() -> random.Random:
    """Flooding that repeats: a bound that one score in 10^6 exceeds then holds always or never."""
    return random.Random(1)


SURELY = 1.4
"""Under fresh flooding: one score in 10^6 exceeds its bound, and one in 10^11 exceeds 1.4 times its bound."""


def profile(seed: int, q: int) -> MeanVariance:
    rng = np.random.default_rng(seed)
    return MeanVariance(rng.normal(size=q), rng.uniform(0.2, 3, q), 50)


def owned(seed: int, q: int = 6) -> Profile:
    """The same values as a party of a match in files has them."""
    made = profile(seed, q)
    return Profile(made.mean, made.variance)


@cache
def keys(parameters: Parameters) -> KeyPair:
    return KeyPair.generate(parameters)


def pad_server(
    terms: PadTerms,
    index: int,
    name: str,
    signing: SigningKey,
    query: LinearQuery,
    *,
    salt: bytes | None = None,
) -> QueryServer:
    salted = {} if salt is None else {"salt": lambda packed: salt}
    return QueryServer(Declared.of(query, terms, name, **salted), index, signing)


def pad_holder(
    agreement: AgreementKey, terms: PadTerms, names: tuple[str, ...], cohort: int, server: PublicKey
) -> QueryKeyHolder:
    return QueryKeyHolder(terms, names, cohort, server, pads.PadAnswerer(agreement))


def pad_request(server: QueryServer, messages: Sequence[bytes]) -> bytes:
    """A request for these clients. It has their fresh keys alone."""
    fresh = [pads.admit(one, server.declared.terms, sender="client").fresh.raw for one in messages]
    return server.request([Arrived("client", one, one, 0, 0.0) for one in fresh])


def lie(server: QueryServer, weights: words.Words) -> None:
    """From here on a server that breaks the protocol: it asks for other weights than it declared."""
    own = server.declared
    server.declared = replace(own, head=own.head[:SALT] + words.packed(weights), factors=weights)


def pad_score(
    server: QueryServer, message: bytes, reply: bytes, clear: Floats = NOTHING, sender: str = "client"
) -> Score:
    """A client's score, from the key holder's word for it."""
    arrived = by_pads(server.declared, message, clear, sender)
    (opened,) = server.opened([arrived], reply, sender="key-holder")
    assert opened is not None
    return server.score(arrived, opened)


def by_pads(declared: Declared, message: bytes, clear: Floats = NOTHING, sender: str = "client") -> Arrived:
    """A client's masked message as the server takes it."""
    masked = pads.admit(message, declared.terms, sender=sender)
    return declared.arrived(masked.fresh.raw, words.product(masked.words, declared.factors), clear, sender)


def by_ckks(
    declared: Declared,
    key: bytes,
    message: bytes,
    number: int,
    client: str,
    public: PublicKey,
    clear: Floats = NOTHING,
) -> Arrived:
    """A client's signed ciphertext as the server takes it."""
    came = checked.admit(message, declared.terms, key, sender=client)
    own = checked.product_of(came, declared, declared.public(key), client, public, sender=client)
    return declared.arrived(u32(number) + came.signature + came.c1, own, clear, client)


class Checked:
    """Server, key holder and one client of checked openings under one key, for one query."""

    def __init__(self, parameters: Parameters, query: LinearQuery, *, scores: int = 500) -> None:
        self.pair, self.signing = keys(parameters), SigningKey.generate()
        terms = LinearTerms(parameters=parameters, bounds=query.bounds, scores=scores)
        self.terms, self.checks = terms, Checks(terms=terms, context=b"here")
        self.declared = Declared.of(query, self.checks, "profile")
        key = self.pair.public.session
        self.server = QueryServer(self.declared, 0, SIGNER, key)
        self.client = Encryptor(self.pair.public, terms)

    def message(self, hidden: Floats) -> bytes:
        question = self.declared.public(self.pair.public.session)
        return checked.signed(question, self.client.encrypt(hidden), "ann", self.signing)

    def arrived(self, message: bytes, clear: Floats = NOTHING) -> Arrived:
        key, public = self.pair.public.session, self.signing.public
        return by_ckks(self.declared, key, message, 0, "ann", public, clear)

    def holder(self, rng: random.Random | None = None, report: Report | None = None) -> QueryKeyHolder:
        def member(number: int) -> tuple[str, PublicKey]:
            return "ann", self.signing.public

        told = report or _fail
        answerer = checked.CheckedAnswerer(self.pair, member, Openings(), told, rng=rng or seeded())
        return QueryKeyHolder(self.checks, ("profile",), 1, SIGNER.public, answerer)

    def score(self, hidden: Floats, clear: Floats = NOTHING) -> Score:
        """The score of a vector, by way of its bytes."""
        arrived = self.arrived(self.message(hidden), clear)
        reply = self.holder().open(self.server.request([arrived]))
        (opened,) = self.server.opened([arrived], reply, sender="key holder")
        assert opened is not None
        return self.server.score(arrived, opened)


def scored(
    parameters: Parameters, query: LinearQuery, hidden: Floats, clear: Floats = NOTHING, *, scores: int = 500
) -> Score:
    """The score of a vector by ciphertexts, with the weights in plaintext or encrypted."""
    if not parameters.encrypted_baseline:
        return Checked(parameters, query, scores=scores).score(hidden, clear)
    pair, terms = keys(parameters), LinearTerms(parameters=parameters, bounds=query.bounds, scores=scores)
    client, evaluator = Encryptor(pair.public, terms), LinearEvaluator(pair.public, terms, SIGNER)
    baseline = evaluator.encrypted_baseline(client.encrypt_baseline(query))
    request = evaluator.addressed(client.encrypt(hidden), baseline, clear)
    return Opener(pair, terms, SIGNER.public, rng=seeded()).read(request)


def _fail(sender: str, why: str) -> None:
    raise AssertionError(f"{sender}: {why}")
