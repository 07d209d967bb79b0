"""Encrypted matching beside the published way, in one interleaved run.

    python benchmarks/matching.py [--write]

Prints, for profiles of 84 elements, milliseconds of CPU per client of client, server and key holder, bytes
up and between the servers per client, the largest error, and how many times faster than element by element.
Each party's checks of what arrives are part of its time. `--write` keeps the figures in
benchmarks/results/matching.csv.

The systems take turns, a batch of clients each, so that a busy machine slows all of them alike. What is done
once a round (encoding the baseline) is shared out over its clients; keys and contexts are made once a session
and are not counted. The slow systems run a few clients, since their cost per client does not change.
"""

from __future__ import annotations

from struct import pack, unpack_from
from typing import Any

import numpy as np
import pandas as pd
import tenseal as ts
from kept import keep
from tally import Tally

from securefl.core.agreement import u32
from securefl.core.signing import AgreementKey, SigningKey
from securefl.dp.moments import MeanVariance
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.he.parameters import COMPACT, STRONG, Parameters
from securefl.linear import checked, pads, words
from securefl.linear.checked import CheckedAnswerer, product_of, signed
from securefl.linear.checks import Checks
from securefl.linear.encryptor import Encryptor
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import PadAnswerer, mask
from securefl.linear.terms import LinearTerms
from securefl.linear.turn import Declared, QueryKeyHolder, QueryServer
from securefl.matching.profiles import (
    VARIANCE_FLOOR,
    Anchor,
    Bounds,
    Floats,
    Variant,
    divergence,
    features,
    linear_query,
)

Q = 84
TIGHT = Bounds(mean=16, variance_high=64, weight=16)
SIGNING = SigningKey.generate()
ANCHOR, NOTHING = Anchor(np.zeros(Q), np.ones(Q)), np.zeros(0)


class System:
    """A way to match, a batch of clients at a time, `clients` of them in all."""

    batch = 1

    def __init__(self, name: str, clients: int, bounds: Bounds | None = None) -> None:
        self.clients, self.bounds = clients, bounds or Bounds()
        self.tally = Tally(name, ("client", "server", "holder"))
        self.linear = self.bounds.linear(Q, Variant.FULL)

    def start(self, base: MeanVariance) -> None:
        self.base, self.query = base, linear_query(base, ANCHOR, self.bounds)
        self.begin()

    def begin(self) -> None:
        """What is done once a round."""

    def split(self, own: MeanVariance) -> Any:
        return features(own, ANCHOR, self.bounds).split(Variant.FULL)

    def add(self, owners: list[MeanVariance], scores: list[float], *, up: int, between: int) -> None:
        truth = [divergence(own, self.base) for own in owners]
        self.tally.add(scores, truth, up=up, between=between)


class OneTurn(System):
    """Concealed vectors up, one request for all clients to the key holder, and one reply."""

    terms: Checks | PadTerms
    answerer: Any
    key = b""

    def __init__(self, name: str, clients: int, bounds: Bounds | None = None) -> None:
        super().__init__(name, clients, bounds)
        self.batch = clients

    def begin(self) -> None:
        self.declared = self.tally.spend("server", lambda: Declared.of(self.query, self.terms, "p"))
        self.server = QueryServer(self.declared, 0, SIGNING, self.key)
        self.key_holder = QueryKeyHolder(self.terms, ("p",), self.clients, SIGNING.public, self.answerer)

    def run(self, owners: list[MeanVariance]) -> None:
        spend = self.tally.spend
        messages = [self.concealed(*one) for one in enumerate(owners)]
        arrived = [self.arrived(*one) for one in enumerate(messages)]
        request = spend("server", lambda: self.server.request(arrived))
        reply = spend("holder", lambda: self.key_holder.open(request))
        scores = spend("server", lambda: self._scores(arrived, reply))
        up = sum(map(len, messages)) + len(owners) * self.seal
        self.add(owners, scores, up=up, between=len(request) + len(reply))

    def _scores(self, arrived: list[Any], reply: bytes) -> list[float]:
        opened = self.server.opened(arrived, reply, sender="key-holder")
        pairs = zip(arrived, opened, strict=True)
        return [self.server.score(one, value).value for one, value in pairs if value is not None]


class CheckedOpenings(OneTurn):
    """One signed ciphertext a client; the key holder checks it and multiplies its half by the weights."""

    seal = 0

    def __init__(self, name: str, parameters: Parameters, clients: int, bounds: Bounds) -> None:
        super().__init__(name, clients, bounds)
        terms = LinearTerms(parameters=parameters, bounds=self.linear, scores=4 * clients)
        self.terms, keys = Checks(terms=terms, context=b"benchmark"), KeyPair.generate(parameters)
        self.client, self.signing, self.key = (
            Encryptor(keys.public, terms),
            SigningKey.generate(),
            keys.public.session,
        )
        self.answerer = CheckedAnswerer(
            keys, lambda number: (str(number), self.signing.public), Openings(), _fail
        )

    def concealed(self, number: int, own: MeanVariance) -> bytes:
        def sealed() -> bytes:
            made = self.client.encrypt(self.split(own).hidden)
            return signed(self.declared.public(self.key), made, str(number), self.signing)

        made: bytes = self.tally.spend("client", sealed)
        return made

    def arrived(self, number: int, message: bytes) -> Any:
        name, public, asked = str(number), self.signing.public, self.declared.public(self.key)

        def taken() -> Any:
            came = checked.admit(message, self.terms, self.key, sender="client")
            own = product_of(came, self.declared, asked, name, public, sender="client")
            return self.declared.arrived(u32(number) + came.signature + came.c1, own, NOTHING, name)

        return self.tally.spend("server", taken)


def _fail(sender: str, why: str) -> None:
    raise RuntimeError(f"{sender}: {why}")


class Pads(OneTurn):
    """Masked words up, fresh keys and weights to the key holder, one word a client back."""

    seal = 64

    def __init__(self, name: str, clients: int, word_bits: int) -> None:
        super().__init__(name, clients)
        self.terms = PadTerms(bounds=self.linear, context=b"benchmark", word_bits=word_bits)
        self.agreement = AgreementKey.generate()
        self.answerer = PadAnswerer(self.agreement)

    def concealed(self, _: int, own: MeanVariance) -> bytes:
        def masked() -> bytes:
            return mask(self.split(own).hidden, self.terms, "p", self.declared.told, self.agreement.public)

        made: bytes = self.tally.spend("client", masked)
        return made

    def arrived(self, _: int, message: bytes) -> Any:
        def taken() -> Any:
            came = pads.admit(message, self.terms, sender="client")
            own = words.product(came.words, self.declared.factors)
            return self.declared.arrived(came.fresh.raw, own, NOTHING, "client")

        return self.tally.spend("server", taken)


class ElementWise(System):
    """Mean-only as published: every mean its own CKKS ciphertext, variances in plaintext.

    The server computes (mu - mu_B)^2 / (2 q s_B) for each, adds the ciphertexts and the plaintext rest; no
    rotations. The key holder reads the score. TenSEAL, N 8192, moduli [60, 40, 40, 60], scale 2^40. It hides
    no more than this: no flooding, no masks, no checks of what arrives.
    """

    def __init__(self, name: str, clients: int) -> None:
        super().__init__(name, clients)
        self.secret: Any = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
        self.secret.global_scale = 2.0**40
        self.public: Any = ts.context_from(
            self.secret.serialize(save_secret_key=False, save_galois_keys=False)
        )

    def run(self, owners: list[MeanVariance]) -> None:
        (own,), spend = owners, self.tally.spend
        message = spend("client", lambda: self._message(own))
        reply = spend("server", lambda: self._matched(message))
        score = spend("holder", lambda: float(ts.ckks_vector_from(self.secret, reply).decrypt()[0]))
        self.add(owners, [score], up=len(message), between=len(reply))

    def _message(self, own: MeanVariance) -> bytes:
        parts = [ts.ckks_vector(self.public, [float(mean)]).serialize() for mean in own.mean]
        sizes = pack(f"<{Q}I", *map(len, parts))
        return b"".join([pack("<I", Q), sizes, _floored(own).tobytes(), *parts])

    def _matched(self, message: bytes) -> bytes:
        sizes = unpack_from(f"<{Q}I", message, 4)
        variances = _floored(self.base)
        ratio = np.frombuffer(message, np.float64, Q, 4 + 4 * Q) / variances
        start, total = 4 + 12 * Q, None
        for size, mean, variance in zip(sizes, self.base.mean, variances, strict=True):
            term: Any = ts.ckks_vector_from(self.public, message[start : start + size])
            start += size
            term -= [float(mean)]
            term.square_()
            term *= [0.5 / (Q * float(variance))]
            total = term if total is None else total.add_(term)
        assert total is not None
        total += [0.5 * float(np.mean(ratio - np.log(ratio) - 1.0))]
        reply: bytes = total.serialize()
        return reply


def _floored(profile: MeanVariance) -> Floats:
    return np.maximum(profile.variance, VARIANCE_FLOOR)


def systems() -> list[Any]:
    """All ways to match. The slow ones have few clients."""
    return [
        CheckedOpenings("strong, checked", STRONG, 500, Bounds()),
        CheckedOpenings("compact, checked", COMPACT, 500, TIGHT),
        Pads("pads", 500, 64),
        Pads("pads, words of 128 bits", 500, 128),
        ElementWise("element by element, as published", 2),
    ]


def interleaved(turns: list[Any]) -> None:
    """Batches of all systems, in turn: at any time each has done the same share of its clients."""
    rng = np.random.default_rng(0)

    def profile() -> MeanVariance:
        return MeanVariance(rng.normal(size=Q), rng.uniform(0.2, 4, Q), 100)

    for system in turns:
        system.start(profile())
    while unfinished := [one for one in turns if one.tally.clients < one.clients]:
        behind = min(unfinished, key=lambda one: one.tally.clients / one.clients)
        behind.run([profile() for _ in range(min(behind.batch, behind.clients - behind.tally.clients))])


def main() -> None:
    played = systems()
    interleaved(played)
    found = pd.DataFrame([system.tally.row() for system in played])
    found["ratio"] = (found["total"].iloc[-1] / found["total"]).round(1)
    print(found.to_string(index=False))
    keep("matching", found)


if __name__ == "__main__":
    main()
