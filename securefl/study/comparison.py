"""Compares finished runs: what their studies differ in, their figures, and a test over paired seeds.

It reads run folders only, with their private tables on the machine of the runs. Runs are comparable if they
measure the same thing on the same test records. Everything else may differ, and is listed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pandas as pd

from securefl.accounting.figures import counted, in_words, plain
from securefl.core.errors import ConfigError
from securefl.core.release import PARTIES
from securefl.data import NAMES
from securefl.report import plots
from securefl.report.pages import APART, Picture, environment, number_text
from securefl.report.run_page import TESTED
from securefl.report.significance import LEVEL, adjusted, with_interval
from securefl.storage.texts import show
from securefl.study.finished import EPSILONS, Finished, finished_run
from securefl.study.publication import PERSONAL

_TESTED: Final = (
    *("source", "target", "classes", "ignore", "columns", "test", "test_share", "test_clients"),
    *("validation", "test_on", "features", "network"),
)
"""Keys of [data] that decide what the models are tested on."""
_USUAL: Final = {"data.validation": 0.0, "data.test_on": "test", "measures.at": "averaged"}
"""The values of such keys where a study does not say."""
_HEAD = ("series", "models", "rounds", "accuracy", "MB up", "MB down", "epsilon", "beside the first run")


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Runs side by side.

    series: a row for each arm of each run, under a distinct label: run, arm, models ("global" or "personal"),
    rounds, the largest epsilon against each party, and megabytes up and down of all clients (means over the
    seeds); accuracies, the final one of each seed, and accuracy, their mean, nan if a seed has none. If the
    first run has an opponent: other (its label), pairs (their number), of (what is counted), points (the mean
    difference of final accuracy), and p of Wilcoxon's signed-rank test (two-sided, corrected by Holm's rule
    over all tests; nan if none was made). differences: by dotted key, a value for each run, None where it is
    not set. notes: what limits the comparison. metrics: the rounds of all series, with labels as `arm`.
    """

    runs: Sequence[Finished]
    series: pd.DataFrame
    differences: Mapping[str, Sequence[Any]]
    notes: Sequence[str]
    metrics: pd.DataFrame

    @property
    def personal(self) -> bool:
        """Whether accuracies of personal models are among the figures."""
        return bool((self.series["models"] == PERSONAL).any())


def compared(folders: Sequence[Path]) -> Comparison:
    """Compare finished runs by their folders.

    Raises ConfigError for fewer than two different folders, for a folder without a finished run, and for runs
    that measure different things or are tested on different records. Raises DataError for a damaged file.
    """
    places = [folder.resolve() for folder in folders]
    if len(set(places)) < max(2, len(places)):
        raise ConfigError(
            "Expected two or more different run folders, got "
            f"{', '.join(map(str, folders)) or 'none'}. Example: securefl compare runs/a runs/b"
        )
    # Their own names, or their paths if two of them have one name.
    names = [place.name for place in places]
    runs = [*map(finished_run, folders, names if len(set(names)) == len(names) else map(str, folders))]
    for one, other in combinations(runs, 2):
        require_same_tests(one, other)
    # A study's name is no setting. Values are compared as text: 1 and 1.0, or a list and its copy, are one.
    keys = dict.fromkeys(key for run in runs for key in run.config if key != "study.name")
    values = {key: [run.config.get(key) for run in runs] for key in keys}
    # A run that went on for more rounds than its study's text says has those of its table.
    values["study.rounds"] = [
        max(run.config.get("study.rounds", 0), int(run.metrics["round"].max())) for run in runs
    ]
    differing = {k: own for k, own in values.items() if len({json.dumps(v, default=str) for v in own}) > 1}
    rounds = pd.concat([run.metrics.assign(run=run.name) for run in runs], ignore_index=True)
    alone = all(run.metrics["arm"].nunique() == 1 for run in runs)
    rounds["label"] = rounds["run"] if alone else rounds["run"] + ": " + rounds["arm"]
    # The accuracies after the last round; nan if the models of a seed diverged.
    ended = rounds.drop_duplicates(["label", "seed"], keep="last").set_index(["label", "seed"])["accuracy"]
    of_arm, last = rounds.groupby("label", sort=False), ended.groupby("label", sort=False)
    moved = of_arm[["bytes_up", "bytes_down"]].sum().div(1e6 * of_arm["seed"].nunique(), axis=0)
    first = of_arm[["run", "arm", "models"]].first()
    series = first.assign(
        rounds=of_arm["round"].max(),
        **of_arm[EPSILONS].max(),
        accuracy=last.agg(lambda own: own.mean(skipna=False)),
        accuracies=last.agg(list),
        **moved.rename(columns={"bytes_up": "megabytes_up", "bytes_down": "megabytes_down"}),
    )
    # Why the same seed is not the same world: with another deal of the records, it is another one.
    dealt = ", ".join(key for key in differing if key.startswith(("data.", "corruption.")))
    apart = f"the runs deal their records differently ({dealt})" if dealt else ""
    if not dealt and len({run.split for run in runs}) > 1:
        apart = "each run drew its test records with a key of its own"
    notes = [*_notes(runs, series, apart), *_beside_the_first(series, ended, apart)]
    metrics = rounds.assign(arm=rounds["label"])
    return Comparison(runs=runs, series=series, differences=differing, notes=notes, metrics=metrics)


def require_same_tests(one: Finished, other: Finished) -> None:
    """Raises ConfigError for two runs whose accuracies are not the same measure on the same records."""
    keys = [f"data.{word}" for word in _TESTED]
    keys += [key for key in {**one.config, **other.config} if key.startswith("data.columns.")]
    # Of a personal model, `at` decides which one is tested.
    keys += ["measures.at"] if one.personal and other.personal else []
    tested = [(key, *(run.config.get(key, _USUAL.get(key)) for run in (one, other))) for key in keys]
    both = one.digests.keys() & other.digests.keys()
    tested += [(f"SHA-256 of {name}", one.digests[name], other.digests[name]) for name in both]
    for what, mine, theirs in (*tested, ("accuracy", one.measure.words, other.measure.words)):
        if mine != theirs:
            raise ConfigError(
                f"Expected runs of one measure on the same records, got {what} = {mine} in {one.name} and "
                f"{theirs} in {other.name}: their accuracies do not compare. Compare runs of one kind of "
                "task, over one version of one data set."
            )


def _notes(runs: Sequence[Finished], series: pd.DataFrame, apart: str) -> list[str]:
    seeds, several = {frozenset(run.metrics["seed"]) for run in runs}, series[["rounds", "models"]].nunique()
    limits = {
        f"One seed is not one world here, because {apart}: seeds are not paired.": apart,
        "The runs have different seeds: only seeds that both have are paired.": len(seeds) > 1,
        "The runs differ in rounds: final accuracies are after different work.": several["rounds"] > 1,
        "Global models are tested on the server's records, personal ones on records like their client's: the "
        "two do not compare.": several["models"] > 1,
    }
    return [*unchecked(runs), *(words for words, holds in limits.items() if holds)]


def unchecked(runs: Sequence[Finished]) -> list[str]:
    """A note on the runs over own records that no digest compares, if there are any."""
    own = [run.name for run in runs if run.config.get("data.source") not in NAMES and not run.digests]
    if not own or len(runs) == 1:
        return []
    return [
        "Nobody checked that the runs have the same records: there is no digest of them in "
        f"private/records.json of {' and '.join(own)}."
    ]


def _diverged(ended: pd.Series[Any], *labels: str) -> int:
    """The number of seeds of all these series under which one of them has no accuracy at the end."""
    both = ended.unstack("label")[[*labels]][ended.notna().unstack("label")[[*labels]].notna().all(axis=1)]
    return int(both.isna().any(axis=1).sum())


def _beside_the_first(series: pd.DataFrame, ended: pd.Series[Any], apart: str) -> list[str]:
    """Add the columns of the difference from the first run to `series`. Returns why some are not tested.

    All tests that have power are made, and corrected by Holm's rule. The opponent of an arm has the same
    name, or, like this one, is its run's only arm. ended: the last accuracy by label and seed.
    apart: why the same seed is not the same world. Then nothing is tested.
    """
    arms = series.groupby("run")["arm"].transform("size")
    first, others = series[series["run"] == series["run"].iloc[0]], {}
    for label, own in series.drop(first.index).iterrows():
        alike = (first["arm"] == own["arm"]) | (arms[label] == len(first) == 1)
        for other in first.index[alike & (first["models"] == own["models"])]:
            others[label] = other
    table = ended.unstack("label")
    gaps = table[[*others]] - table[[*others.values()]].to_numpy()
    # Without the seeds that diverged, the others would speak for an arm that loses its model.
    lost = {label: _diverged(ended, label, other) for label, other in others.items()}
    # The test leaves out seeds that ended level.
    unequal = gaps.fillna(0.0).round(9).ne(0.0).sum()
    tested = [] if apart else [label for label in others if not lost[label]]
    p, needed = adjusted({label: gaps[label].dropna() for label in tested}) if tested else ({}, 0)
    series["of"] = "seeds of each" if apart else "paired seeds"
    series["other"] = pd.Series(others, dtype=object)
    whole = gaps[[label for label in others if not lost[label]]]
    series["pairs"], series["points"] = gaps.count().astype(float), 100 * whole.mean()
    series["p"] = pd.Series(p, dtype=float)
    if not others:
        return ["No arm has an opponent: no later run has an arm with a name of the first run."]
    whys = [
        apart
        or (lost[label] and f"{counted(lost[label], 'seed')} of {label} and {others[label]} diverged")
        or f"{counted(gaps[label].count(), 'paired seed')}, of which {unequal[label]} "
        f"differ{'s' if unequal[label] == 1 else ''}, cannot give a p below {LEVEL} in "
        f"{counted(len(tested), 'test')}; run {needed} seeds or more in both"
        for label in others
        if label not in p
    ]
    return [f"No test: {why}." for why in dict.fromkeys(whys)]


def tables(found: Comparison) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    """Two tables with their heads. The first has a row for each arm, the second for each key that differs.

    Arms with global models come first, and then those of the highest accuracy.
    """
    ranked = found.series.sort_values(["models", "accuracy"], ascending=[True, False])
    arms = [
        (
            *(str(label), own["models"], str(own["rounds"]), with_interval(own["accuracies"])),
            *(_megabytes(own[f"megabytes_{way}"]) for way in ("up", "down")),
            ", ".join(f"{party} {in_words(own[f'epsilon_{party}'])}" for party in PARTIES),
            _gap(own),
        )
        for label, own in ranked.iterrows()
    ]
    keys = [[key, *map(show, values)] for key, values in found.differences.items()]
    return [_HEAD, *arms], [["key", *(run.name for run in found.runs)], *keys]


def _megabytes(value: float) -> str:
    # With one decimal, all runs of small models would have sent 0.0.
    return f"{value:.2g}" if 0 < value < 1 else number_text(value)


def _gap(own: pd.Series[Any]) -> str:
    """How an arm ended beside its opponent in the first run, with the test's p if there is one."""
    if not own["pairs"] > 0:
        return "–" if pd.isna(own["pairs"]) else f"no seed with an accuracy here and in {own['other']}"
    if pd.isna(own["points"]):
        return f"not every seed has an accuracy here and in {own['other']}"
    gap = f"{own['points']:+.1f} points beside {own['other']}, {own['of']}: {own['pairs']:.0f}"
    return gap if pd.isna(own["p"]) else f"{gap}, p = {own['p']:.2g}"


def page(found: Comparison, reproduce: str) -> str:
    """The HTML page. reproduce: the command that makes it again."""
    measure = found.runs[0].measure
    picture = Picture(
        name="accuracy",
        title="Accuracy after each round",
        caption=f"All series in one picture. Accuracy is {measure.words}.",
        private=found.personal,
        note="" if found.personal else TESTED,
        draw=lambda: plots.accuracy(found.metrics, label=measure.axis, least=measure.least),
    )
    (head, *rows), differing = tables(found)
    template = environment().get_template("compare.html.j2")
    return template.render(
        found=found,
        picture=picture,
        head=head,
        rows=rows,
        differing=differing,
        measure=measure.words,
        reproduce=reproduce,
        apart=APART,
        tested=TESTED,
    )


def as_json(found: Comparison) -> dict[str, Any]:
    """The comparison for scripts. An unknown number is null, and an infinite epsilon the text "inf"."""
    names = [run.name for run in found.runs]
    said = {
        "runs": {run.name: str(run.folder) for run in found.runs},
        "not_for_publication": found.personal,
        "differences": {key: dict(zip(names, own, strict=True)) for key, own in found.differences.items()},
        "notes": found.notes,
        "series": found.series.reset_index().to_dict("records"),
    }
    return dict(plain(said))
