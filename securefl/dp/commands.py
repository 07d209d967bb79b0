"""The commands `calibrate` and `ledger`."""

from __future__ import annotations

import json
from collections import Counter
from math import sqrt
from pathlib import Path
from typing import Any

import click
from dp_accounting import DpEvent

from securefl.accounting.composition import composable, compose, rdp_epsilon
from securefl.accounting.events import History, load_event
from securefl.accounting.figures import plain
from securefl.accounting.statement import statement
from securefl.dp import calibration
from securefl.dp.calibration import Method
from securefl.errors import DataError, UnsupportedEvent
from securefl.legible import escaped
from securefl.release import PARTIES, Adjacency
from securefl.texts import MOST_ELEMENTS, elements, read_text

LARGEST_REPEAT = 10**9
LARGEST_EVENTS = 2**24


@click.command(
    epilog="Example:  securefl calibrate --epsilon 1 --delta 1e-5 --releases 100 --features 85 --bound 1"
)
@click.option("--epsilon", type=float, required=True)
@click.option("--delta", type=float, required=True)
@click.option("--releases", type=int, default=1, show_default=True, help="Releases of the whole schedule.")
@click.option("--sensitivity", type=float, help="L2 sensitivity of one release.")
@click.option(
    "--features", type=int, help="FedLog: m features, the first always 1, with --bound or --unit-l2."
)
@click.option("--bound", type=float, help="FedLog: each of the m - 1 others is clipped to +- this.")
@click.option("--unit-l2", is_flag=True, help="FedLog: the m - 1 others are clipped to norm 1.")
@click.option(
    "--adjacency", type=click.Choice(["add-remove", "replace-one"]), default="add-remove", show_default=True
)
@click.option(
    "--method", type=click.Choice(["exact", "paper", "rdp", "pld"]), default="exact", show_default=True
)
@click.option("--records", type=int, default=0, help="n: a delta of at least 1 / n is then refused.")
@click.option("--force", is_flag=True, help="Allow such a delta all the same.")
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
    """How much Gaussian noise makes a schedule of releases (epsilon, delta)-private.

    Prints sigma, sigma over the sensitivity, and the epsilon that the noise of FedLog's Theorem 4 would
    really have.
    """
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
    click.echo(f"sigma {sigma:.6f}  (noise multiplier {sigma / one:.6f}, sensitivity {one:.6f})")
    click.echo(f"FedLog's Theorem 4 would take {paper:.6f}, which is epsilon {found['epsilon_if_paper']:.6f}")


def _sensitivity(
    sensitivity: float | None, features: int | None, bound: float | None, unit_l2: bool, adjacency: Adjacency
) -> float:
    if sensitivity is not None:
        if features is not None or bound is not None or unit_l2:
            raise click.UsageError("Give --sensitivity, or --features with --bound or --unit-l2.")
        return sensitivity
    if unit_l2 and bound is None:
        return calibration.sensitivity(adjacency, 1.0)
    if features is None or bound is None or unit_l2 or features < 2:
        raise click.UsageError("Give --sensitivity, or --features (at least 2) with --bound, or --unit-l2.")
    return calibration.sensitivity(adjacency, bound * sqrt(features - 1))


@click.group(epilog="Example:  securefl ledger show runs/demo/arms/fedavg-full/seed-7/ledger.sqlite")
def ledger() -> None:
    """Ledgers: what was released, and what it adds up to."""


@ledger.command(epilog="Example:  securefl ledger show ledger.sqlite --holder client-0003")
@click.argument("path", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--holder", help="One data holder only; epsilon after each release is per holder anyway.")
@click.option(
    "--party", type=click.Choice(list(PARTIES)), default="server", show_default=True, help="Against whom."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
def show(path: Path, holder: str | None, party: str, as_json: bool) -> None:
    """A table of releases: when, by whom, what, unit, event, epsilon after it; and the head of the ledger.

    The head is the last link of a chain over all releases, those of other holders too. A ledger that loses
    or changes anything has another head; note it elsewhere to see that.
    """
    found = statement(path, party=party, holder=holder)
    if as_json:
        parts = {"count": found.head.count, "head": found.head.digest.hex(), "releases": found.releases}
        click.echo(json.dumps(parts, indent=1))
        return
    if not found.releases:
        click.echo("No releases.")
        return
    names = ("at", "holder", "round", "name", "unit", "event", "state", "epsilon")
    shown = [[escaped(str(row[name])) for name in names] for row in found.releases]
    widths = [max(len(row[i]) for row in (list(names), *shown)) for i in range(len(names))]
    for row in (list(names), *shown):
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    click.echo(f"head after {found.head.count} entries: {found.head.digest.hex()}")


@ledger.command(epilog="Example:  securefl ledger epsilon --events events.json --delta 1e-5 --json")
@click.option("--events", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=True)
@click.option("--delta", type=float, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
def epsilon(events: Path, delta: float, as_json: bool) -> None:
    """Epsilon of a list of events in a JSON file, by loss distributions and by RDP.

    \b
    {"event": "gaussian", "noise_multiplier": z, "count": n}
    {"event": "poisson_gaussian", "sampling_probability": q, "noise_multiplier": z, "count": n}
    {"event": "non_private"}
    {"repeat": r, "events": [...]}
    """
    calibration.require_delta(delta)
    text = read_text(events, LARGEST_EVENTS)
    try:
        if elements(text.encode()) > MOST_ELEMENTS:
            raise ValueError
        listed = json.loads(text)
    except (ValueError, RecursionError):
        raise DataError(f"{events} is not JSON.") from None
    counted = Counter[DpEvent]()
    _count(listed, 1, counted)
    history = History.of(counted)
    found = {"epsilon": compose(counted, delta), "rdp_epsilon": rdp_epsilon(history, delta)}
    if history.steps and not history.endless and not composable(history, delta):
        click.echo(
            "Loss distributions cannot say what this costs (delta is too small, or epsilon too large to "
            "protect anything): epsilon is the bound by RDP.",
            err=True,
        )
    if as_json:
        click.echo(json.dumps({name: plain(value) for name, value in found.items()}))
    else:
        click.echo(f"epsilon {found['epsilon']:.6g} at delta {delta:g}; by RDP {found['rdp_epsilon']:.6g}")


def _count(listed: object, times: int, into: Counter[DpEvent]) -> None:
    if not isinstance(listed, list):
        raise DataError(f"Expected a list of events, got {type(listed).__name__}.")
    for entry in listed:
        match entry:
            case {"repeat": int(often), "events": inner, **rest} if (
                not rest and often is not True and 0 <= often <= LARGEST_REPEAT
            ):
                _count(inner, times * often, into)
            case {"event": _, **_rest}:
                event, often = _event(dict(entry))
                into[event] += times * often
            case _:
                raise DataError(f"Expected an event or a repeat, got {str(entry)[:80]}.")


def _event(entry: dict[str, Any]) -> tuple[DpEvent, int]:
    count = entry.pop("count", 1)
    if type(count) is not int or not 0 <= count <= LARGEST_REPEAT:
        raise DataError(f"Expected a count from 0 to {LARGEST_REPEAT:,}, got {count!r}.")
    numbers = {k: float(v) if type(v) in (int, float) else v for k, v in entry.items()}
    if numbers.get("event") == "poisson_gaussian":
        numbers["count"] = 1
    try:
        return load_event(numbers), count
    except UnsupportedEvent:
        raise DataError(f"Expected an event this version knows, got {str(entry)[:120]}.") from None
