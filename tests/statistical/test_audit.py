"""The audit passes every mechanism of the package, and catches each of them spoilt.

All noise is drawn from keys, one a release, so that what passes once passes again. Under fresh noise an
honest mechanism fails one of five checks once in 2 * 10^5 audits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from support.every import every

from securefl.core.keys import SecretKey
from securefl.dp import auditing, gaussian
from securefl.dp.auditing import Audited, Finding, mechanisms
from securefl.dp.noise import Source

NAMES = [mechanism.name for mechanism in mechanisms()]


def named(name: str) -> Audited:
    return next(mechanism for mechanism in mechanisms() if mechanism.name == name)


def audit(mechanism: Audited, samples: int = auditing.SAMPLES) -> Finding:
    numbers = count()
    return auditing.audit(
        mechanism, source=lambda: Source(SecretKey(next(numbers).to_bytes(32, "little"))), samples=samples
    )


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise enough for a defect to be seen: nine tenths of it are nine deviations away."""
    monkeypatch.setattr(auditing, "RESIDUALS", 5_000)


@pytest.mark.parametrize("name", NAMES)
def test_every_mechanism_passes_and_its_claim_is_tight(name: str) -> None:
    """The lower bound of 4,000 releases reaches 0.85 of the claim and more."""
    found = audit(named(name), samples=4000)
    assert found.verdict == "pass"
    assert 0.8 * found.bound.claimed < found.bound.lower <= found.bound.claimed


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_with_more_releases_more_of_the_claim_is_reached(name: str) -> None:
    """As many as the command takes."""
    found = audit(named(name))
    assert found.verdict == "pass"
    assert 0.88 * found.bound.claimed < found.bound.lower <= found.bound.claimed


def less_noise(mechanism: Audited) -> Audited:
    """0.9 times the noise, under the old claim."""

    def release(records: np.ndarray, source: Source) -> np.ndarray:
        sums = mechanism.sums(records)
        return sums + np.rint(0.9 * (mechanism.release(records, source) - sums)).astype(np.int64)

    return replace(mechanism, release=release)


def no_clip(mechanism: Audited) -> Audited:
    """Records enter as they are (but finite)."""

    def sums(records: np.ndarray) -> np.ndarray:
        kept = records[np.isfinite(records).all(axis=1)]
        return np.trunc(np.clip(kept, -1e6, 1e6) * mechanism.sensitivity).sum(axis=0).astype(np.int64)

    def release(records: np.ndarray, source: Source) -> np.ndarray:
        total = sums(records)
        return total + gaussian.rounded(len(total), mechanism.sigma, source)

    return replace(mechanism, sums=sums, release=release)


def nan_enters(mechanism: Audited) -> Audited:
    """A record that is not finite is counted as one of norm 2 instead of being rejected."""

    def sums(records: np.ndarray) -> np.ndarray:
        bad = ~np.isfinite(records).all(axis=1)
        total = mechanism.sums(records)
        total[0] += int(2 * mechanism.sensitivity) * int(bad.sum())
        return total

    def release(records: np.ndarray, source: Source) -> np.ndarray:
        total = sums(records)
        return total + gaussian.rounded(len(total), mechanism.sigma, source)

    return replace(mechanism, sums=sums, release=release)


def wrong_claim(mechanism: Audited) -> Audited:
    return replace(mechanism, event=GaussianDpEvent(2 * mechanism.event.noise_multiplier))


def heavy_tails(mechanism: Audited) -> Audited:
    """The right variance and another law: a mixture of a narrow and a wide Gaussian."""

    def release(records: np.ndarray, source: Source) -> np.ndarray:
        sums = mechanism.sums(records)
        wide = source.words(len(sums)) % np.uint64(4) == 0
        scale = np.where(wide, np.sqrt(2.5), np.sqrt(0.5))
        return sums + np.rint(scale * mechanism.sigma * source.normal(len(sums))).astype(np.int64)

    return replace(mechanism, release=release)


MUTATIONS: dict[str, tuple[Callable[[Audited], Audited], str]] = {
    "noise scaled by 0.9": (less_noise, "variance of the noise"),
    "a clip skipped": (no_clip, "sensitivity"),
    "a record that is not finite": (nan_enters, "sensitivity"),
    "another event than the noise": (wrong_claim, "claimed event"),
    "another law": (heavy_tails, "law of the noise"),
}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", NAMES)
def test_mutations_are_caught(name: str) -> None:
    found = {what: audit(spoil(named(name)), samples=100).failed for what, (spoil, _) in MUTATIONS.items()}
    assert not [what for what, (_, check) in MUTATIONS.items() if check not in found[what]]


@pytest.mark.usefixtures("few")
@every("name", NAMES)
def test_a_seed_that_is_used_again_is_caught(name: str) -> None:
    found = auditing.audit(named(name), source=lambda: Source(SecretKey(b"s" * 32)), samples=100)
    assert "independence" in found.failed


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("name", NAMES)
def test_too_small_a_claim_is_caught_by_attack_alone(name: str) -> None:
    """Without looking at its noise: the lower bound of two neighbours exceeds half the claim."""
    honest = named(name)
    small = replace(honest, event=GaussianDpEvent(honest.event.noise_multiplier * 2))
    assert "epsilon" in audit(small, samples=2000).failed
