"""The command `calibrate`: the noise for an (epsilon, delta), and back, for Gaussians and for DP-SGD."""

from __future__ import annotations

import json
from math import sqrt
from typing import TYPE_CHECKING, Any

import click

from securefl.commands.choices import with_json
from securefl.commands.printing import echo, echo_json

if TYPE_CHECKING:
    from securefl.core.release import Adjacency
    from securefl.dp.calibration import Method


@click.command(
    epilog="""\b
Example:  securefl calibrate --epsilon 2 --delta 1e-5 --batch 50 --records 1000 --epochs 1 --rounds 20
And back: securefl calibrate --noise-multiplier 1.2 --delta 1e-5 --sampling-rate 0.05 --steps 30 --rounds 20
FedLog:   securefl calibrate --epsilon 1 --delta 1e-5 --releases 100 --features 85 --bound 1"""
)
@click.option("--epsilon", type=float, help="The target: prints the noise.")
@click.option("--noise-multiplier", type=float, help="The noise over the sensitivity: prints the epsilon.")
@click.option("--delta", type=float, required=True, help="The delta beside the epsilon.")
@click.option("--releases", type=int, default=1, show_default=True, help="Number of releases in all.")
@click.option("--sensitivity", type=float, help="L2 sensitivity of one release.")
@click.option(
    "--features", type=int, help="FedLog: m features (the first is always 1), with --bound or --unit-l2."
)
@click.option("--bound", type=float, help="FedLog: each of the other m - 1 features is clipped to +- this.")
@click.option("--unit-l2", is_flag=True, help="FedLog: the other m - 1 features are clipped to norm 1.")
@click.option(
    "--adjacency",
    type=click.Choice(["add-remove", "replace-one"]),
    default="add-remove",
    show_default=True,
    help="What neighbouring data differ in.",
)
@click.option(
    "--method",
    type=click.Choice(["exact", "paper"]),
    default="exact",
    show_default=True,
    help="How it is calibrated: exactly, or by FedLog's theorem.",
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
@click.option(
    "--rounds", type=int, default=1, show_default=True, help="DP-SGD: rounds that a client trains in."
)
@click.option("--force", is_flag=True, help="Allow a delta of 1 / n or more.")
@with_json()
@click.pass_context
def calibrate(
    context: click.Context,
    /,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    releases: int,
    records: int,
    sampling_rate: float | None,
    batch: float | None,
    steps: int | None,
    epochs: float | None,
    rounds: int,
    force: bool,
    as_json: bool,
    **gaussian: Any,
) -> None:
    """Compute the noise that makes releases, or DP-SGD's steps, (epsilon, delta)-private, or the epsilon of
    a noise.

    For Gaussian releases it prints sigma, sigma over the sensitivity (the noise multiplier), and the true
    epsilon of the noise in FedLog's Theorem 4. With --sampling-rate, or --batch and --records, it is for
    DP-SGD: `noise_multiplier` of [dpsgd], for a client that trains in every round. Sampling of clients
    amplifies nothing.
    """
    from securefl.dp import calibration

    _require_one(
        epsilon,
        noise_multiplier,
        "--epsilon for the noise, or --noise-multiplier for its epsilon",
        ". Give one.",
    )
    training = (sampling_rate, batch, steps, epochs)
    if any(given is not None for given in training) or _given(context, "rounds"):
        _refuse_gaussian(context)
        rate, steps = _schedule(sampling_rate, batch, records, steps, epochs, rounds)
        calibration.check_delta(delta, records, force=force)
        found = _of_training(rate, steps, rounds, delta, epsilon, noise_multiplier)
        click.echo(json.dumps(found) if as_json else "\n".join(_told(found)))
        return
    _of_gaussians(
        epsilon, noise_multiplier, delta, releases, records=records, force=force, as_json=as_json, **gaussian
    )


def _given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _refuse_gaussian(context: click.Context) -> None:
    for name in ("releases", "sensitivity", "features", "bound", "unit_l2", "adjacency", "method"):
        if _given(context, name):
            raise click.UsageError(
                f"Expected no --{name.replace('_', '-')} for DP-SGD, which has a sampling rate and "
                "steps: its sensitivity is the clipping norm, its adjacency add-remove. Leave it out."
            )


def _require_one(first: object, second: object, expected: str, advice: str) -> None:
    """Raises UsageError unless exactly one of the two is given."""
    if (first is None) == (second is None):
        got = "neither" if first is None else "both"
        raise click.UsageError(f"Expected {expected}, got {got}{advice}")


def _schedule(
    rate: float | None,
    batch: float | None,
    records: int,
    steps: int | None,
    epochs: float | None,
    rounds: int,
) -> tuple[float, int]:
    """DP-SGD's public schedule: the sampling rate, and the steps of a round."""
    _require_one(rate, batch, "--sampling-rate, or --batch with --records, for DP-SGD", ". Give one of them.")
    if batch is not None:
        if not 0 < batch <= records:
            raise click.UsageError(
                f"Expected --batch above 0 with --records of at least as many, got {batch:g} of {records}. "
                "The sampling rate is batch / records, both public numbers of one client."
            )
        rate = batch / records
    assert rate is not None
    _require_one(
        steps, epochs, "--steps of a round, or --epochs", ": the noise follows from a schedule. Give one."
    )
    if epochs is not None:
        if not 0 < epochs < float("inf") or not rate > 0:
            raise click.UsageError(f"Expected finite --epochs > 0, got {epochs:g}.")
        steps = max(1, round(epochs / rate))
    assert steps is not None
    if rounds < 1:
        raise click.UsageError(f"Expected --rounds >= 1, got {rounds}.")
    return rate, steps


def _of_training(
    rate: float, steps: int, rounds: int, delta: float, epsilon: float | None, noise_multiplier: float | None
) -> dict[str, Any]:
    from securefl.accounting.figures import plain
    from securefl.dp import calibration

    multiplier = noise_multiplier
    if multiplier is None:
        assert epsilon is not None
        multiplier = calibration.training_noise(epsilon, delta, sampling_rate=rate, steps=steps * rounds)
    by_round = {
        number: calibration.training_epsilon(multiplier, delta, sampling_rate=rate, steps=steps * number)
        for number in sorted({1, max(1, rounds // 2), rounds})
    }
    return {
        "noise_multiplier": multiplier,
        "epsilon": plain(by_round[rounds]),
        "delta": delta,
        "sampling_rate": rate,
        "steps": steps,
        "rounds": rounds,
        "epsilon_by_round": {str(number): plain(value) for number, value in by_round.items()},
    }


def _told(found: dict[str, Any]) -> list[str]:
    rate, steps, rounds = found["sampling_rate"], found["steps"], found["rounds"]
    by_round = ", ".join(
        f"{float(value):.4g} after round {n}" for n, value in found["epsilon_by_round"].items()
    )
    return [
        f"noise multiplier {found['noise_multiplier']:.5g}  (epsilon {float(found['epsilon']):.4f} at delta "
        f"{found['delta']:g}, per record added or removed)",
        f"{steps * rounds:,} steps at sampling rate {rate:g}: {steps} in each of {rounds} "
        f"round{'' if rounds == 1 else 's'}; epsilon {by_round}",
        f"[dpsgd] sampling_rate = {rate:g}, steps = {steps}, and noise_multiplier = "
        f"{found['noise_multiplier']:.5g} or the epsilon that it may cost",
    ]


def _of_gaussians(
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float,
    releases: int,
    *,
    sensitivity: float | None,
    features: int | None,
    bound: float | None,
    unit_l2: bool,
    adjacency: Adjacency,
    method: Method,
    records: int,
    force: bool,
    as_json: bool,
) -> None:
    from securefl.accounting.figures import plain
    from securefl.dp import calibration

    if noise_multiplier is not None and sensitivity is None and features is None and not unit_l2:
        sensitivity = 1.0
    one = _sensitivity(sensitivity, features, bound, unit_l2, adjacency)
    calibration.check_delta(delta, records, force=force)
    if epsilon is None:
        assert noise_multiplier is not None
        if not 0 < noise_multiplier < float("inf") or releases < 1:
            raise click.UsageError(
                f"Expected a finite --noise-multiplier > 0 and --releases >= 1, got {noise_multiplier} and "
                f"{releases}."
            )
        spent = calibration.epsilon_of(noise_multiplier, delta, releases=releases, sensitivity=1.0)
        if as_json:
            echo_json({"epsilon": plain(spent), "noise_multiplier": noise_multiplier})
            return
        echo(f"epsilon {spent:.6f} at delta {delta:g}  (sigma {noise_multiplier * one:.6f})")
        return
    sigma = calibration.sigma(epsilon, delta, releases=releases, sensitivity=one, method=method)
    paper = calibration.paper_sigma(epsilon, delta, releases=releases, sensitivity=one)
    found = {
        "sigma": sigma,
        "noise_multiplier": sigma / one,
        "epsilon_if_paper": calibration.epsilon_of(paper, delta, releases=releases, sensitivity=one),
    }
    if as_json:
        echo_json(found)
        return
    echo(f"sigma {sigma:.6f}  (noise multiplier {sigma / one:.6f}, sensitivity {one:.6f})")
    echo(f"FedLog's Theorem 4 would take {paper:.6f}, which is epsilon {found['epsilon_if_paper']:.6f}")


def _sensitivity(
    sensitivity: float | None, features: int | None, bound: float | None, unit_l2: bool, adjacency: Adjacency
) -> float:
    from securefl.dp import calibration

    if sensitivity is not None:
        if features is not None or bound is not None or unit_l2:
            raise click.UsageError(
                "Expected --sensitivity alone, or --features with --bound or --unit-l2, got two. Give one."
            )
        return sensitivity
    if unit_l2 and bound is None:
        return calibration.sensitivity(adjacency, 1.0)
    if features is None or bound is None or unit_l2 or features < 2:
        raise click.UsageError(
            "Expected --sensitivity, or --features (at least 2) with --bound, or --unit-l2, got none of "
            "them whole. "
            "Give one of the three. For DP-SGD give --sampling-rate and --steps."
        )
    # The m - 1 clipped features together have a norm of at most bound * sqrt(m - 1).
    return calibration.sensitivity(adjacency, bound * sqrt(features - 1))
