"""Encrypted matching beside the published way, Paillier and plain secret sharing, in one interleaved run.

    python benchmarks/matching.py [--write]

Prints, for profiles of 84 elements, milliseconds per client of client, server and key holder, bytes up and
bytes between the servers per client, the largest error, and how many times faster than element by element.
Of a client's time, `before` is what it can do while it waits for a query (it encrypts
zeros), and `waits` is the rest, for which the server waits. A simulation spends both. `--write` keeps the
figures in benchmarks/results/matching.json.

The systems take turns, a batch of clients each, so that a busy machine slows all of them alike. What is done
once a round (encoding the baseline) is shared out over its clients; keys and contexts are made once a session
and are not counted. The slow systems run a few clients, since their cost per client does not change.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import tenseal as ts
from matching_baselines import ElementWise, Paillier, SecretSharing, System

from securefl.core.signing import AgreementKey, SigningKey
from securefl.dp.moments import MeanVariance
from securefl.he import gate
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.he.parameters import COMPACT, STRONG, STRONG_ENCRYPTED, Parameters
from securefl.he.ring import Ring
from securefl.linear.checked import CheckedKeyHolder, CheckedServer, Declared, Question
from securefl.linear.checks import Checks
from securefl.linear.encryptor import Encryptor, admitted
from securefl.linear.evaluator import LinearEvaluator
from securefl.linear.opener import Opener
from securefl.linear.pad_terms import PadTerms
from securefl.linear.pads import PadKeyHolder, PadServer, mask
from securefl.linear.terms import LinearTerms
from securefl.matching.profiles import Anchor, Bounds, Variant, divergence, features, linear_query
from securefl.storage import files

Q, CLIENTS = 84, 500
TIGHT = Bounds(mean=16, variance_high=64, weight=16)
SIGNING = SigningKey.generate()
ROLES = ("before", "client", "server", "holder")
"""before: a client's work while it waits for a query. client: its work while the server waits."""


@dataclass
class Tally:
    """Seconds per role, bytes and errors over all clients so far."""

    clients: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROLES, 0.0))
    up: int = 0
    between: int = 0
    error: float = 0.0

    def spend(self, role: str, work: Callable[[], Any]) -> Any:
        began = perf_counter()
        done = work()
        self.seconds[role] += perf_counter() - began
        return done

    def row(self) -> dict[str, float]:
        ms = {role: 1e3 * spent / self.clients for role, spent in self.seconds.items()}
        shown = {**ms, "client": ms["before"] + ms["client"], "waits": ms["client"]}
        return {
            **{role: round(value, 3) for role, value in shown.items()},
            "total": round(sum(ms.values()), 3),
            "up": round(self.up / self.clients),
            "between": round(self.between / self.clients),
            "error": float(f"{self.error:.1e}"),
        }


def prepare(client: Encryptor) -> None:
    """Encrypt zeros for one message."""
    while client.prepare():
        pass


def profile(rng: np.random.Generator) -> MeanVariance:
    return MeanVariance(rng.normal(size=Q), rng.uniform(0.2, 4, Q), 100)


class EncryptedBaseline:
    """One packed ciphertext a client, multiplied by an encrypted baseline, and opened without checks."""

    batch = 1

    def __init__(self, name: str, clients: int) -> None:
        self.name, self.clients, self.bounds = name, clients, Bounds()
        bounds = self.bounds.linear(Q, Variant.FULL)
        terms = LinearTerms(parameters=STRONG_ENCRYPTED, bounds=bounds, scores=4 * clients)
        keys = KeyPair.generate(STRONG_ENCRYPTED)
        self.client = Encryptor(keys.public, terms)
        self.evaluator = LinearEvaluator(keys.public, terms, SIGNING)
        self.opener = Opener(keys, terms, SIGNING.public)
        self.anchor, self.tally = Anchor(np.zeros(Q), np.ones(Q)), Tally()

    def start(self, base: MeanVariance) -> None:
        self.base, asked = base, linear_query(base, self.anchor, self.bounds)
        self.weights = self.evaluator.encrypted_baseline(self.client.encrypt_baseline(asked))

    def run(self, owners: list[MeanVariance]) -> None:
        (own,), tally = owners, self.tally
        tally.spend("before", lambda: prepare(self.client))
        hidden = features(own, self.anchor, self.bounds).split(Variant.FULL).hidden
        message = tally.spend("client", lambda: self.client.encrypt(hidden))
        blinded = tally.spend("server", lambda: self.evaluator.match(message, self.weights))
        reply = tally.spend("holder", lambda: self.opener.open(blinded.request))
        score = tally.spend("server", lambda: self.evaluator.unblind(blinded, reply))
        tally.error = max(tally.error, abs(score.value - divergence(own, self.base)))
        tally.clients += 1
        tally.up += len(message)
        tally.between += len(blinded.request) + len(reply)


class CheckedOpenings:
    """One signed ciphertext a client; the key holder checks it and multiplies its half by the weights."""

    def __init__(self, name: str, parameters: Parameters, clients: int, bounds: Bounds) -> None:
        self.name, self.bounds, self.batch, self.clients = name, bounds, clients, clients
        linear = bounds.linear(Q, Variant.FULL)
        self.terms = LinearTerms(parameters=parameters, bounds=linear, scores=4 * clients)
        self.checks = Checks(terms=self.terms, context=b"benchmark")
        self.keys, self.ring = KeyPair.generate(parameters), Ring(parameters)
        self.client, self.signing = Encryptor(self.keys.public, self.terms), SigningKey.generate()
        self.anchor, self.tally = Anchor(np.zeros(Q), np.ones(Q)), Tally()
        self.tag = gate.tag("ciphertext", self.keys.public.session, self.terms.digest())

    def start(self, base: MeanVariance) -> None:
        self.base, self.query = base, linear_query(base, self.anchor, self.bounds)
        declared = self.tally.spend("server", lambda: Declared.of(self.query, self.checks, "p", self.ring))
        key = self.keys.public.session
        self.asked = Question(checks=self.checks, key=key, name="p", told=declared.told)
        self.server = CheckedServer(self.asked, 0, declared, SIGNING)
        self.key_holder = CheckedKeyHolder(
            self.keys,
            self.checks,
            ("p",),
            self.clients,
            SIGNING.public,
            lambda number: (str(number), self.signing.public),
            Openings(),
            self.ring,
        )

    def run(self, owners: list[MeanVariance]) -> None:
        tally = self.tally
        messages = []
        for k, own in enumerate(owners):
            tally.spend("before", lambda: prepare(self.client))
            messages.append(tally.spend("client", lambda k=k, own=own: self._message(k, own)))
        arrived = [
            tally.spend("server", lambda k=k, one=one: self._admit(k, one)) for k, one in enumerate(messages)
        ]
        request = tally.spend("server", lambda: self.server.request(arrived))
        reply = tally.spend("holder", lambda: self.key_holder.open(request, report=_fail))
        opened = tally.spend("server", lambda: self.server.opened(arrived, reply, sender="key-holder"))
        for value, own in zip(opened, owners, strict=True):
            score = (value * self.terms.unit + self.query.offset) / self.terms.bounds.scale
            tally.error = max(tally.error, abs(score - divergence(own, self.base)))
        tally.clients += len(owners)
        tally.up += sum(map(len, messages))
        tally.between += len(request) + len(reply)

    def _message(self, number: int, own: MeanVariance) -> bytes:
        hidden = features(own, self.anchor, self.bounds).split(Variant.FULL).hidden
        return self.asked.signed(self.client.encrypt(hidden), str(number), self.signing)

    def _admit(self, number: int, message: bytes) -> Any:
        admitted(message[:-64], self.tag, self.terms, sender="client")
        return self.server.admit(message, number, str(number), self.signing.public)


def _fail(sender: str, why: str) -> None:
    raise RuntimeError(f"{sender}: {why}")


class Pads:
    """Masked words up, fresh keys and weights to the key holder, one word a client back."""

    batch = clients = CLIENTS

    def __init__(self, word_bits: int = 64) -> None:
        self.name = f"pads{'' if word_bits == 64 else f', words of {word_bits}'}"
        bounds = Bounds().linear(Q, Variant.FULL)
        self.terms = PadTerms(bounds=bounds, context=b"benchmark", word_bits=word_bits)
        self.agreement = AgreementKey.generate()
        self.anchor, self.tally = Anchor(np.zeros(Q), np.ones(Q)), Tally()

    def start(self, base: MeanVariance) -> None:
        self.base, query = base, linear_query(base, self.anchor, Bounds())
        self.key_holder = PadKeyHolder(self.agreement, self.terms, ("profile",), self.clients, SIGNING.public)
        self.server = self.tally.spend("server", lambda: PadServer(self.terms, 0, "profile", SIGNING, query))

    def run(self, owners: list[MeanVariance]) -> None:
        tally, size = self.tally, self.terms.word_bytes
        masked = [tally.spend("client", lambda own=own: self._masked(own)) for own in owners]
        request = tally.spend("server", lambda: self.server.request(masked))
        reply = tally.spend("holder", lambda: self.key_holder.open(request))
        words = [reply[at : at + size] for at in range(0, len(reply), size)]
        pairs = list(zip(masked, words, strict=True))
        scores = tally.spend("server", lambda: [self.server.score(*pair) for pair in pairs])
        for score, own in zip(scores, owners, strict=True):
            tally.error = max(tally.error, abs(score.value - divergence(own, self.base)))
        tally.clients += len(owners)
        tally.up += sum(len(m.packed) + 64 for m in masked)  # and its seal
        tally.between += len(request) + len(reply)

    def _masked(self, own: MeanVariance) -> Any:
        split = features(own, self.anchor, Bounds()).split(Variant.FULL)
        told = self.server.told
        return mask(split.hidden, split.clear, self.terms, "profile", told, self.agreement.public)


class Compared:
    """A system to compare with, a client at a time, `clients` of them at most."""

    batch = 1

    def __init__(self, name: str, system: System, clients: int) -> None:
        self.name, self.system, self.clients = name, system, clients
        system.setup(Q, np.random.default_rng(1))
        self.tally = Tally()

    def start(self, base: MeanVariance) -> None:
        self.base = base

    def run(self, owners: list[MeanVariance]) -> None:
        (own,), tally = owners, self.tally
        message = tally.spend("client", lambda: self.system.client(own))
        reply = tally.spend("server", lambda: self.system.server(message, self.base))
        score = tally.spend("holder", lambda: self.system.holder(reply))
        tally.error = max(tally.error, abs(score - divergence(own, self.base)))
        tally.clients += 1
        tally.up += self.system.bytes_up
        tally.between += self.system.bytes_to_holder


def systems() -> list[Any]:
    """All ways to match. The slow ones have few clients."""
    found = [
        CheckedOpenings("strong, checked", STRONG, CLIENTS, Bounds()),
        CheckedOpenings("compact, checked", COMPACT, CLIENTS, TIGHT),
        EncryptedBaseline("strong E", 40),
        Pads(),
        Pads(word_bits=128),
        Compared("element-wise", ElementWise(), 2),
    ]
    try:
        found.append(Compared("paillier", Paillier(), 2))
    except ModuleNotFoundError:
        print("phe is not installed: no row for Paillier")
    return [*found, Compared("sharing (floor)", SecretSharing(), 100)]


def interleaved(turns: list[Any], rng: np.random.Generator) -> None:
    """Batches of all systems, in turn: at any time each has done the same share of its clients."""
    for system in turns:
        system.start(profile(rng))
    while unfinished := [s for s in turns if s.tally.clients < s.clients]:
        behind = min(unfinished, key=lambda s: s.tally.clients / s.clients)
        size = min(behind.batch, behind.clients - behind.tally.clients)
        behind.run([profile(rng) for _ in range(size)])


def client_against_tenseal(rng: np.random.Generator, turns: int = 60) -> float:
    """Time of our strong client over TenSEAL's encode + encrypt + serialise of one ciphertext, in turn."""
    mine = CheckedOpenings("strong, checked", STRONG, 16, Bounds())
    context = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 60, 30])
    context.make_context_public()
    spent: dict[str, list[float]] = {"mine": [], "tenseal": []}
    for own in (profile(rng) for _ in range(turns)):
        hidden = features(own, mine.anchor, mine.bounds).split(Variant.FULL).hidden
        values = hidden.tolist()
        for name, work in (
            ("mine", lambda hidden=hidden: mine.client.encrypt(hidden)),
            ("tenseal", lambda values=values: ts.ckks_vector(context, values, 2.0**60).serialize()),
        ):
            began = perf_counter()
            work()
            spent[name].append(perf_counter() - began)
    return median(spent["mine"]) / median(spent["tenseal"])


def main() -> None:
    rng, rows = np.random.default_rng(0), []
    names = ("client", "before", "waits", "server", "holder", "total", "up", "between", "error", "ratio")
    print(f"{'system':20}" + "".join(f"{name:>10}" for name in names))
    played = systems()
    interleaved(played, rng)
    slow = next(s for s in played if s.name == "element-wise").tally.row()["total"]
    for system in played:
        row = system.tally.row()
        row["ratio"] = round(slow / row["total"], 1)
        rows.append({"q": Q, "clients": CLIENTS, "system": system.name, **row})
        print(f"{system.name:20}" + "".join(f"{row[name]:>10}" for name in names))
    ratio = client_against_tenseal(rng)
    print(f"strong client over encode + encrypt + serialise of one ciphertext: {ratio:.2f}")
    if "--write" in sys.argv:
        found = {"rows": rows, "client_over_tenseal": round(ratio, 3)}
        command = {"command": "python benchmarks/matching.py --write"}
        path = Path(__file__).parent / "results" / "matching.json"
        files.write(path, json.dumps(command | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
