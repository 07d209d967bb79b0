"""Turns the records of finished arms into tables: metrics, participation, figures and abstentions.

The reasons for missing contributions are noted on this machine alone: no party sends its reason.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from securefl.accounting.figures import counted
from securefl.algorithm.plan import CLEAR
from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER, PARTIES, SERVER
from securefl.data.dataset import Task
from securefl.engine.attendance import spans
from securefl.report import run_page
from securefl.report.plots import evaluated
from securefl.report.sentences import privacy_cost
from securefl.study.accounted import sentence
from securefl.study.advice import advice
from securefl.study.alarms import NUMBER, Alarm, alarms, floor
from securefl.study.arm import ArmRun, arm_folder, checkpoint_file
from securefl.study.arm_options import OwnProtocol
from securefl.study.attended import presences
from securefl.study.checkpoint import Checkpoint, rounds_in
from securefl.study.composition import built
from securefl.study.config import Arm, Study
from securefl.study.observed import Observed
from securefl.study.seeded import World
from securefl.training.local import BOUND
from securefl.training.measures import worst_decile

_FIGURES = ["arm", "seed", "round", "client", "quality", "figure", "value"]
_ATTENDANCE = ("arm", "seed", "party", "reason", "since", "until", "rounds")
_WHO = ("name", "kind", "seed", "models")
_ABSTENTIONS = ("arm", "who", "what", "reason", "clients", "rounds", "times", "told")
_MEASURES = ("accuracy", "auc", "f1", "ece", "r2", "rmse")
_NOTED = (
    *("arm", "seed", "round", "accuracy", "loss"),
    *("bytes_up", "bytes_down", "seconds", "watt_hours"),
)
"""The columns of the metrics that a round's record has by the same name."""
_UNKNOWN = "no reason is on record: it was lost on the way, or is part of a sum that came to nothing"


@dataclass(frozen=True)
class Results:
    """Tidy tables of all arms and seeds, one row per observation.

    metrics: arm, seed, round, accuracy and loss (nan if models were not tested in the round), bytes_up,
        bytes_down, megabytes, seconds, watt_hours, wall_seconds, asked (exchanges), answered (clients),
        survivors_lost (selected clients without an answer), models ("global", or "personal" if accuracy and
        loss are those of each client's own model), floor (the accuracy of the best constant answer to the
        same records), and epsilon against each party. If a bound of updates adapts, update_bound after the
        round.
    participation: arm, seed, client, quality, label (the most frequent of its records, empty if targets are
        not classes), selected and answered (rounds; a client that is drawn twice takes part once), retired
        (whether its budget allowed no further round at the end).
    figures: arm, seed, round, client, quality, figure, value: an algorithm's figures of its clients for the
        observer, such as their divergence. There is a row for each round in which a client's figure changed.
        The value holds until the client's next row.
    ledgers: for each arm and seed, the head of its ledger's chain after the last round.
    attendance: arm, seed, party, reason, since, until, rounds: each absence of a party as the server sees it
        (see `engine.attendance`), with its first and last round and the number of rounds between that missed
        the party.
    abstentions: the reasons for missing contributions (see `abstentions`).
    alarms: the warnings about the arms.
    measures: name, kind, seed, models, accuracy, auc, f1, ece, r2, rmse, at_clients, worst_decile and clients
        of each arm's model at the end, and of the observer's own models (`observed.Observed`). Empty for a
        run whose parties are on machines of their own.
    confusion: name, kind, seed, models, true, predicted, records.
    reliability: name, kind, seed, models, probability, right, records: a row for each bin of calibration.
    kind: the learning task, which decides what "accuracy" means (`MEASURES`).
    accounting: sentences on the runs that the epsilons cover: one alone, or all over the same records.
    price: what a finite epsilon cost in accuracy, in a sentence; empty if no arms tell.
    infinite_reason: for each arm, why its epsilon is infinite; empty if it is not.
    over_rounds: for each arm, how contributions of a client, and noise, hang together over rounds.
    stopped: for each arm that `patience` stopped, after which round, as the rest of a sentence.
    discreet: whether `learnt` follows from no accuracy (`Study.tests_on_the_claimed`).
    """

    metrics: pd.DataFrame
    participation: pd.DataFrame
    figures: pd.DataFrame
    summary: tuple[run_page.ArmSummary, ...]
    ledgers: tuple[run_page.LedgerRow, ...]
    attendance: pd.DataFrame
    abstentions: pd.DataFrame
    alarms: tuple[Alarm, ...]
    measures: pd.DataFrame
    confusion: pd.DataFrame
    reliability: pd.DataFrame
    kind: Task
    accounting: str
    price: str
    infinite_reason: Mapping[str, str] = field(default_factory=dict)
    over_rounds: Mapping[str, Sequence[str]] = field(default_factory=dict)
    stopped: Mapping[str, str] = field(default_factory=dict)
    discreet: bool = False

    @property
    def learnt(self) -> bool:
        """False if an arm ended diverged or without answers, or no arm learnt anything."""
        drowned = not self.discreet and all(arm.no_better for arm in self.summary)
        return all(alarm.learnt for alarm in self.alarms) and not drowned


def collect(
    study: Study,
    runs: Sequence[ArmRun],
    observed: Sequence[Observed] = (),
    epsilon: Mapping[str, float] | None = None,
) -> Results:
    """The tables of these runs, and of what the observer measured.

    epsilon: of the choice of a run that was chosen privately, by party. It stands after every round: whoever
    sees one of them learns of the choice.
    """
    metrics = pd.DataFrame([row for run in runs for row in _metrics(run)])
    if epsilon is not None:
        metrics = metrics.assign(**{f"epsilon_{party}": own for party, own in epsilon.items()})
    names = dict.fromkeys(run.arm.name for run in runs)
    summary = tuple(_summary(study, name, metrics, runs) for name in names)
    return Results(
        metrics,
        pd.concat([_participation(run) for run in runs], ignore_index=True),
        pd.DataFrame([row for run in runs for row in _figures(run)], columns=_FIGURES),
        summary,
        tuple(_ledger(run) for run in runs),
        attendance(runs),
        abstentions(runs),
        alarms(runs, lambda run: advice(study, run.arm, run.world.problem)),
        _of_models(observed, (*_MEASURES, "at_clients", "worst_decile", "clients"), _measures),
        _of_models(observed, ("true", "predicted", "records"), _confusion),
        _of_models(observed, ("probability", "right", "records"), lambda own: own.measures.reliability),
        runs[0].world.problem.kind,
        sentence(study),
        privacy_cost(summary, study.privacy.adversaries),
        stopped=_stopped(study, runs),
        discreet=study.tests_on_the_claimed,
    )


def stopped_after(study: Study, records: Sequence[Mapping[str, Any]]) -> str:
    """The round after which `patience` stopped these records' arm, and why; empty if it did not."""
    tested = [record["accuracy"] for record in records if record["accuracy"] is not None]
    if len(records) == study.study.rounds or not study.study.level(tested):
        return ""
    tests = counted(study.study.patience or 0, "test")
    return f"after round {len(records)} of {study.study.rounds}: no better for {tests} (`patience`)"


def _stopped(study: Study, runs: Sequence[ArmRun]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for run in runs:
        if why := stopped_after(study, run.records):
            seed = f" under seed {run.world.seed}" if len(study.study.seeds) > 1 else ""
            found.setdefault(run.arm.name, []).append(f"stopped{seed} {why}")
    return {arm: f": {'; '.join(whys)}." for arm, whys in found.items()}


def _of_models(
    observed: Sequence[Observed], columns: Sequence[str], rows: Callable[[Observed], Iterable[Sequence[Any]]]
) -> pd.DataFrame:
    """A table of measured models. rows: of one model, without the columns that say which one it is."""
    found = [(own.name, own.kind, own.seed, own.models, *row) for own in observed for row in rows(own)]
    return pd.DataFrame(found, columns=[*_WHO, *columns])


def _measures(own: Observed) -> Iterator[Sequence[Any]]:
    worst = worst_decile(own.clients)
    yield *(getattr(own.measures, name) for name in _MEASURES), own.at_clients, worst, len(own.clients)


def _confusion(own: Observed) -> Iterator[Sequence[int]]:
    for true, row in enumerate(own.measures.confusion):
        yield from ((true, predicted, records) for predicted, records in enumerate(row))


def _ledger(run: ArmRun) -> run_page.LedgerRow:
    noted = run.records[-1]["ledger"]
    return run_page.LedgerRow(arm=run.arm.name, seed=run.world.seed, count=noted["count"], head=noted["head"])


def _metrics(run: ArmRun) -> list[dict[str, Any]]:
    models, least = "personal" if run.personal else "global", floor(run)
    return [
        {
            **{name: math.nan if record[name] is None else record[name] for name in _NOTED},
            "megabytes": (record["bytes_up"] + record["bytes_down"]) / 1e6,
            "wall_seconds": record["wall_seconds"],
            "asked": record["asked"],
            "answered": len(record["answered"]),
            # A client that is drawn twice counts once.
            "survivors_lost": len(set(record["selected"])) - len(record["answered"]),
            "models": models,
            "floor": least,
            **{f"epsilon_{party}": record["epsilon"][party] for party in PARTIES},
            **{name: record[name] for name in (BOUND,) if name in record},
        }
        for record in run.records
    ]


def _participation(run: ArmRun) -> pd.DataFrame:
    clients = len(run.world.quality)
    selected, answered = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    retired = np.zeros(clients, np.bool_)
    for record in run.records:
        # By index: a client that is drawn twice in a round gets one more round, not two.
        selected[record["selected"]] += 1
        answered[record["answered"]] += 1
        retired[record["retired"]] = True
    return pd.DataFrame(
        {
            "arm": run.arm.name,
            "seed": run.world.seed,
            "client": np.arange(clients),
            "quality": run.world.quality,
            "label": [_main_label(run.world, y) for _, y in run.world.records],
            "selected": selected,
            "answered": answered,
            "retired": retired,
        }
    )


def _main_label(world: World, y: NDArray[Any]) -> str:
    if world.problem.kind != "classification" or not len(y):
        return ""
    return str(np.bincount(y[y >= 0], minlength=world.problem.outputs).argmax())


def _figures(run: ArmRun) -> Iterator[tuple[Any, ...]]:
    who, quality = (run.arm.name, run.world.seed), run.world.quality
    for record in run.records:
        for figure, own in record["figures"].items():
            for k, value in zip(*own, strict=True):
                yield *who, record["round"], k, quality[k], figure, value


def rounds_to(target: float | None, metrics: pd.DataFrame) -> int | None:
    """The first round whose mean accuracy over the seeds reaches `target`; None if no round does."""
    if target is None:
        return None
    mean = evaluated(metrics).groupby("round")["accuracy"].mean()
    reached = mean.index[mean >= target]
    return int(reached[0]) if len(reached) else None


def _summary(study: Study, name: str, metrics: pd.DataFrame, runs: Sequence[ArmRun]) -> run_page.ArmSummary:
    own = metrics[metrics["arm"] == name]
    run = next(run for run in runs if run.arm.name == name)
    mean = evaluated(own).groupby("round")["accuracy"].mean()
    last = own.groupby("seed")["accuracy"].apply(lambda ended: ended.iloc[-1])
    per_seed = own.groupby("seed")[["bytes_up", "bytes_down", "seconds", "watt_hours", "wall_seconds"]]
    totals = per_seed.sum().mean().to_dict()
    return run_page.ArmSummary(
        name=name,
        protocol=run.arm.protocol,
        aggregation=_aggregation(run.arm),
        models=str(own["models"].iloc[0]),
        # If the model of one seed diverged at the end, there is no final accuracy.
        final_accuracy=float(last.mean(skipna=False)),
        best_accuracy=float(mean.max()),
        by_seed=last.tolist(),
        rounds_to_target=rounds_to(study.study.target, own),
        target=study.study.target,
        megabytes_up=totals["bytes_up"] / 1e6,
        megabytes_down=totals["bytes_down"] / 1e6,
        seconds_model=totals["seconds"],
        watt_hours=totals["watt_hours"],
        wall_seconds=totals["wall_seconds"],
        epsilon={party: float(own[f"epsilon_{party}"].max()) for party in PARTIES},
        sparse=study.privacy.sum == CLEAR and _packs(run),
        zeros=study.privacy.sum != CLEAR and _packs(run),
        floor=float(own["floor"].mean()),
    )


def _packs(run: ArmRun) -> bool:
    """Whether the arm has sums that clients send without their zeros if sums are in the clear."""
    return any(own.spec.packed for own in built(run.arm, run.world.problem).contributions)


def _aggregation(arm: Arm) -> str:
    """The arm's aggregation; reports compare only arms with the same one. Empty if it averages no models."""
    options = arm.options.made if isinstance(arm.options, OwnProtocol) else arm.options
    averaging = "fraction" in vars(options)
    return str(getattr(options, "aggregation", "partial" if averaging else ""))


def finished_rounds(folder: Path, arm: Arm, seed: int) -> int:
    """The number of finished rounds of an arm and seed in a run folder; `sys.maxsize` if it ended."""
    path = checkpoint_file(arm_folder(folder, arm, seed))
    if not rounds_in(path):
        return 0
    with Checkpoint(path) as checkpoint:
        records = checkpoint.load()[1]
    return sys.maxsize if records and records[-1]["ended"] else len(records)


def attendance(runs: Sequence[ArmRun]) -> pd.DataFrame:
    """The absences of all parties, by arm and seed. Columns as for `Results`."""
    rows = [
        (run.arm.name, run.world.seed, absent.name, absent.why, absent.since, until, missed)
        for run in runs
        for absent, until, missed in spans(presences(run.records))
    ]
    return pd.DataFrame(rows, columns=list(_ATTENDANCE))


def abstentions(runs: Sequence[ArmRun]) -> pd.DataFrame:
    """The reasons for missing contributions: a row for each reason in each arm, over all seeds.

    Columns: arm, who, what, reason, clients, rounds, times, told.
    who: the party, "clients", "server" or "key-holder". what: "abstained" (it noted a reason on its own
    machine), "refused" (other parties could not use its message), "silent" (selected, without an answer or a
    reason) or "blank" (it answered like a client without records, since its silence would have revealed the
    reason). reason: in its first wording; reasons that differ in numbers alone are one. clients, rounds:
    their numbers, counted for each seed. times: the number of pairs of client and round. told: the kind of
    facts that a client's silence depends on, by the classes of `core.abstaining`; empty for other parties.
    """
    alike: dict[tuple[str, ...], list[tuple[str, int, int, str, str]]] = {}
    for run in runs:
        for number, party, what, reason, told in _noted(run):
            who = party if party in (SERVER, KEY_HOLDER) else "clients"
            place = (run.arm.name, who, what, NUMBER.sub("#", reason))
            alike.setdefault(place, []).append((party, run.world.seed, number, reason, told))
    rows = []
    for (arm, who, what, _), own in alike.items():
        _, _, _, reason, told = own[0]
        clients = len({(seed, party) for party, seed, *_ in own}) if who == "clients" else 0
        rounds = len({(seed, number) for _, seed, number, *_ in own})
        rows.append((arm, who, what, reason, clients, rounds, len(own), told))
    arms = [run.arm.name for run in runs]
    rows.sort(key=lambda row: (arms.index(row[0]), -row[6]))
    return pd.DataFrame(rows, columns=list(_ABSTENTIONS)).astype(
        dict.fromkeys(("clients", "rounds", "times"), np.int64)  # of no row too
    )


def _noted(run: ArmRun) -> Iterator[tuple[int, str, str, str, str]]:
    """(round, party, what, reason, class of the reason) of each missing, blank or refused contribution."""
    for record in run.records:
        number, abstained, rejected_from = record["round"], record["abstained"], record["rejected_from"]
        classes = record["reasons"]
        for party, reason in abstained.items():
            yield number, party, "abstained", reason, classes.get(party, "")
        for what, noted in (("refused", rejected_from), ("blank", record["without_records"])):
            for party, reason in noted.items():
                yield number, party, what, reason, ""
        for client in sorted(set(record["selected"]) - set(record["answered"])):
            if (name := client_name(client)) not in abstained and name not in rejected_from:
                yield number, name, "silent", _UNKNOWN, ""
