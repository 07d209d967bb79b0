"""All audits of this package, one finding after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from securefl.dp import audit as auditing
from securefl.training.dpsgd_config import DPSGD

if TYPE_CHECKING:
    from securefl.training.canaries import Caught
    from securefl.training.kinks import Flipped

CLAIM: Final = DPSGD(
    clip_norm=1.3,
    noise_multiplier=1.0,
    sampling_rate=0.5,
    expected_batch=250,
    steps=3,
    optimizer="sgd",
    learning_rate=0.1,
)
"""Private training in which canaries show most: few steps, each with much of the data."""
_RUNS: Final = 300
_KINKS: Final = (64, 784)
"""Inputs of the dense layers on whose kinks records are put."""


def findings() -> Iterator[dict[str, Any]]:
    for mechanism in auditing.mechanisms():
        found = auditing.audit(mechanism)
        yield _row(found.name, 1e-5, found.claimed, found.lower, found.verdict, found.failed)
    # Opacus takes two seconds to import
    from securefl.training import canaries, kinks
    from securefl.training.beside_others import train_beside_another
    from securefl.training.dpsgd import train_privately

    trained = {
        "private training (DP-SGD)": train_privately,
        "private training beside others": train_beside_another,
    }
    for name, train in trained.items():
        for caught in canaries.audit(CLAIM, runs=_RUNS, train=train):
            yield _bounded(name, caught)
    for inputs in _KINKS:
        kink = f"kinks of {inputs} inputs"
        for name, train in trained.items():
            yield _bounded(f"{name}, {kink}", kinks.audit(CLAIM, delta=1e-3, inputs=inputs, train=train))
        yield _bounded(f"features, {kink}", kinks.audit_features(delta=1e-3, inputs=inputs))


def _bounded(name: str, found: Caught | Flipped) -> dict[str, Any]:
    verdict, failed = ("pass", ()) if found.passed else ("FAIL: epsilon", ("epsilon",))
    return _row(name, found.delta, found.claimed, found.lower, verdict, failed)


def _row(
    name: str, delta: float, claimed: float, lower: float, verdict: str, failed: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "name": name,
        "delta": delta,
        "claimed": claimed,
        "lower": min(lower, 1e6),  # JSON has no infinity
        "verdict": verdict,
        "failed": list(failed),
    }
