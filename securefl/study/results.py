"""From the records of finished arms to tables, sentences, plots and the report."""

from __future__ import annotations

import json
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from securefl.accounting.figures import in_words, plain
from securefl.card import learns
from securefl.core.release import PARTIES
from securefl.plan import Plan
from securefl.report import plots, run_page
from securefl.report.tables import write_csv, write_png
from securefl.rounds import Algorithm
from securefl.storage import files
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Arm, Study
from securefl.study.run import ArmRun, arm_folder

_VERSIONED = ("securefl", "numpy", "torch", "tenseal", "dp-accounting", "scikit-learn", "scipy", "pandas")
_FIGURES = ["arm", "seed", "round", "client", "quality", "figure", "value"]


@dataclass(frozen=True)
class Results:
    """Tidy tables of all arms and seeds, one row per observation.

    metrics: arm, seed, round, accuracy, loss, bytes_up, bytes_down, megabytes, seconds, watt_hours,
        wall_seconds, asked (exchanges), answered (clients), survivors_lost (of the selected, how many did not
        answer), and epsilon against each party.
    participation: arm, seed, client, quality, selected and answered (rounds; a client that is drawn
        twice takes part once), retired (whether its budget bore no further round at the end).
    figures: arm, seed, round, client, quality, figure, value: an algorithm's figures of its clients for the
        observer, such as their divergence. A client of unknown figure has no row.
    ledgers: for each arm and seed, the head of its ledger's chain after the last round.
    """

    metrics: pd.DataFrame
    participation: pd.DataFrame
    figures: pd.DataFrame
    summary: tuple[run_page.ArmSummary, ...]
    ledgers: tuple[run_page.LedgerRow, ...]


def collect(study: Study, runs: Sequence[ArmRun]) -> Results:
    """The tables of these runs."""
    metrics = pd.DataFrame([_metric(record) for run in runs for record in run.records])
    return Results(
        metrics,
        pd.DataFrame([row for run in runs for row in _participation(run)]),
        pd.DataFrame([row for run in runs for row in _figures(run)], columns=_FIGURES),
        tuple(_summary(study, name, metrics, runs) for name in dict.fromkeys(r.arm.name for r in runs)),
        tuple(_ledger(run) for run in runs),
    )


def _ledger(run: ArmRun) -> run_page.LedgerRow:
    noted = run.records[-1]["ledger"]
    return run_page.LedgerRow(arm=run.arm.name, seed=run.world.seed, count=noted["count"], head=noted["head"])


def _metric(record: dict[str, Any]) -> dict[str, Any]:
    plain = ("arm", "seed", "round", "accuracy", "loss", "bytes_up", "bytes_down", "seconds", "watt_hours")
    row = {name: record[name] for name in plain}
    row["megabytes"] = (record["bytes_up"] + record["bytes_down"]) / 1e6
    row["wall_seconds"] = record["wall_seconds"]
    row["asked"] = record["asked"]
    row["answered"] = sum(record["answered"])
    row["survivors_lost"] = int(np.count_nonzero(record["selected"])) - sum(record["answered"])
    return row | {f"epsilon_{party}": record["epsilon"][party] for party in PARTIES}


def _participation(run: ArmRun) -> list[dict[str, Any]]:
    # the sign, since a client that is drawn twice in a round takes part once
    selected = np.sum([np.sign(record["selected"]) for record in run.records], axis=0)
    answered = np.sum([record["answered"] for record in run.records], axis=0)
    return [
        {
            "arm": run.arm.name,
            "seed": run.world.seed,
            "client": k,
            "quality": quality,
            "selected": int(selected[k]),
            "answered": int(answered[k]),
            "retired": k in run.records[-1]["retired"],
        }
        for k, quality in enumerate(run.world.quality)
    ]


def _figures(run: ArmRun) -> list[dict[str, Any]]:
    return [
        {
            "arm": run.arm.name,
            "seed": run.world.seed,
            "round": record["round"],
            "client": k,
            "quality": quality,
            "figure": figure,
            "value": values[k],
        }
        for record in run.records
        for figure, values in record["figures"].items()
        for k, quality in enumerate(run.world.quality)
        if math.isfinite(values[k])
    ]


def rounds_to(target: float | None, metrics: pd.DataFrame) -> int | None:
    """The first round whose accuracy, meant over the seeds, reaches `target`."""
    if target is None:
        return None
    mean = metrics.groupby("round")["accuracy"].mean()
    reached = mean.index[mean >= target]
    return int(reached[0]) if len(reached) else None


def _summary(study: Study, name: str, metrics: pd.DataFrame, runs: Sequence[ArmRun]) -> run_page.ArmSummary:
    own = metrics[metrics["arm"] == name]
    run = next(run for run in runs if run.arm.name == name)
    mean = own.groupby("round")["accuracy"].mean()
    per_seed = own.groupby("seed")[["bytes_up", "bytes_down", "seconds", "watt_hours", "wall_seconds"]]
    totals = per_seed.sum().mean()
    return run_page.ArmSummary(
        name=name,
        protocol=run.arm.protocol,
        aggregation=_aggregation(run.arm),
        final_accuracy=float(mean.iloc[-1]),
        best_accuracy=float(mean.max()),
        rounds_to_target=rounds_to(study.study.target, own),
        target=study.study.target,
        megabytes_up=float(totals["bytes_up"]) / 1e6,
        megabytes_down=float(totals["bytes_down"]) / 1e6,
        seconds_model=float(totals["seconds"]),
        watt_hours=float(totals["watt_hours"]),
        wall_seconds=float(totals["wall_seconds"]),
        epsilon={party: float(own[f"epsilon_{party}"].max()) for party in PARTIES},
    )


def _aggregation(arm: Arm) -> str:
    """Only arms of one aggregation are compared. A system that averages no models has no aggregation."""
    averaging = "fraction" in vars(arm.options)
    return str(getattr(arm.options, "aggregation", "partial" if averaging else ""))


def figures(study: Study, results: Results) -> dict[str, run_page.ReportFigure]:
    """The figures of a report, by file name."""
    seed = study.study.seeds[0]
    colours = plots.arm_colours(arm.name for arm in study.arms)
    made = {
        "accuracy": run_page.ReportFigure(
            title="Accuracy",
            caption="Accuracy on the server's records after each round.",
            figure=plots.accuracy(results.metrics, target=study.study.target, colours=colours),
        ),
        "participation": run_page.ReportFigure(
            title="Participation by data quality",
            caption="In how many rounds each client took part (as FedProf, Fig. 6); the first seed.",
            figure=plots.participation(_of_seed(results.participation, seed), colours=None),
        ),
        "cost": run_page.ReportFigure(
            title="Bytes and time",
            caption="What an accuracy cost in bytes, both directions, and in modelled seconds.",
            figure=plots.bytes_and_time(results.metrics, colours=colours),
        ),
    }
    divergence = results.figures[results.figures["figure"] == "divergence"]
    if len(divergence):
        made["divergence"] = run_page.ReportFigure(
            title="Divergence of the clients' profiles",
            caption="Each client's newest divergence from the server's profile (as FedProf, Fig. 7); "
            "the first seed.",
            figure=plots.divergence(_of_seed(divergence, seed).rename(columns={"value": "divergence"})),
        )
    return made


def _of_seed(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    return frame[frame["seed"] == seed]


def sentences(results: Results) -> tuple[str, str, str]:
    """Who won, by how many rounds, what it cost in bytes and privacy."""
    return run_page.sentences(results.summary)


def write(
    study: Study,
    results: Results,
    privacy: Sequence[run_page.PrivacyRow],
    folder: Path,
    reproduce: str,
    changes: Sequence[str] = (),
) -> Path:
    """Write tables, plots, versions and the report into the run folder. Returns the report's path."""
    write_csv(folder / "metrics.csv", results.metrics)
    write_csv(folder / "participation.csv", results.participation)
    write_csv(folder / "figures.csv", results.figures)
    files.write(folder / "summary.json", json.dumps(as_json(results), indent=2) + "\n")
    files.write(folder / "versions.json", json.dumps(versions(), indent=2) + "\n")
    files.write(folder / "seeds.json", json.dumps(list(study.study.seeds)) + "\n")
    drawn = figures(study, results)
    pictures = files.subfolder(folder / "plots")
    for name, figure in drawn.items():
        write_png(pictures / f"{name}.png", figure.figure)
    page = run_page.ReportData(
        title=study.study.name,
        sentences=sentences(results),
        privacy=privacy,
        config=study.text,
        summary=results.summary,
        figures=list(drawn.values()),
        versions=versions(),
        seeds=study.study.seeds,
        reproduce=reproduce,
        bought=[*bought(study, results), *quiet(results)],
        changes=changes,
        ledgers=results.ledgers,
    )
    run_page.write(folder / "report.html", page)
    return folder / "report.html"


def privacy_card(results: Results, arms: Mapping[str, tuple[Algorithm, Plan]]) -> list[run_page.PrivacyRow]:
    """Who learned what at which epsilon. Arms with the same answer share a row."""
    spent = {arm.name: arm.epsilon for arm in results.summary}
    rows: dict[tuple[str, str, str], list[str]] = {}
    for party in PARTIES:
        for arm, (algorithm, plan) in arms.items():
            seen = learns(plan, [offer.sends for offer in algorithm.offers], party)
            rows.setdefault((party, seen, in_words(spent[arm][party])), []).append(arm)
    return [
        run_page.PrivacyRow(party=party, arms=arms, learns=seen, epsilon=epsilon)
        for (party, seen, epsilon), arms in rows.items()
    ]


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that figures depend on."""
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def as_json(results: Results) -> dict[str, Any]:
    """The summary for scripts. An infinite epsilon is the text "inf", which is valid JSON."""
    arms = []
    for arm in results.summary:
        epsilon = {p: plain(e) for p, e in arm.epsilon.items()}
        rounds = int(results.metrics.loc[results.metrics["arm"] == arm.name, "round"].max())
        own = results.participation[results.participation["arm"] == arm.name]
        retired = int(own["retired"].sum())
        arms.append({**vars(arm), "epsilon": epsilon, "rounds": rounds, "retired": retired})
    ledgers = [vars(ledger) for ledger in results.ledgers]
    return {"arms": arms, "sentences": list(sentences(results)), "ledgers": ledgers}


def finished_rounds(folder: Path, arm: Arm, seed: int) -> int:
    """The number of finished rounds of an arm and seed in a run folder, or all if budgets ended it early."""
    path = arm_folder(folder, arm, seed) / "checkpoint.sqlite"
    if not path.is_file():
        return 0
    with Checkpoint(path) as checkpoint:
        records = checkpoint.load()[1]
    return sys.maxsize if records and records[-1]["ended"] else len(records)


def bought(study: Study, results: Results) -> list[str]:
    """The rounds that the budget bought: a sentence for each arm in which clients' budgets were spent."""
    lines = []
    rounds, seeds = study.study.rounds, results.participation["seed"].nunique()
    what = f"a budget of {study.privacy.budget:g}" if study.privacy.budget < math.inf else "the schedule"
    over = f" (over {seeds} seeds)" if seeds > 1 else ""
    for arm, own in results.participation.groupby("arm", sort=False):
        out = own[own["retired"]]
        if len(out):
            mine = results.metrics[results.metrics["arm"] == arm]
            played = mine.loc[mine["answered"] > 0].groupby("seed")["round"].nunique().max()
            least, most = out["answered"].min(), out["answered"].max()
            span = f"{least}" if least == most else f"{least} to {most}"
            lines.append(
                f"{arm}: {what} bought {played} of {rounds} rounds; {len(out)} of {len(own)} clients{over} "
                f"dropped out by themselves, after taking part in {span}."
            )
    return lines


def quiet(results: Results) -> list[str]:
    """A sentence for each arm that played rounds without an exchange."""
    lines = []
    for arm, own in results.metrics.groupby("arm", sort=False):
        silent = int((own["asked"] == 0).groupby(own["seed"]).sum().max())
        if silent:
            rounds = own["round"].nunique()
            lines.append(
                f"{arm}: {silent} of {rounds} rounds asked nobody for anything; what its clients send cannot "
                "change, so each gives it once."
            )
    return lines
