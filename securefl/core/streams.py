"""Reproducible random streams for experiments. Privacy noise must never come from them."""

from __future__ import annotations

import hashlib

import numpy as np


def stream(seed: int, *labels: str | int) -> np.random.Generator:
    """Return an independent generator for the name `(seed, *labels)`, such as `(7, "selection", 12)`.

    The same name gives the same stream in every process and on every machine. So a run that resumes at round
    r draws the same numbers as an uninterrupted run.
    """
    # The separator makes ("a", "bc") differ from ("ab", "c"). SHA-256, because Python's own hash of a text
    # differs between processes.
    name = "\x1f".join(str(part) for part in (seed, *labels))
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def client_stream(seed: int, number: int, client: int, ask: int = 0) -> np.random.Generator:
    """Return a client's own stream for query `ask` of round `number`."""
    # The name of a round's first query has no number, so that published results reproduce.
    return stream(seed, "client", number, client, *([ask] if ask else []))


def public_seed(seed: int, *labels: str | int) -> int:
    """Return a 63-bit integer seed for a name, for libraries that want a number."""
    return int(stream(seed, *labels).integers(2**63 - 1))
