"""Runs put through what happens to long ones: kills, damage, full disks, second processes, 2,000 rounds.

    python benchmarks/endurance.py kills --kills 200
    python benchmarks/endurance.py flips --flips 3000
    python benchmarks/endurance.py disk | pairs | long

Each prints what it found, as JSON with --json, and ends with exit code 1 where anything did not hold.
Kills and flips follow from --seed.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
from trials import disk as filling
from trials import flips as flipping
from trials import kills as killing  # first: it seeds what securefl draws
from trials import long as lasting
from trials import pairs as pairing
from trials.cases import CASES
from trials.victim import prepare

Found = TypeVar("Found")
Command = Callable[..., Any]


@click.group()
def cli() -> None:
    """What a run survives, and how it says so."""


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")


def common(command: Command) -> Command:
    """The options that every trial has."""
    for option in (
        click.option("--seed", default=1, show_default=True, help="Of when and where it strikes."),
        click.option("--workers", default=2, show_default=True, help="Trials side by side."),
        as_json_option,
    ):
        command = option(command)
    return command


def shown(found: Iterable[Found], total: int, of: Callable[[Found], int] = lambda _: 1) -> Iterator[Found]:
    """Let results through under a progress bar on a terminal."""
    with click.progressbar(length=total, file=sys.stderr) as bar:
        for one in found:
            bar.update(of(one))
            yield one


def end(found: dict[str, Any], as_json: bool) -> None:
    """Print what was found; exit code 1 where `failures` is not empty."""
    if as_json:
        click.echo(json.dumps(found, indent=1))
    else:
        for name, value in found.items():
            if name != "failures":
                click.echo(f"{name}: {value}")
        for failure in found["failures"]:
            click.echo(f"FAILED  {failure}")
    if found["failures"]:
        raise SystemExit(1)


@cli.command()
@click.option("--kills", default=200, show_default=True, help="Processes to kill.")
@click.option("--case", "cases", multiple=True, type=click.Choice(list(CASES)), help="Default: all.")
@click.option("--trial", type=int, help="Play only the trial of this number again.")
@common
def kills(
    kills: int, cases: tuple[str, ...], trial: int | None, seed: int, workers: int, as_json: bool
) -> None:
    """kill -9 at random SQL statements and times; then every round once, and the uninterrupted run's end."""
    names = cases or tuple(CASES)
    if trial is None:
        trials = killing.trials(kills, seed, names, workers)
        results = list(shown(trials, kills, lambda result: len(result.kills)))
    else:
        results = [killing.one(trial, seed, names)]
    by_case = Counter[str]()
    for result in results:
        by_case[result.case] += len(result.kills)
    found = {
        "kills": sum(by_case.values()),
        "by_case": dict(by_case),
        "at_statements": sum(kill.startswith("statement") for result in results for kill in result.kills),
        "failures": [asdict(result) for result in results if result.wrong],
    }
    end(found, as_json)


@cli.command()
@click.option("--flips", default=3000, show_default=True, help="Bits to flip, each in a fresh copy.")
@click.option("--base", "bases", multiple=True, type=click.Choice(flipping.BASES), help="Default: all.")
@common
def flips(flips: int, bases: tuple[str, ...], seed: int, workers: int, as_json: bool) -> None:
    """Flip one bit in a database; then the same result or a refusal, and no epsilon below the true one."""
    results = list(shown(flipping.flips(flips, seed, bases or flipping.BASES, workers), flips))
    files = sorted({f"{result.base}: {Path(result.file).name}" for result in results})
    end(
        {
            "flips": len(results),
            "verdicts": dict(Counter(result.verdict for result in results)),
            "by_file": {
                file: dict(Counter(r.verdict for r in results if file == f"{r.base}: {Path(r.file).name}"))
                for file in files
            },
            "failures": [asdict(result) for result in flipping.failures(results)],
        },
        as_json,
    )


@cli.command()
@as_json_option
def disk(as_json: bool) -> None:
    """Full and read-only disks; then one sentence, and with space the uninterrupted run's end. Needs root."""
    if not filling.mountable():
        click.echo("Skipped: this process may not mount a disk; run it as root.", err=True)
        return
    results = list(shown(filling.trials(), filling.COUNT))
    end(
        {
            "trials": len(results),
            "ended": [f"{result.case}, {result.disk}: {result.told}" for result in results],
            "failures": [asdict(result) for result in results if result.wrong],
        },
        as_json,
    )


@cli.command()
@click.option("--pairs", default=16, show_default=True, help="Pairs of processes on one folder each.")
@as_json_option
def pairs(pairs: int, as_json: bool) -> None:
    """Two processes at once on one folder; then one is sent away, and nothing is charged twice."""
    results = list(shown(pairing.trials(pairs), pairs))
    by_case = Counter(result.case for result in results)
    failures = [asdict(result) for result in results if result.wrong]
    end({"pairs": len(results), "by_case": dict(by_case), "failures": failures}, as_json)


@cli.command()
@click.option("--rounds", default=2000, show_default=True, help="At least 200.", type=click.IntRange(min=200))
@click.option(
    "--case",
    default="central",
    show_default=True,
    type=click.Choice([name for name, case in CASES.items() if not case.swept]),
)
@as_json_option
def long(rounds: int, case: str, as_json: bool) -> None:
    """Memory and time of the first and the last hundred rounds of a small study."""
    end({"case": case, **asdict(lasting.figures(CASES[case], rounds)), "failures": []}, as_json)


if __name__ == "__main__":
    prepare()
    cli()
