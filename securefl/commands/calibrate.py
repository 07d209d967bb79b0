"""The command `calibrate`: the noise for an (epsilon, delta), and back, for Gaussians and for DP-SGD."""

from __future__ import annotations

from math import inf
from typing import Any

import click

from securefl.commands.choices import with_json
from securefl.commands.printing import echo, echo_json

Found = tuple[dict[str, Any], tuple[str, ...]]
"""What is printed: as JSON, by `plain`, and in lines."""


@click.command(
    epilog="""\b
Example:  securefl calibrate --epsilon 2 --delta 1e-5 --batch 50 --records 1000 --epochs 1 --rounds 20
And back: securefl calibrate --noise-multiplier 1.2 --delta 1e-5 --sampling-rate 0.05 --steps 30 --rounds 20
FedLog:   securefl calibrate --epsilon 1 --delta 1e-5 --releases 100 --sensitivity 9.22"""
)
@click.option("--epsilon", type=float, help="The target: prints the noise.")
@click.option("--noise-multiplier", type=float, help="The noise over the sensitivity: prints the epsilon.")
@click.option("--delta", type=float, required=True, help="The delta beside the epsilon.")
@click.option("--releases", type=click.IntRange(1), help="Number of releases in all; default 1.")
@click.option(
    "--sensitivity",
    type=float,
    help="L2 sensitivity of one release; default 1. For FedLog, sqrt(m) for m features from -1 to 1 if a "
    "record is added or removed.",
)
@click.option(
    "--records",
    type=int,
    default=0,
    help="Of one client. With n records, a delta of 1 / n or more is refused.",
)
@click.option("--sampling-rate", type=float, help="DP-SGD: the probability of a record in a step.")
@click.option("--batch", type=float, help="DP-SGD: the expected batch; with --records it gives the rate.")
@click.option("--steps", type=int, help="DP-SGD: steps in a round.")
@click.option("--epochs", type=float, help="DP-SGD: passes over the records in a round, in place of --steps.")
@click.option("--rounds", type=click.IntRange(1), help="DP-SGD: rounds that a client trains in; default 1.")
@with_json()
def calibrate(
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    releases: int | None,
    sensitivity: float | None,
    as_json: bool,
    **training: Any,
) -> None:
    """Compute the noise that makes releases, or DP-SGD's steps, (epsilon, delta)-private, or the epsilon of
    a noise.

    For Gaussian releases it prints sigma, sigma over the sensitivity (the noise multiplier), and the true
    epsilon of the noise in FedLog's Theorem 4. With --sampling-rate, or --batch and --records, it is for
    DP-SGD: `noise_multiplier` of [dpsgd], for a client that trains in every round. Sampling of clients
    amplifies nothing.
    """
    from securefl.accounting.figures import plain
    from securefl.dp import calibration

    _require_one(
        epsilon,
        noise_multiplier,
        "--epsilon for the noise, or --noise-multiplier for its epsilon",
        ". Give one.",
    )
    if noise_multiplier is not None and not 0 < noise_multiplier < inf:
        raise click.UsageError(f"Expected a finite --noise-multiplier > 0, got {noise_multiplier}.")
    records = training.pop("records")
    calibration.check_delta(delta, records)
    one = 1.0 if sensitivity is None else sensitivity
    if not 0 < one < inf:
        raise click.UsageError(f"Expected a finite --sensitivity > 0, got {sensitivity}.")
    if all(given is None for given in training.values()):
        found, lines = _of_gaussians(epsilon, noise_multiplier, delta, releases or 1, one)
    elif releases is None and sensitivity is None:
        found, lines = _of_training(epsilon, noise_multiplier, delta, *_schedule(records=records, **training))
    else:
        raise click.UsageError(
            "Expected no --releases and no --sensitivity for DP-SGD, which has a sampling rate and steps: "
            "its sensitivity is the clipping norm, its adjacency add-remove. Leave them out."
        )
    if as_json:
        echo_json(plain(found))
    else:
        echo("\n".join(lines))


def _require_one(first: object, second: object, expected: str, advice: str) -> None:
    """Raises UsageError unless exactly one of the two is given."""
    if (first is None) == (second is None):
        got = "neither" if first is None else "both"
        raise click.UsageError(f"Expected {expected}, got {got}{advice}")


def _schedule(
    *,
    sampling_rate: float | None,
    batch: float | None,
    records: int,
    steps: int | None,
    epochs: float | None,
    rounds: int | None,
) -> tuple[float, int, int]:
    """DP-SGD's public schedule: the sampling rate, the steps of a round, and the rounds."""
    _require_one(
        sampling_rate, batch, "--sampling-rate, or --batch with --records, for DP-SGD", ". Give one of them."
    )
    _require_one(
        steps, epochs, "--steps of a round, or --epochs", ": the noise follows from a schedule. Give one."
    )
    if batch is not None and not 0 < batch <= records:
        raise click.UsageError(
            f"Expected --batch above 0 with --records of at least as many, got {batch:g} of {records}. "
            "The sampling rate is batch / records, both public numbers of one client."
        )
    rate = (sampling_rate or 0.0) if batch is None else batch / records
    if epochs is not None:
        if not 0 < epochs < inf or not rate > 0:
            raise click.UsageError(f"Expected finite --epochs > 0, got {epochs:g}.")
        steps = max(1, round(epochs / rate))
    return rate, steps or 0, rounds or 1


def _of_training(
    epsilon: float | None, noise_multiplier: float | None, delta: float, rate: float, steps: int, rounds: int
) -> Found:
    from securefl.accounting.figures import counted
    from securefl.dp import calibration

    noise = noise_multiplier or calibration.training_noise(
        epsilon or 0.0, delta, sampling_rate=rate, steps=steps * rounds
    )
    by_round = {
        number: calibration.training_epsilon(noise, delta, sampling_rate=rate, steps=steps * number)
        for number in sorted({1, max(1, rounds // 2), rounds})
    }
    told = ", ".join(f"{value:.4g} after round {n}" for n, value in by_round.items())
    found = {
        "noise_multiplier": noise,
        "epsilon": by_round[rounds],
        "delta": delta,
        "sampling_rate": rate,
        "steps": steps,
        "rounds": rounds,
        "epsilon_by_round": by_round,
    }
    return found, (
        f"noise multiplier {noise:.5g}  (epsilon {by_round[rounds]:.4f} at delta {delta:g}, per record added "
        "or removed)",
        f"{steps * rounds:,} steps at sampling rate {rate:g}: {steps} in each of {counted(rounds, 'round')}; "
        f"epsilon {told}",
        f"[dpsgd] sampling_rate = {rate:g}, steps = {steps}, and noise_multiplier = {noise:.5g} or the "
        "epsilon that it may cost",
    )


def _of_gaussians(
    epsilon: float | None, noise_multiplier: float | None, delta: float, releases: int, sensitivity: float
) -> Found:
    from securefl.dp import calibration

    if noise_multiplier is not None:
        spent = calibration.epsilon_of(noise_multiplier, delta, releases=releases, sensitivity=1.0)
        line = f"epsilon {spent:.6f} at delta {delta:g}  (sigma {noise_multiplier * sensitivity:.6f})"
        return {"epsilon": spent, "noise_multiplier": noise_multiplier}, (line,)
    asked: dict[str, Any] = {"releases": releases, "sensitivity": sensitivity}
    sigma = calibration.sigma(epsilon or 0.0, delta, **asked)
    paper = calibration.paper_sigma(epsilon or 0.0, delta, **asked)
    theirs = calibration.epsilon_of(paper, delta, **asked)
    found = {"sigma": sigma, "noise_multiplier": sigma / sensitivity, "epsilon_if_paper": theirs}
    return found, (
        f"sigma {sigma:.6f}  (noise multiplier {sigma / sensitivity:.6f}, sensitivity {sensitivity:.6f})",
        f"FedLog's Theorem 4 would take {paper:.6f}, which is epsilon {theirs:.6f}",
    )
