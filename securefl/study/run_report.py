"""Writes the report of a finished run: tables, plots, two HTML pages, and summaries for scripts.

Each of them is made from `Results`: what stands outside of the private folder from the part that
`publication.published` keeps, and what stands inside from all of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from dp_accounting import DpEvent

from securefl.accounting.curve import Curve, beside_epsilon
from securefl.accounting.figures import in_words, plain
from securefl.algorithm.clients import Algorithm, specs_of
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.installed import versions
from securefl.core.release import PARTIES
from securefl.engine.privacy_card import learns
from securefl.mechanisms.charges import correlated_sums, events_of, infinite_reasons
from securefl.report import client_plots, measure_plots, plots, privacy_plots, run_page
from securefl.report.accuracy import MEASURES
from securefl.report.pages import Picture
from securefl.report.run_page import TESTED
from securefl.report.sentences import answer, rows
from securefl.report.style import Look, looks
from securefl.report.tables import write_png, write_table
from securefl.storage import files
from securefl.storage.private_folder import FIELD, NOTICE, json_text, private_folder, private_page
from securefl.study.alarms import once
from securefl.study.config import Study
from securefl.study.observed import ALONE, ARM, POOLED, WHOSE
from securefl.study.publication import (
    OF_ARM,
    PERSONAL,
    PERSONALLY_TESTED,
    TESTED_OF_ARM,
    comparable,
    notice,
    published,
)
from securefl.study.results import Results
from securefl.study.seeded import Digests
from securefl.training.local import BOUND

_MEASURED = ("measures", "confusion", "reliability")
"""The tables of models that were tested after the last round."""


def figures(
    study: Study,
    results: Results,
    claimed: Mapping[str, Curve] | None = None,
) -> Iterator[Picture]:
    """The pictures of these results, the most important one first. Those that are published have one.

    claimed: of `claimed_curves`.
    """
    of_arm = looks(arm.name for arm in study.arms)
    measure, kinds = MEASURES[results.kind], _tested(results)
    if kinds:
        yield Picture(
            name="accuracy",
            title="Accuracy",
            caption=f"Accuracy after each round, {_whose(kinds)}. It is {measure.words}.",
            note=TESTED if kinds != {PERSONAL} else "",
            draw=lambda: plots.accuracy(
                results.metrics,
                target=study.study.target,
                looks=of_arm,
                label=measure.axis,
                least=measure.least,
            ),
        )
    if claimed:
        yield Picture(
            name="curves",
            title="Privacy curves",
            caption="Delta at every epsilon, and below it how often the best test for one "
            f"{study.privacy.unit} misses at each rate of false alarms, after all releases that the plan "
            "allows. Curves that are infinite or 0 are left out.",
            draw=lambda: privacy_plots.curves(claimed),
        )
    if BOUND in results.metrics:
        yield Picture(
            name="bounds",
            title="Bounds that adapt",
            caption="The bound of updates after each round. It follows a quantile of their norms.",
            draw=lambda: plots.bounds(results.metrics, looks=of_arm, column=BOUND),
        )
    if results.participation.empty:
        return
    if parties := privacy_plots.finite_parties(results.metrics):
        yield _epsilons(study, results.metrics, parties, of_arm)
    yield from _of_clients(results, study.study.seeds[0])
    yield Picture(
        name="cost",
        title="Bytes and time",
        caption="The accuracy against bytes, both directions, and against modelled seconds; it is the "
        f"accuracy {_whose(kinds)}.",
        draw=lambda: plots.bytes_and_time(results.metrics, looks=of_arm, label=measure.axis),
    )
    if len(results.confusion):
        yield from _of_measures(results, of_arm)


def _epsilons(
    study: Study, metrics: pd.DataFrame, parties: Collection[str], of_arm: Mapping[str, Look]
) -> Picture:
    budget = study.privacy.budget if study.privacy.budget < math.inf else None
    limit = "There is no budget." if budget is None else f"The dashed line is the budget, {budget:g}."
    left = [p for p in PARTIES if p not in parties and metrics[f"epsilon_{p}"].max() == math.inf]
    bare = f" Against the {' and the '.join(left)} no arm's epsilon is finite." if left else ""
    return Picture(
        name="epsilon",
        title="Epsilon of the data holders",
        caption=f"The largest epsilon of a data holder after each round, by who looks. {limit}{bare}",
        draw=lambda: privacy_plots.epsilon(metrics, budget=budget, looks=of_arm),
    )


def _of_clients(results: Results, seed: int) -> Iterator[Picture]:
    """The pictures that show every client, of the first seed."""
    participation, figures = (
        frame[frame["seed"] == seed] for frame in (results.participation, results.figures)
    )
    yield Picture(
        name="participation",
        title="Participation by data quality",
        caption="In how many rounds each client took part (as FedProf, Fig. 6); the first seed.",
        draw=lambda: client_plots.participation(participation),
    )
    divergence = figures[figures["figure"] == "divergence"].rename(columns={"value": "divergence"})
    if len(divergence):
        yield Picture(
            name="divergence",
            title="Divergence of the clients' profiles",
            caption="Each client's newest divergence from the server's profile (as FedProf, Fig. 7); "
            "the first seed.",
            draw=lambda: client_plots.divergence(divergence),
        )
    # Each client's newest embedding in two dimensions.
    own = figures[figures["figure"].isin(["embedding_1", "embedding_2"])]
    newest = own.groupby(["arm", "client", "figure"], sort=False)["value"].last().unstack()
    newest = newest.rename(columns={"embedding_1": "first", "embedding_2": "second"}).reset_index()
    places = newest.merge(participation[["arm", "client", "label"]], on=["arm", "client"])
    if len(places):
        yield Picture(
            name="embedding",
            title="Embeddings of the clients",
            caption="The selection's embedding of each client, after the last round (as FedCor, Fig. 7); "
            "the losses of clients that are near each other change together. The first seed.",
            draw=lambda: client_plots.embedding(places),
        )


def _of_measures(results: Results, of_arm: Mapping[str, Look]) -> Iterator[Picture]:
    """The pictures of classifiers beside their accuracy."""
    whose = observers(results)
    yield Picture(
        name="calibration",
        title="Calibration",
        caption="The share of right classes against the probability that the model gave them, in ten "
        f"bins, after the last round. {whose}",
        draw=lambda: measure_plots.calibration(results.reliability, looks=of_arm),
    )
    yield Picture(
        name="confusion",
        title="Confusion",
        caption="The share of each class's test records by predicted class, after the last round, over "
        f"all seeds: the darker, the larger. {whose}",
        draw=lambda: measure_plots.confusion(results.confusion),
    )


def _means(measures: pd.DataFrame) -> list[dict[Hashable, Any]]:
    """The measures of each model, as means over the seeds, in the order of arms, and then the observer's."""
    own = measures.drop(columns=["seed", "clients"], errors="ignore")
    by = own.groupby(["name", "kind", "models"], sort=False)
    return by.agg(pd.Series.mean, skipna=False).reset_index().to_dict("records")


def table(results: Results) -> list[list[str]]:
    """The table of the arms, and of the models beside them, with a head."""
    measures = results.measures
    personal = all(arm.models == PERSONAL for arm in results.summary)
    beside = measures[measures["kind"] != ARM].groupby("name", sort=False)
    column = "at_clients" if personal and "at_clients" in measures else "accuracy"
    return rows(results.summary, [(str(name), value) for name, value in beside[column].mean().items()])


def observers(results: Results) -> str:
    """Whose the models are that no party has, if there are some."""
    return WHOSE if results.measures["kind"].isin([POOLED, ALONE]).any() else ""


def _tested(results: Results) -> set[str]:
    """The models whose accuracies the results have: "global", "personal" or both."""
    metrics = results.metrics
    return set(metrics["models"][(metrics["models"] != PERSONAL) | metrics["accuracy"].notna()])


def _whose(kinds: Collection[str]) -> str:
    """The models and records of the accuracy in a plot, in words."""
    if kinds == {PERSONAL}:
        return "of each client's own model on records like its own"
    if kinds == {"global"}:
        return "of the global model on the server's records"
    return "of the global model on the server's records, or of personal models on records like their client's"


def write(
    study: Study,
    results: Results,
    privacy: Sequence[run_page.PrivacyRow],
    folder: Path,
    reproduce: str,
    changes: Sequence[str] = (),
    device: str = "cpu",
    marks: Digests | None = None,
    claimed: Mapping[str, Curve] | None = None,
) -> Path:
    """Write tables, plots, versions and pages into the run folder. Returns the path of the page to publish.

    The page with all figures is beside it in the private folder (`private_page`).

    reproduce: the command that repeats the run. changes: sentences on how the model was changed for private
    training. marks: of records, code and model that are not packaged. claimed: of `claimed_curves`.
    """
    marks = marks or Digests()
    conditions = {**versions(), "device": device, **marks.words}
    private, shown = private_folder(folder), published(results)
    write_table(folder / "metrics.csv", shown.metrics)
    for name in _MEASURED:
        # Under a claim a file that is missing would reveal that there are no test records.
        if len(table := getattr(shown, name)) or study.claims:
            write_table(folder / f"{name}.csv", table)
    for name in ("metrics", "participation", "figures", "attendance", "abstentions", *_MEASURED):
        write_table(private / f"{name}.csv", getattr(results, name), NOTICE)
    public = {**as_json(results), "privacy_card": [vars(row) for row in privacy], "outside": [*marks.outside]}
    files.write(folder / "summary.json", json.dumps(public, indent=2) + "\n")
    files.write(private / "summary.json", json_text(private_json(results)))
    files.write(folder / "versions.json", json.dumps(conditions, indent=2) + "\n")
    if marks.private:
        files.write(private / "records.json", json_text(marks.private))
    files.write(folder / "seeds.json", json.dumps(list(study.study.seeds)) + "\n")
    to_publish, whole = (
        {own.name: own for own in made}
        for made in (figures(study, shown, claimed), figures(study, results, claimed))
    )
    if results.metrics["accuracy"].equals(shown.metrics["accuracy"]):
        whole |= to_publish  # drawn once
    for name, picture in to_publish.items():
        write_png(files.subfolder(folder / "plots") / f"{name}.png", picture.figure, picture.note)
    for name, picture in whole.items():
        if picture not in to_publish.values():
            write_png(files.subfolder(private / "plots") / f"{name}.png", picture.figure, NOTICE)
    page = folder / "report.html"
    for path, found, arms, pictures, apart in (
        (page, shown, comparable(shown.summary), to_publish, False),
        (private_page(page), results, results.summary, whole, True),
    ):
        said = {
            "title": study.study.name,
            "privacy": privacy,
            "config": study.text,
            "figures": [*pictures.values()],
            "versions": conditions,
            "seeds": study.study.seeds,
            "reproduce": reproduce,
            "changes": changes,
            "outside": [results.accounting, *marks.outside],
            "notice": notice(page.name, private=apart),
            "private": apart,
        }
        files.write(path, run_page.render({**_compared(study, found, arms), **said}))
    return page


def _compared(study: Study, results: Results, arms: Sequence[run_page.ArmSummary]) -> dict[str, Any]:
    """What a page says of these results. arms: those that its answer compares."""
    return {
        "answer": answer(results.summary) if arms else PERSONALLY_TESTED,
        "price": results.price,
        "table": table(results),
        "summary": results.summary,
        "bought": once(bought(study, results)),
        "quiet": once(quiet(results)) + [PERSONALLY_TESTED] * (len(arms) < len(results.summary)),
        "ledgers": results.ledgers,
        "alarms": [alarm.text for alarm in results.alarms],
        "reasons": _rows(results.abstentions),
        "measure": MEASURES[results.kind].words,
        "measures": _means(results.measures),
        "observers": observers(results),
    }


def privacy_card(results: Results, arms: Mapping[str, tuple[Algorithm, Plan]]) -> list[run_page.PrivacyRow]:
    """The rows of the privacy card: what each party learns, and at which epsilon. Equal arms share a row."""
    spent = {arm.name: arm.epsilon for arm in results.summary}
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for party in PARTIES:
        for arm, (algorithm, plan) in arms.items():
            specs = specs_of(algorithm)
            seen, shortly = (learns(plan, specs, party, assumptions=said) for said in (True, False))
            rows.setdefault((party, seen, shortly, in_words(spent[arm][party])), []).append(arm)
    return [
        run_page.PrivacyRow(party=party, arms=arms, learns=seen, epsilon=epsilon, shortly=shortly)
        for (party, seen, shortly, epsilon), arms in rows.items()
    ]


def claimed_curves(study: Study, arms: Mapping[str, tuple[Algorithm, Plan]]) -> dict[str, Curve]:
    """The curves of all releases that plans allow, against each adversary, by their names in a legend.

    Arms of equal events share a curve. Curves that are infinite or 0 are left out.
    """
    found: dict[tuple[str, frozenset[tuple[DpEvent, int]]], list[str]] = {}
    for party in study.privacy.adversaries or PARTIES:
        for arm, (algorithm, plan) in arms.items():
            events = events_of(plan, specs_of(algorithm), party, plan.max_rounds)
            found.setdefault((party, frozenset(events.items())), []).append(arm)
    made = (
        (f"{', '.join(names)}, against the {party}", Curve.of(dict(own)))
        for (party, own), names in found.items()
    )
    return {name: own for name, own in made if beside_epsilon(own)}


def infinite_reasons_of(
    study: Study, results: Results, arms: Mapping[str, tuple[Algorithm, Plan]]
) -> dict[str, str]:
    """For each arm, why no finite epsilon holds against the adversaries; empty if one does."""
    return {
        arm.name: infinite_reasons(plan, [contribution.spec for contribution in algorithm.contributions])
        if any(math.isinf(arm.epsilon[party]) for party in study.privacy.adversaries)
        else ""
        for arm, (algorithm, plan) in ((own, arms[own.name]) for own in results.summary)
    }


def over_rounds_of(arms: Mapping[str, tuple[Algorithm, Plan]]) -> dict[str, list[str]]:
    """For each arm, how contributions of a client, and noise, hang together over rounds, in sentences."""
    return {name: list(_over_rounds(plan, specs_of(own))) for name, (own, plan) in arms.items()}


def _over_rounds(plan: Plan, specs: Sequence[ValueSpec]) -> Iterator[str]:
    if rest := [spec.name for spec in specs if plan.apart(spec) > 1]:
        yield (
            f"A client contributes to the sum of the {' and the '.join(rest)} in one of {plan.separation} "
            "rounds at most (`separation`)."
        )
    if noised := correlated_sums(plan, specs):
        names, span = " and the ".join(spec.name for spec in noised), plan.correlation(noised[0]).span
        yield f"Noise of the {names} is correlated over {span}."


def as_json(whole: Results) -> dict[str, Any]:
    """The publishable summary for scripts.

    An infinite epsilon is the text "inf". An unknown number is null, and so is an accuracy of personal
    models. The answer compares only the arms with a global model.
    """
    arms, results = [], published(whole)
    for arm in results.summary:
        known = {name: own for name, own in plain(arm).items() if name in (*OF_ARM, *TESTED_OF_ARM)}
        rounds = int(results.metrics.loc[results.metrics["arm"] == arm.name, "round"].max())
        reason = results.infinite_reason.get(arm.name, "")
        arms.append(
            {
                **known,
                "infinite_reason": reason,
                "over_rounds": [*results.over_rounds.get(arm.name, ())],
                "rounds": rounds,
                "stopped": results.stopped.get(arm.name, "").lstrip(": "),
            }
        )
    return {
        "arms": arms,
        "answer": answer(results.summary) if comparable(results.summary) else PERSONALLY_TESTED,
        "privacy_cost": results.price or None,
        "accuracy": MEASURES[results.kind].words,
        "tested": TESTED,
        "measures": _rows(results.measures),
        "accounting": results.accounting,
        "ledgers": plain(results.ledgers),
    }


def private_json(results: Results) -> dict[str, Any]:
    """The part of the summary that is not for publication.

    `arms` has figures that depend on records and that no ledger counts: times, energy, the number of retired
    clients, and accuracies of personal models. `warnings` has each alarm with
    `arm`, `text` and `learnt`. `measures` has the observer's own models, of which `observer` says whose they
    are. `abstentions` has the reasons why contributions of clients are missing.
    """
    arms = []
    for arm in results.summary:
        shown = OF_ARM if arm.models == PERSONAL else (*OF_ARM, *TESTED_OF_ARM)
        own = {name: value for name, value in plain(arm).items() if name not in shown}
        out = results.participation.loc[results.participation["arm"] == arm.name, "retired"]
        arms.append({"name": arm.name, **own, "retired": int(out.sum())})
    return {
        "arms": arms,
        "measures": _rows(results.measures),
        "observer": observers(results),
        "warnings": plain(results.alarms),
        "abstentions": _rows(results.abstentions),
    }


def told_json(results: Results) -> dict[str, Any]:
    """Both summaries for the terminal of the person at this machine, the second one as `private`."""
    return {**as_json(results), "private": {FIELD: NOTICE, **private_json(results)}}


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    # Through JSON, which turns numpy's numbers into Python's.
    rows: list[dict[str, Any]] = json.loads(table.to_json(orient="records"))
    return rows


def bought(study: Study, results: Results) -> list[tuple[str, str]]:
    """Each arm with retired clients, and the sentence's rest: the number of rounds that budget or schedule
    allowed.

    A client retires by itself, for the rest of the run, if its ledger has no budget left for a round.
    """
    lines = []
    rounds, seeds = study.study.rounds, results.participation["seed"].nunique()
    # Without a budget, a client retires only at the end of the schedule for which noise was calibrated.
    what = f"a budget of {study.privacy.budget:g}" if study.privacy.budget < math.inf else "the schedule"
    over = f" (over {seeds} seeds)" if seeds > 1 else ""
    for arm, own in results.participation.groupby("arm", sort=False):
        out = own[own["retired"]]
        if len(out):
            mine = results.metrics[results.metrics["arm"] == arm]
            played = mine.loc[mine["answered"] > 0].groupby("seed")["round"].nunique().max()
            span = " to ".join(map(str, sorted({out["answered"].min(), out["answered"].max()})))
            said = (
                f": {what} bought {played} of {rounds} rounds; {len(out)} of {len(own)} clients{over} "
                f"retired by themselves, after taking part in {span}."
            )
            lines.append((str(arm), said))
    return lines


def quiet(results: Results) -> Iterator[tuple[str, str]]:
    """Each arm that `patience` stopped, or with rounds in which the server queried no client, and the rest of
    a sentence that says so."""
    yield from results.stopped.items()
    for arm, own in results.metrics.groupby("arm", sort=False):
        silent = int((own["asked"] == 0).groupby(own["seed"]).sum().max())
        if silent:
            rounds = own["round"].nunique()
            yield (
                str(arm),
                f": {silent} of {rounds} rounds queried no client: a client's value is constant in the run, "
                "so it sends the value once.",
            )
