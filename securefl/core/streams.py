"""Random streams for selection and training. Privacy noise must never come from them.

In one process they follow from a study's public seed, so that published results reproduce. A client on a
machine of its own draws from its own secret and the session: otherwise two sessions over the same records
would have the same updates, and their sums over two cohorts would differ by one client's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np


def stream(seed: int, *labels: str | int) -> np.random.Generator:
    """Return an independent generator for the name `(seed, *labels)`, such as `(7, "selection", 12)`.

    The same name gives the same stream in every process and on every machine. So a run that resumes at round
    r draws the same numbers as an uninterrupted run.
    """
    # The separator makes ("a", "bc") differ from ("ab", "c"). SHA-256, because Python's own hash of a text
    # differs between processes.
    name = "\x1f".join(str(part) for part in (seed, *labels))
    return _generator(hashlib.sha256(name.encode()).digest())


def client_stream(seed: int, number: int, client: int, ask: int = 0) -> np.random.Generator:
    """Return a client's own stream for query `ask` of round `number`."""
    # The name of a round's first query has no number, so that published results reproduce.
    return stream(seed, "client", number, client, *([ask] if ask else []))


def own_stream(
    draws: Callable[[bytes], bytes], number: int, client: int, ask: int = 0
) -> np.random.Generator:
    """Return the same from draws of the client's own, in one session (`Identity.training`)."""
    return _generator(draws(f"{number}|{client}|{ask}".encode()))


def public_seed(seed: int, *labels: str | int) -> int:
    """Return a 63-bit integer seed for a name, for libraries that want a number."""
    return int(stream(seed, *labels).integers(2**63 - 1))


def _generator(name: bytes) -> np.random.Generator:
    words = np.frombuffer(name, dtype="<u4")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
