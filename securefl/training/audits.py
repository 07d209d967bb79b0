"""All audits of this package, one finding after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch

from securefl.dp import audit as auditing
from securefl.training.devices import CPU
from securefl.training.dpsgd_config import DPSGD

Train = Callable[..., Any]
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
    for name, train in _trained(device).items():
        from securefl.training import canaries  # Opacus takes two seconds to import

        for caught in canaries.audit(CLAIM, runs=_RUNS, train=train, device=device):
            yield _bounded(f"{name} (DP-SGD){_on(device)}", caught)
    yield from of_kinks(device)


def of_kinks(device: torch.device = CPU) -> Iterator[dict[str, Any]]:
    """Records on the kinks of a model, which is on this device."""
    from securefl.training import kinks

    for inputs in _KINKS:
        kink = f"kinks of {inputs} inputs{_on(device)}"
        for name, train in _trained(device).items():
            found = kinks.audit(CLAIM, delta=1e-3, inputs=inputs, train=train, device=device)
            yield _bounded(f"{name}, {kink}", found)
        yield _bounded(f"features, {kink}", kinks.audit_features(delta=1e-3, inputs=inputs, device=device))


def _trained(device: torch.device) -> Mapping[str, Train]:
    """The ways of private training on this device. Clients stand side by side on a CPU alone."""
    from securefl.training.beside_others import train_beside_another
    from securefl.training.dpsgd import train_privately

    ways: dict[str, Train] = {"private training": train_privately}
    if device == CPU:
        ways["private training beside others"] = train_beside_another
    return ways


def _bounded(name: str, found: auditing.Bound) -> dict[str, Any]:
    verdict, failed = ("pass", ()) if found.passed else ("FAIL: epsilon", ("epsilon",))
    return _row(name, found.delta, found.claimed, found.lower, verdict, failed)


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
