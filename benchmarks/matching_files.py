"""Matching between files, under ciphertexts and under pads, in one interleaved run.

    python benchmarks/matching_files.py [--write]

Prints, per way, the processor milliseconds per client of client, evaluator and key holder, from file to file:
reading, checking and writing are part of it. Then the bytes of a client's file and of the scores per client,
and the largest error. `--write` keeps the figures in benchmarks/results/matching_files.json.

The ways take turns, a client each. Keys, and the ledger of the key holder, are not counted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any, Final

import numpy as np

from securefl.matching import ClientKey, Evaluator, KeyHolder, Options, Profile, Scores, Sealed, divergence
from securefl.matching.document import Document
from securefl.storage import files

Q, CLIENTS = 84, 100
ROLES: Final = ("client", "evaluator", "holder")


@dataclass
class Way:
    """One way to match between files, with what it took so far. declared: whether the baseline is."""

    name: str
    options: Options
    declared: bool = False
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROLES, 0.0))
    sent: list[bytes] = field(default_factory=list)
    clients: list[ClientKey] = field(default_factory=list)

    def spend(self, role: str, work: Callable[[], Any]) -> Any:
        began = process_time()
        done = work()
        self.seconds[role] += process_time() - began
        return done

    def begin(self, base: Profile) -> None:
        self.base: Profile | Sealed = base
        self.truth = base.plain
        self.holder = KeyHolder.generate(openings=2 * CLIENTS)
        self.evaluator = Evaluator.generate()
        if self.declared:
            declaration = self.evaluator.declare(self.holder.public, base, options=self.options)
            self.options = declaration.checked(self.holder.public, self.evaluator.public)
        elif self.options.encrypted_baseline:
            self.base = base.encrypt_baseline(self.holder.public, self.evaluator.public)

    def encrypt(self, own: Profile) -> None:
        keys, to = self.holder.public, self.evaluator.public
        label, signer = f"client {len(self.sent)}", ClientKey.generate()
        self.clients.append(signer)
        made = self.spend(
            "client",
            lambda: (
                own.encrypt(keys, to, label=label, options=self.options, own=signer).to_document().to_bytes()
            ),
        )
        self.sent.append(made)

    def match(self, owners: list[Profile]) -> dict[str, float | str]:
        """All files, through evaluator and key holder. The row of figures."""
        scores = self.spend("evaluator", self._scores)
        found = self.spend("holder", lambda: self._revealed(scores))
        truth = [divergence(own.plain, self.truth) for own in owners]
        errors = [abs(found[f"client {at}"] - one) for at, one in enumerate(truth)]
        ms = {role: 1e3 * spent / len(owners) for role, spent in self.seconds.items()}
        return {
            "way": self.name,
            **{role: round(one, 3) for role, one in ms.items()},
            "total": round(sum(ms.values()), 3),
            "up": round(sum(map(len, self.sent)) / len(owners)),
            "between": round(len(scores) / len(owners)),
            "error": float(f"{max(errors):.1e}"),
        }

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
    rows = [way.match(owners) for way in ways]
    names = (*ROLES, "total", "up", "between", "error")
    print(f"{'':28}" + "".join(f"{name:>10}" for name in names))
    for row in rows:
        print(f"{row['way']:28}" + "".join(f"{row[name]:>10}" for name in names))
    if "--write" in sys.argv:
        path = Path(__file__).parent / "results" / "matching_files.json"
        kept = {"command": "python benchmarks/matching_files.py --write", "q": Q, "clients": CLIENTS}
        files.write(path, json.dumps({**kept, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
