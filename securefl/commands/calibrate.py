"""The command `calibrate`: the Gaussian noise for an (epsilon, delta)."""

from __future__ import annotations

import json
from math import sqrt
from typing import TYPE_CHECKING

import click

from securefl.commands.printing import echo

if TYPE_CHECKING:
    from securefl.core.release import Adjacency
    from securefl.dp.calibration import Method


@click.command(
    epilog="Example:  securefl calibrate --epsilon 1 --delta 1e-5 --releases 100 --features 85 --bound 1"
)
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, required=True)
@click.option("--releases", type=int, default=1, show_default=True, help="Number of releases in all.")
@click.option("--sensitivity", type=float, help="L2 sensitivity of one release.")
@click.option(
    "--features", type=int, help="FedLog: m features (the first is always 1), with --bound or --unit-l2."
)
@click.option("--bound", type=float, help="FedLog: each of the other m - 1 features is clipped to +- this.")
@click.option("--unit-l2", is_flag=True, help="FedLog: the other m - 1 features are clipped to norm 1.")
@click.option(
    "--adjacency", type=click.Choice(["add-remove", "replace-one"]), default="add-remove", show_default=True
)
@click.option(
    "--method", type=click.Choice(["exact", "paper", "rdp", "pld"]), default="exact", show_default=True
)
@click.option("--records", type=int, default=0, help="With n records, a delta of 1 / n or more is refused.")
@click.option("--force", is_flag=True, help="Allow a delta of 1 / n or more.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
def calibrate(
    epsilon: float,
    delta: float,
    releases: int,
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
    """Compute the Gaussian noise that makes a number of releases (epsilon, delta)-private.

    Prints sigma, sigma over the sensitivity (the noise multiplier), and the true epsilon of the noise in
    FedLog's Theorem 4.
    """
    from securefl.dp import calibration

    one = _sensitivity(sensitivity, features, bound, unit_l2, adjacency)
    calibration.check_delta(delta, records, force=force)
    sigma = calibration.sigma(epsilon, delta, releases=releases, sensitivity=one, method=method)
    paper = calibration.paper_sigma(epsilon, delta, releases=releases, sensitivity=one)
    found = {
        "sigma": sigma,
        "noise_multiplier": sigma / one,
        "epsilon_if_paper": calibration.epsilon_of(paper, delta, releases=releases, sensitivity=one),
    }
    if as_json:
        click.echo(json.dumps(found))
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
            "Expected --sensitivity, or --features (at least 2) with --bound, or --unit-l2, got others. "
            "Give one of the three."
        )
    # The m - 1 clipped features together have a norm of at most bound * sqrt(m - 1).
    return calibration.sensitivity(adjacency, bound * sqrt(features - 1))
