"""All audits of this package, one finding after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from securefl.dp import audit as auditing
from securefl.training.devices import CPU
from securefl.training.dpsgd_config import DPSGD

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


def findings(device: torch.device = CPU) -> Iterator[dict[str, Any]]:
    """device: where private training and features are computed."""
    for mechanism in auditing.mechanisms():
        found = auditing.audit(mechanism)
        yield _row(found.name, 1e-5, found.claimed, found.lower, found.verdict, found.failed)
    from securefl.training import canaries  # Opacus takes two seconds to import

    for caught in canaries.audit(CLAIM, runs=_RUNS, device=device):
        failed = () if caught.passed else ("epsilon",)
        verdict = "pass" if caught.passed else "FAIL: epsilon"
        name = f"private training (DP-SGD){_on(device)}"
        yield _row(name, caught.delta, caught.claimed, caught.lower, verdict, failed)
    yield from of_kinks(device)


def of_kinks(device: torch.device = CPU) -> Iterator[dict[str, Any]]:
    """Records on the kinks of a model, which is on this device."""
    from securefl.training import kinks

    for inputs in _KINKS:
        trained = kinks.audit(CLAIM, delta=1e-3, inputs=inputs, device=device)
        features = kinks.audit_features(delta=1e-3, inputs=inputs, device=device)
        for what, flipped in (("private training", trained), ("features", features)):
            failed = () if flipped.passed else ("epsilon",)
            verdict = "pass" if flipped.passed else "FAIL: epsilon"
            name = f"{what}, kinks of {inputs} inputs{_on(device)}"
            yield _row(name, flipped.delta, flipped.claimed, flipped.lower, verdict, failed)


def _on(device: torch.device) -> str:
    return "" if device == CPU else f" on {device.type}"


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
