"""Verdicts of the audit where its figures are degenerate. What it catches is in tests/statistical."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent
from support.every import every

from securefl.core.keys import SecretKey
from securefl.dp.auditing import Audited, audit, proved
from securefl.dp.gaussian import rounded
from securefl.dp.noise import Source

WIDTH = 3000
"""Ten releases have enough coordinates for the tests of the noise."""


def audited(moved: int, noise: bool) -> Any:
    """A mechanism whose odd record moves one sum, with or without its noise of deviation 1,000."""

    def sums(records: np.ndarray) -> np.ndarray:
        total = np.zeros(WIDTH, np.int64)
        total[0] = moved * len(records)
        return total

    def release(records: np.ndarray, source: Source) -> np.ndarray:
        return sums(records) + (rounded(WIDTH, 1000.0, source) if noise else 0)

    own = Audited(
        name="own", sums=sums, release=release, sigma=1000.0, sensitivity=1000.0, event=GaussianDpEvent(1.0),
        records=np.zeros((4, 1)), odd=[np.ones(1)],
    )  # fmt: skip
    keys = iter(range(1, 1000))
    found = audit(own, samples=30, source=lambda: Source(SecretKey(next(keys).to_bytes(32, "big"))))
    return found.bound.lower, found.verdict


def test_a_record_that_moves_nothing_proves_nothing() -> None:
    assert audited(0, noise=True) == (0.0, "pass")


def test_a_release_without_noise_proves_an_infinite_epsilon() -> None:
    lower, verdict = audited(1000, noise=False)
    assert lower == math.inf
    assert verdict == "FAIL: variance of the noise, law of the noise, independence, epsilon"


@every("moved", [0.0, -5.0])
def test_samples_that_are_not_apart_prove_nothing(moved: float) -> None:
    null = np.random.default_rng(1).normal(size=500)
    assert proved(null, null + moved, 1e-5) == 0.0
    assert proved(null, null + 3.0, 1e-5) > 1.0
