"""Encrypted profile matching: time and bytes per client, and error against the stated bound.

    python benchmarks/encrypted_scores.py

All settings are run in turn, round after round, so that a busy machine slows all of them alike; the times
are medians. Set-up (keys, contexts, encoding of the baseline) is not in them: it happens once per session.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import numpy as np

from securefl.he.keys import KeyPair
from securefl.he.match import Encryptor, Evaluator, Opener
from securefl.he.parameters import COMPACT, STRONG, Parameters
from securefl.he.terms import Terms
from securefl.profiles import Anchor, Bounds, Profile, Variant, divergence, features, query
from securefl.signing import SigningKey

SIGNER = SigningKey.generate()
LENGTHS = (10, 64, 84, 512)
BOUNDS = {STRONG: Bounds(), COMPACT: Bounds(mean=16, variance_high=64, weight=16)}


@dataclass
class Setting:
    """One parameter set and profile length, with its parties and what was measured."""

    terms: Terms
    client: Encryptor
    evaluator: Evaluator
    opener: Opener
    times: dict[str, list[float]] = field(default_factory=lambda: {"client": [], "server": [], "holder": []})
    errors: list[float] = field(default_factory=list)
    sizes: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, keys: KeyPair, terms: Terms) -> Setting:
        return cls(
            terms,
            Encryptor(keys.public, terms),
            Evaluator(keys.public, terms, SIGNER),
            Opener(keys, terms, SIGNER.public),
        )

    def run(self, rng: np.random.Generator) -> None:
        """One client, through all three parties."""
        q, bounds = self.terms.length, self.terms.bounds
        anchor = Anchor(np.zeros(q), np.ones(q))
        profile = Profile(rng.normal(size=q), rng.uniform(0.1, 4, q), 100)
        base = Profile(rng.normal(size=q) / 2, rng.uniform(0.5, 4, q), 100)
        baseline = self.evaluator.baseline(query(base, anchor, bounds))
        moments = [perf_counter()]
        split = features(profile, anchor, bounds).split(self.terms.variant)
        ciphertext = self.client.encrypt(split.hidden)
        moments.append(perf_counter())
        blinded = self.evaluator.match(ciphertext, baseline, split.clear)
        moments.append(perf_counter())
        reply = self.opener.open(blinded.request)
        moments.append(perf_counter())
        score = self.evaluator.unblind(blinded, reply)
        moments.append(perf_counter())
        client, match, holder, unblind = np.diff(moments) * 1e3
        for name, spent in (("client", client), ("server", match + unblind), ("holder", holder)):
            self.times[name].append(spent)
        self.errors.append(abs(score.value - divergence(profile, base)))
        self.sizes = (len(ciphertext), len(blinded.request), len(reply))

    def row(self) -> str:
        spent = [median(values) for values in self.times.values()]
        legs = "".join(f"{size:>9}" for size in self.sizes)
        times = "".join(f"{ms:>8.2f}" for ms in (*spent, sum(spent)))
        name = f"{self.terms.parameters.name:8}{self.terms.length:>5}"
        return f"{name}{times}{legs}{max(self.errors):>11.1e}{self.terms.error_bound():>9.1e}"


def settings(parameters: Parameters, scores: int) -> list[Setting]:
    keys = KeyPair.generate(parameters)
    return [
        Setting.of(
            keys,
            Terms(
                parameters=parameters,
                bounds=BOUNDS[parameters],
                length=q,
                variant=Variant.FULL,
                scores=scores,
            ),
        )
        for q in LENGTHS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="clients per setting (default 40)")
    parser.add_argument(
        "--scores", type=int, default=500, help="scores the key is declared for (default 500)"
    )
    chosen = parser.parse_args()
    rng = np.random.default_rng(0)
    todo = [s for parameters in (STRONG, COMPACT) for s in settings(parameters, chosen.scores)]
    for _ in range(chosen.rounds):
        for setting in todo:
            setting.run(rng)
    print(f"variant full, mode P, flooding for {chosen.scores} scores; ms and bytes per client")
    print("strong: default bounds; compact: mean 16, variance 64, weight 16")
    print("set         q  client  server  holder   total       up  request    reply  max error    bound")
    for setting in todo:
        print(setting.row())


if __name__ == "__main__":
    main()
