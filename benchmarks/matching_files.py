"""Matching between files, under ciphertexts and under pads, in one interleaved run.

    python benchmarks/matching_files.py [--write]

Prints, per way, the processor milliseconds per client of client, evaluator and key holder, from file to file:
reading, checking and writing are part of it. Then the bytes of a client's file and of the scores per client,
and the largest error. `--write` keeps the figures in benchmarks/results/matching_files.csv.

The ways take turns, a client each. Keys, and the ledger of the key holder, are not counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from kept import keep
from tally import Tally

from securefl.matching import ClientKey, Evaluator, KeyHolder, Options, Profile, Scores, Sealed, divergence
from securefl.matching.document import Document

Q, CLIENTS = 84, 100


class Way:
    """One way to match between files, with what it took so far. declared: whether the baseline is."""

    def __init__(self, name: str, options: Options, *, declared: bool = False) -> None:
        self.options, self.declared = options, declared
        self.tally = Tally(name, ("client", "evaluator", "holder"))
        self.sent: list[bytes] = []
        self.clients: list[ClientKey] = []

    def begin(self, base: Profile) -> None:
        self.base: Profile | Sealed = base
        self.truth = base
        self.holder = KeyHolder.generate(openings=2 * CLIENTS, parameters="strong")
        self.evaluator = Evaluator.generate()
        if self.declared:
            declaration = self.evaluator.declare(self.holder.public, base, options=self.options)
            self.options = declaration.checked(self.holder.public, self.evaluator.public)
        elif self.options.encrypted_baseline:
            self.base = base.encrypt_baseline(self.holder.public, self.evaluator.public, options=self.options)

    def encrypt(self, own: Profile) -> None:
        keys, to = self.holder.public, self.evaluator.public
        label, signer = f"client {len(self.sent)}", ClientKey.generate()
        self.clients.append(signer)
        made = self.tally.spend(
            "client",
            lambda: (
                own.encrypt(keys, to, label=label, options=self.options, own=signer).to_document().to_bytes()
            ),
        )
        self.sent.append(made)

    def match(self, owners: list[Profile]) -> dict[str, Any]:
        """All files, through evaluator and key holder. The row of figures."""
        scores = self.tally.spend("evaluator", self._scores)
        found = self.tally.spend("holder", lambda: self._revealed(scores))
        told = [found[f"client {at}"] for at in range(len(owners))]
        truth = [divergence(own, self.truth) for own in owners]
        self.tally.add(told, truth, up=sum(map(len, self.sent)), between=len(scores))
        return self.tally.row()

    def _scores(self) -> bytes:
        came = [Sealed.from_document(Document.from_bytes(one, "encrypted-profile")) for one in self.sent]
        return self.evaluator.match(self.holder.public, self.base, came).to_document().to_bytes()

    def _revealed(self, scores: bytes) -> dict[str, float]:
        came = Scores.from_document(Document.from_bytes(scores, "encrypted-scores"))
        clients = [one.public for one in self.clients]
        return dict(self.holder.reveal(came, self.evaluator.public, clients=clients).scores)


def main() -> None:
    rng = np.random.default_rng(0)
    base, *owners = (Profile(rng.normal(size=Q), rng.uniform(0.2, 4, Q)) for _ in range(CLIENTS + 1))
    ways = [
        Way("strong, encrypted baseline", Options(parameters="strong-encrypted")),
        Way("strong, declared baseline", Options(parameters="strong"), declared=True),
        Way("compact, declared baseline", Options(parameters="compact"), declared=True),
        Way("pads", Options()),
        Way("pads of 128 bits", Options(parameters="pads-128")),
        Way("pads, declared baseline", Options(), declared=True),
    ]
    for way in ways:
        way.begin(base)
    for own in owners:
        for way in ways:
            way.encrypt(own)
    found = pd.DataFrame([way.match(owners) for way in ways])
    print(found.to_string(index=False))
    keep("matching_files", found)


if __name__ == "__main__":
    main()
