"""Compares finished runs: what their studies differ in, their figures, and a test over paired seeds.

It reads run folders only: the study, the tables of rounds, and, on the machine of the runs, the private ones.
Runs are comparable if they measure the same thing on the same test records. Everything else may differ, and
is listed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations, count
from pathlib import Path
from typing import Any, Final

import pandas as pd

from securefl.core.errors import ConfigError, DataError
from securefl.core.release import PARTIES
from securefl.core.text_safety import uncell
from securefl.data import NAMES
from securefl.report.accuracy import MEASURES
from securefl.report.significance import LEVEL, holm, least_p, signed_rank
from securefl.storage.inputs import content
from securefl.storage.private_folder import CONFIG, PRIVATE, RUN, require_format
from securefl.storage.texts import read_text, toml
from securefl.study.publication import PERSONAL

_TESTED: Final = (
    *("source", "target", "classes", "ignore", "columns", "test", "test_share", "test_clients"),
    *("features", "network"),
)
"""Keys of [data] that decide what the models are tested on."""
_EPSILONS: Final = [f"epsilon_{party}" for party in PARTIES]
_COLUMNS: Final = {"arm", "seed", "round", "accuracy", "bytes_up", "bytes_down", "models", *_EPSILONS}


@dataclass(frozen=True, kw_only=True, eq=False)
class Finished:
    """A finished run as it is on disk.

    name: distinct among the compared runs. config: the values of the study by dotted key; those of an arm are
    under `arm "NAME".`. metrics: a row for each arm, seed and round. summary: its summary.json.
    digests: of own records, by name. split: the key that drew the test records, if one did.
    """

    name: str
    folder: Path
    text: str
    config: Mapping[str, Any]
    metrics: pd.DataFrame
    summary: Mapping[str, Any]
    digests: Mapping[str, str]
    split: bytes

    @property
    def measure(self) -> str:
        """What "accuracy" is, in words."""
        return str(self.summary.get("accuracy", ""))

    @property
    def kind(self) -> str:
        """The kind of problem whose accuracy it is; "classification" unless its words say another."""
        return next((kind for kind, own in MEASURES.items() if own.words == self.measure), "classification")

    @property
    def infinite_reason(self) -> dict[str, str]:
        """For each arm, why its epsilon is infinite; empty if it is not."""
        return {arm["name"]: arm.get("infinite_reason", "") for arm in self.summary.get("arms", [])}


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Runs side by side.

    series: a row for each arm of each run, under a distinct label. Columns: run, arm, models ("global" or
    "personal"), rounds; accuracy, the final one over the seeds, nan if a seed has none, and accuracies, that
    of each seed;
    megabytes up and down of all clients, means over the seeds; the largest epsilon against each party. Of the
    opponent in the first run, if there is one: other (its label), pairs (their number), of (what is counted),
    points (the mean difference of final accuracy), p (of Wilcoxon's signed-rank test, two-sided, corrected by
    Holm's rule over all tests; nan if none was made).
    differences: by dotted key, a value for each run, None where it is not set. notes: what limits the
    comparison, in sentences.
    metrics: the rounds of all series, with their labels as `arm`.
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
        _require_same_tests(one, other)
    rounds = pd.concat([run.metrics.assign(run=run.name) for run in runs], ignore_index=True)
    alone = all(run.metrics["arm"].nunique() == 1 for run in runs)
    rounds["label"] = rounds["run"] if alone else rounds["run"] + ": " + rounds["arm"]
    differences = _differences(runs)
    apart = _apart(runs, differences)
    series = _figures(rounds)
    untested = _beside_the_first(series, _finals(rounds), apart)
    return Comparison(
        runs=runs,
        series=series,
        differences=differences,
        notes=[*_notes(runs, series, apart), *untested],
        metrics=rounds.assign(arm=rounds["label"]),
    )


# Reading ------------------------------------------------------------------------------------------


def finished_run(folder: Path, name: str, *, private: bool = True) -> Finished:
    """Read a finished run. private: whether accuracies of personal models are read, if they are here.

    Raises ConfigError for a folder without a finished run, and DataError for a damaged file.
    """
    config = folder / CONFIG
    if not config.is_file():
        raise ConfigError(f"Expected a run folder, got {folder}, which has no {CONFIG}. Check the path.")
    require_format(folder, RUN)
    if not (folder / "summary.json").is_file():
        raise ConfigError(
            f"{folder}: not finished; go on with: securefl run {config} --out {folder}. Then compare again."
        )
    text, apart = read_text(config), folder / PRIVATE
    key, records, metrics = (apart / file for file in ("split.key", "records.json", "metrics.csv"))
    digests = _json(records) if records.is_file() else {}
    summary = _json(folder / "summary.json")
    return Finished(
        name=name,
        folder=folder,
        text=text,
        config=dict(_flat(toml(text))),
        # On the machine of the run, with the accuracies of personal models.
        metrics=_table(metrics if private and metrics.is_file() else folder / metrics.name),
        summary=summary,
        digests={name: said for name, said in digests.items() if "SHA-256" in str(said)},
        split=content(key, 4096) if key.is_file() else b"",
    )


@contextmanager
def _expecting(path: Path, what: str) -> Iterator[None]:
    """A context in which a ValueError says that this file is damaged."""
    try:
        yield
    except ValueError as error:
        raise DataError(
            f"{path}: expected {what}, got: {error} Write it again: securefl report {path.parent}"
        ) from None


def _table(path: Path) -> pd.DataFrame:
    with _expecting(path, "a table of rounds"):
        found = pd.read_csv(io.BytesIO(content(path, 2**28)), comment="#")
        if (missing := sorted(_COLUMNS - {*found.columns})) or found.empty:
            raise ValueError(f"no column {', '.join(missing)}." if missing else "no row.")
    return found.assign(arm=found["arm"].map(lambda arm: str(uncell(arm))))


def _json(path: Path) -> dict[str, Any]:
    with _expecting(path, "a JSON object"):
        found = json.loads(content(path, 2**26))
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__}.")
    return found


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if key == "arm" and not above and isinstance(value, list):
            for arm in value:
                rest = {word: own for word, own in arm.items() if word != "name"}
                yield from _flat(rest, f"arm {json.dumps(arm.get('name', ''))}.")
        elif isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


# Differences --------------------------------------------------------------------------------------


def _require_same_tests(one: Finished, other: Finished) -> None:
    keys = [f"data.{word}" for word in _TESTED]
    keys += [key for key in (*one.config, *other.config) if key.startswith("data.columns.")]
    tested = [(key, one.config.get(key), other.config.get(key)) for key in keys]
    tested += [
        (f"SHA-256 of {name}", one.digests[name], other.digests[name])
        for name in one.digests.keys() & other.digests.keys()
    ]
    for what, mine, theirs in (*tested, ("accuracy", one.measure, other.measure)):
        if mine != theirs:
            raise ConfigError(
                f"Expected runs of one measure on the same records, got {what} = {mine} in {one.name} and "
                f"{theirs} in {other.name}: their accuracies do not compare. Compare runs of one kind of "
                "task, over one version of one data set."
            )


def _differences(runs: Sequence[Finished]) -> dict[str, list[Any]]:
    # A study's name is no setting.
    keys = dict.fromkeys(key for run in runs for key in run.config if key != "study.name")
    values = {key: [run.config.get(key) for run in runs] for key in keys}
    # By text, since 1 and 1.0, and a list and its copy, are one value.
    return {key: own for key, own in values.items() if len({json.dumps(v, default=str) for v in own}) > 1}


def _apart(runs: Sequence[Finished], differences: Mapping[str, Any]) -> str:
    """Why the same seed is not the same world in all runs; empty if it is."""
    # With another deal of the records, the same seed is another world.
    if dealt := [key for key in differences if key.startswith(("data.", "corruption."))]:
        return f"the runs deal their records differently ({', '.join(dealt)})"
    split = len({run.split for run in runs}) > 1
    return "each run drew its test records with a key of its own" if split else ""


def _notes(runs: Sequence[Finished], series: pd.DataFrame, apart: str) -> Iterator[str]:
    own = [run for run in runs if run.config.get("data.source") not in NAMES]
    if unknown := [run.name for run in own if not run.digests]:
        yield (
            "Nobody checked that the runs have the same records: there is no digest of them in "
            f"private/records.json of {' and '.join(unknown)}."
        )
    if apart:
        yield f"One seed is not one world here, because {apart}: seeds are not paired."
    if len({frozenset(run.metrics["seed"]) for run in runs}) > 1:
        yield "The runs have different seeds: only seeds that both have are paired."
    if series["rounds"].nunique() > 1:
        yield "The runs differ in rounds: final accuracies are after different work."
    if series["models"].nunique() > 1:
        yield (
            "Global models are tested on the server's records, personal ones on records like their client's: "
            "the two do not compare."
        )


# Figures and tests --------------------------------------------------------------------------------


def _finals(rounds: pd.DataFrame) -> pd.Series[float]:
    """The accuracy after the last round, by label and seed; nan if the models of a seed diverged."""
    return rounds.drop_duplicates(["label", "seed"], keep="last").set_index(["label", "seed"])["accuracy"]


def _figures(rounds: pd.DataFrame) -> pd.DataFrame:
    of_arm = rounds.groupby("label", sort=False)
    ended = _finals(rounds).groupby("label", sort=False)
    megabytes = of_arm[["bytes_up", "bytes_down"]].sum().div(1e6 * of_arm["seed"].nunique(), axis=0)
    return (
        of_arm[["run", "arm", "models"]]
        .first()
        .assign(
            rounds=of_arm["round"].max(),
            **of_arm[_EPSILONS].max(),
            accuracy=ended.agg(lambda own: own.mean(skipna=False)),
            accuracies=ended.agg(list),
            megabytes_up=megabytes["bytes_up"],
            megabytes_down=megabytes["bytes_down"],
        )
    )


def least_pairs(tests: int) -> int:
    """The pairs of seeds that a signed-rank test needs to have a p below `LEVEL` as the first of so many.

    Holm's rule multiplies the first p by their number.
    """
    return next(pairs for pairs in count(1) if tests * least_p(pairs) < LEVEL)


def _beside_the_first(series: pd.DataFrame, finals: Any, apart: str) -> list[str]:
    """Add the columns of the difference from the first run to `series`. Returns why some are not tested.

    All tests that have power are made, and corrected by Holm's rule. apart: why the same seed is not the same
    world. Then nothing is tested.
    """
    others = _opponents(series)
    gaps = {label: (finals[label] - finals[other]).dropna() for label, other in others.items()}
    # The test leaves out seeds that ended level.
    unequal = {label: int((gap != 0).sum()) for label, gap in gaps.items()}
    hopeful = max(1, sum(number >= least_pairs(1) for number in unequal.values()))
    needed = least_pairs(hopeful)
    tested = [label for label in gaps if unequal[label] >= needed and not apart]
    p = holm([signed_rank([*gaps[label]], [0.0] * len(gaps[label])) for label in tested])
    series["other"] = pd.Series(others, dtype=object)
    series["of"] = "seeds of each" if apart else "paired seeds"
    series["pairs"] = pd.Series({label: len(gap) for label, gap in gaps.items()}, dtype=float)
    series["points"] = pd.Series({label: 100 * gap.mean() for label, gap in gaps.items()}, dtype=float)
    series["p"] = pd.Series(dict(zip(tested, p, strict=True)), dtype=float)
    if not gaps:
        return ["No arm has an opponent: no later run has an arm with a name of the first run."]
    whys = [
        apart
        or f"{len(gaps[label])} paired seeds, of which {unequal[label]} differ, cannot give a p below "
        f"{LEVEL} in {hopeful} test{'s' if hopeful > 1 else ''}; run {needed} seeds or more in both"
        for label in gaps
        if label not in tested
    ]
    return [f"No test: {why}." for why in dict.fromkeys(whys)]


def _opponents(series: pd.DataFrame) -> dict[str, str]:
    """By label, the arm of the first run that has the same name, or, like this one, is its run's only arm."""
    arms = series.groupby("run")["arm"].transform("size")
    of_first = series["run"] == series["run"].iloc[0]
    found = {}
    for label, own in series[~of_first].iterrows():
        alike = (series["arm"] == own["arm"]) | ((arms == 1) & (arms[label] == 1))
        for other in series.index[of_first & alike & (series["models"] == own["models"])]:
            found[label] = other
    return found
