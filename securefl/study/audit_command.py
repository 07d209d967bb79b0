"""The command `audit`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import click

from securefl.dp import audit as auditing
from securefl.training import single_thread
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
"""Private training where canaries have bite: few steps, each with much of the data."""
_RUNS: Final = 300
_KINKS: Final = (64, 784)
"""Numbers of inputs of dense layers on whose kinks records are put."""


@click.command(epilog="Example:  securefl audit --json")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
def audit(as_json: bool) -> None:
    """Try to catch every mechanism at giving away more than it claims (under a minute).

    For each: a search for records that move it more than its sensitivity, its noise against the claimed law,
    and a lower bound on epsilon by telling two neighbouring data sets apart; for private training (DP-SGD)
    canaries through the real optimiser, along the curve of its claim, and records on the kinks of ReLUs,
    which flip together where a record's gradient depends on its batch. Exit code 1 if one fails. An honest
    mechanism fails once in 10^5 runs.
    """
    single_thread()
    findings = []
    for found in _findings():
        findings.append(found)
        if not as_json:
            at = f"at delta {found['delta']:g}"
            click.echo(
                f"{found['name']:45} claimed epsilon {found['claimed']:7.4f} {at:15} "
                f"at least {found['lower']:7.4f}   {found['verdict']}"
            )
    if as_json:
        click.echo(json.dumps(findings, indent=1))
    if any(found["verdict"] != "pass" for found in findings):
        raise SystemExit(1)


def _findings() -> Iterator[dict[str, Any]]:
    for mechanism in auditing.mechanisms():
        found = auditing.audit(mechanism)
        yield _row(found.name, 1e-5, found.claimed, found.lower, found.verdict, found.failed)
    from securefl.training import canaries, kinks  # Opacus takes two seconds to import

    for caught in canaries.audit(CLAIM, runs=_RUNS):
        failed = () if caught.passed else ("epsilon",)
        verdict = "pass" if caught.passed else "FAIL: epsilon"
        yield _row("private training (DP-SGD)", caught.delta, caught.claimed, caught.lower, verdict, failed)
    for inputs in _KINKS:
        trained = kinks.audit(CLAIM, delta=1e-3, inputs=inputs)
        features = kinks.audit_features(delta=1e-3, inputs=inputs)
        for what, flipped in (("private training", trained), ("features", features)):
            failed = () if flipped.passed else ("epsilon",)
            verdict = "pass" if flipped.passed else "FAIL: epsilon"
            name = f"{what}, kinks of {inputs} inputs"
            yield _row(name, flipped.delta, flipped.claimed, flipped.lower, verdict, failed)


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
