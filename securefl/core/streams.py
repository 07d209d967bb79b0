"""Reproducible random streams for experiments. Privacy must never depend on them."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *labels: str | int) -> np.random.Generator:
    """An independent generator named by `(seed, *labels)`, such as `(7, "selection", 12)`.

    The same name gives the same stream in every process and on every machine. So a run that resumes at round
    r draws what the uninterrupted run would have drawn.
    """
    # A separator keeps ("a", "bc") apart from ("ab", "c"). Python's own hash of a text differs between
    # processes.
    name = "\x1f".join(str(part) for part in (seed, *labels))
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def client_stream(seed: int, number: int, client: int, ask: int = 0) -> np.random.Generator:
    """A client's own stream for one Ask of a round: `number` is the round's, `ask` the Ask's within it."""
    # The first Ask of a round keeps the name that it had when a round asked once.
    return stream(seed, "client", number, client, *([ask] if ask else []))


def public_seed(seed: int, *labels: str | int) -> int:
    """A 63-bit integer seed named like a stream, for libraries that want a number."""
    return int(stream(seed, *labels).integers(2**63 - 1))
