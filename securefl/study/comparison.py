"""Compares finished runs: what their studies differ in, their figures, and a test over paired seeds.

It reads run folders only: the study, the tables of rounds, and, on the machine of the runs, the private ones.
Runs are comparable if they measure the same thing on the same test records. Everything else may differ, and
is listed.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from securefl.core.errors import ConfigError, DataError
from securefl.core.release import PARTIES
from securefl.core.text_safety import uncell
from securefl.data import NAMES
from securefl.report.significance import LEVEL, holm, signed_rank
from securefl.storage.inputs import content
from securefl.storage.private_folder import CONFIG, PRIVATE, RUN, require_format
from securefl.storage.texts import read_text, toml
from securefl.study.publication import PERSONAL

_TABLE_BYTES: Final = 2**28
_TESTED: Final = (
    *("source", "target", "classes", "ignore", "columns", "test", "test_share", "test_clients"),
    *("features", "network"),
)
"""Keys of [data] that decide what the models are tested on."""
_DEALT: Final = ("data", "corruption")
"""Sections that decide how records are dealt: with other ones, the same seed is another world."""
_COLUMNS: Final = ("arm", "seed", "round", "accuracy", "bytes_up", "bytes_down", "models")
NOT_SET: Final = "not set"


@dataclass(frozen=True, kw_only=True, eq=False)
class Finished:
    """A finished run as it is on disk.

    name: distinct among the compared runs. config: the values of the study by dotted key; those of an arm are
    under `arm "NAME".`. metrics: a row for each arm, seed and round. measure: what "accuracy" is, in words.
    digests: of own records, by name. split: the digest of the key that drew the test records, if one did.
    """

    name: str
    folder: Path
    text: str
    config: Mapping[str, Any]
    metrics: pd.DataFrame
    measure: str
    digests: Mapping[str, str]
    split: str

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(self.metrics["arm"]))


@dataclass(frozen=True, kw_only=True)
class Series:
    """An arm of a run. Accuracies are shares, by seed; nan if the seed has no final one. A party's epsilon is
    the largest over the seeds. label: distinct among all series."""

    label: str
    run: str
    arm: str
    models: str
    rounds: int
    accuracies: Mapping[int, float]
    megabytes_up: float
    megabytes_down: float
    epsilon: Mapping[str, float]

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.accuracies.values())))


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Two series over paired seeds. points: the mean difference of final accuracy, first less second, in
    points. p: of Wilcoxon's signed-rank test, two-sided, corrected by Holm's rule over all tests; None where
    none was made, for the reason `why`. paired: whether one seed is one world in both."""

    first: str
    second: str
    pairs: int
    points: float
    p: float | None
    why: str = ""
    paired: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Runs side by side. differences: by dotted key, a value for each run. notes: what limits the comparison,
    in sentences. metrics: the rounds of all series, with their labels as `arm`."""

    runs: Sequence[Finished]
    series: Sequence[Series]
    differences: Mapping[str, Sequence[Any]]
    gaps: Sequence[Gap]
    notes: Sequence[str]
    metrics: pd.DataFrame

    @property
    def personal(self) -> bool:
        """Whether accuracies of personal models are among the figures."""
        return any(own.models == PERSONAL for own in self.series)


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
    runs = [_read(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]
    for one, other in combinations(runs, 2):
        _require_same_tests(one, other)
    series = [own for run in runs for own in _series(run, runs)]
    labelled = [
        rows.assign(arm=_label(run, str(arm), runs))
        for run in runs
        for arm, rows in run.metrics.groupby("arm", sort=False)
    ]
    differences = _differences(runs)
    dealt = [key for key in differences if key.split(".")[0] in _DEALT]
    apart = _apart(runs, dealt)
    return Comparison(
        runs=runs,
        series=series,
        differences=differences,
        gaps=_tests([_Pairs.of(one, other) for one, other in _opponents(runs, series)], apart),
        notes=_notes(runs, series, apart),
        metrics=pd.concat(labelled, ignore_index=True),
    )


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, or their paths if two of them have one name."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


# Reading ------------------------------------------------------------------------------------------


def _read(folder: Path, name: str) -> Finished:
    config = folder / CONFIG
    if not config.is_file():
        raise ConfigError(f"Expected a run folder, got {folder}, which has no {CONFIG}. Check the path.")
    require_format(folder, RUN)
    if not (folder / "summary.json").is_file():
        raise ConfigError(
            f"{folder}: not finished; go on with: securefl run {config} --out {folder}. Then compare again."
        )
    text = read_text(config)
    private = folder / PRIVATE / "metrics.csv"
    key = folder / PRIVATE / "split.key"
    return Finished(
        name=name,
        folder=folder,
        text=text,
        config=dict(_flat(toml(text))),
        # On the machine of the run, with the accuracies of personal models.
        metrics=_table(private if private.is_file() else folder / "metrics.csv"),
        measure=str(_json(folder / "summary.json").get("accuracy", "")),
        digests=_digests(folder / PRIVATE / "records.json"),
        split=content(key, 4096).hex() if key.is_file() else "",
    )


def _table(path: Path) -> pd.DataFrame:
    try:
        found = pd.read_csv(io.BytesIO(content(path, _TABLE_BYTES)), comment="#")
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: expected a table of rounds, got: {error} Write it again: securefl report {path.parent}"
        ) from None
    needed = (*_COLUMNS, *(f"epsilon_{party}" for party in PARTIES))
    if missing := [column for column in needed if column not in found.columns]:
        raise DataError(
            f"{path}: expected the columns {', '.join(needed)}, got none called {', '.join(missing)}. "
            f"Write it again: securefl report {path.parent}"
        )
    if found.empty:
        raise DataError(f"{path}: expected a row for each round, got none. Write it again: securefl report.")
    return found.assign(arm=found["arm"].map(lambda arm: str(uncell(arm))))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(content(path, 2**26))
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a JSON object. Write it again: securefl report {path.parent}")
    return found


def _digests(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    return {name: said for name, said in _json(path).items() if "SHA-256" in str(said)}


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
    keys += [key for run in (one, other) for key in run.config if key.startswith("data.columns.")]
    for key in dict.fromkeys(keys):
        mine, theirs = (run.config.get(key, NOT_SET) for run in (one, other))
        if mine != theirs:
            raise ConfigError(
                f"Expected runs that are tested on the same records, got {key} = {mine} in {one.name} and "
                f"{theirs} in {other.name}: their accuracies do not compare. Compare runs of one data set."
            )
    for name in one.digests.keys() & other.digests.keys():
        if one.digests[name] != other.digests[name]:
            raise ConfigError(
                f"Expected runs over the same records, got other {name} in {one.name} than in {other.name} "
                "(by SHA-256): their accuracies do not compare. Compare runs of one version of the records."
            )
    if one.measure != other.measure:
        raise ConfigError(
            f"Expected runs with one measure, got accuracy as {one.measure!r} in {one.name} and as "
            f"{other.measure!r} in {other.name}. Compare runs of one kind of task."
        )


def _differences(runs: Sequence[Finished]) -> dict[str, list[Any]]:
    """The keys whose values differ, in the order of the files. The name of a study is no setting."""
    keys = dict.fromkeys(key for run in runs for key in run.config if key != "study.name")
    found = {key: [run.config.get(key, NOT_SET) for run in runs] for key in keys}
    # By text, since 1 and 1.0, and a list and its copy, are one value; nan is no value of a study.
    return {
        key: values for key, values in found.items() if len({json.dumps(v, default=str) for v in values}) > 1
    }


def _apart(runs: Sequence[Finished], dealt: Sequence[str]) -> str:
    """Why the same seed is not the same world in all runs; empty if it is."""
    if dealt:
        return f"the runs deal their records differently ({', '.join(dealt)})"
    if len({run.split for run in runs}) > 1:
        return "each run drew its test records with a key of its own"
    return ""


def _notes(runs: Sequence[Finished], series: Sequence[Series], apart: str) -> list[str]:
    notes = []
    own = [run for run in runs if run.config.get("data.source") not in NAMES]
    if unknown := [run.name for run in own if not run.digests]:
        notes.append(
            "Nobody checked that the runs have the same records: there is no digest of them in "
            f"private/records.json of {' and '.join(unknown)}."
        )
    if apart:
        notes.append(f"One seed is not one world here, because {apart}: seeds are not paired.")
    if len({tuple(sorted(set(run.metrics["seed"]))) for run in runs}) > 1:
        notes.append("The runs have different seeds: only seeds that both have are paired.")
    if len({own.rounds for own in series}) > 1:
        notes.append("The runs differ in rounds: final accuracies are after different work.")
    if {own.models for own in series} == {"global", PERSONAL}:
        notes.append(
            "Global models are tested on the server's records, personal ones on records like their client's: "
            "the two do not compare."
        )
    return notes


# Figures and tests --------------------------------------------------------------------------------


def _label(run: Finished, arm: str, runs: Sequence[Finished]) -> str:
    if len(run.arms) == 1 and all(len(other.arms) == 1 for other in runs):
        return run.name
    return f"{run.name}: {arm}"


def _series(run: Finished, runs: Sequence[Finished]) -> Iterator[Series]:
    for name in run.arms:
        own = run.metrics[run.metrics["arm"] == name]
        last = own.sort_values("round").groupby("seed")["accuracy"].apply(lambda ended: ended.iloc[-1])
        moved = own.groupby("seed")[["bytes_up", "bytes_down"]].sum().mean() / 1e6
        yield Series(
            label=_label(run, name, runs),
            run=run.name,
            arm=name,
            models=str(own["models"].iloc[0]),
            rounds=int(own["round"].max()),
            accuracies={int(str(seed)): float(value) for seed, value in last.items()},
            megabytes_up=float(moved["bytes_up"]),
            megabytes_down=float(moved["bytes_down"]),
            epsilon={party: float(own[f"epsilon_{party}"].max()) for party in PARTIES},
        )


def _opponents(runs: Sequence[Finished], series: Sequence[Series]) -> Iterator[tuple[Series, Series]]:
    """The pairs to be tested: an arm of a later run with that of the first run, by name, or if both have one
    arm."""
    first = [own for own in series if own.run == runs[0].name]
    for run in runs[1:]:
        for own in (one for one in series if one.run == run.name):
            alone = first if len(first) == len(run.arms) == 1 else []
            same = [one for one in first if one.arm == own.arm] or alone
            if same and same[0].models == own.models:
                yield own, same[0]


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Two series, and the differences of their final accuracies by paired seed."""

    first: Series
    second: Series
    gaps: NDArray[np.float64]

    @classmethod
    def of(cls, one: Series, other: Series) -> _Pairs:
        seeds = sorted(one.accuracies.keys() & other.accuracies.keys())
        gaps = np.array([one.accuracies[seed] - other.accuracies[seed] for seed in seeds])
        return cls(one, other, gaps[np.isfinite(gaps)])

    @property
    def unequal(self) -> int:
        """The pairs that the test counts. It leaves out seeds that ended level."""
        return int(np.sum(self.gaps != 0))

    def told(self, p: float | None, why: str = "", *, paired: bool = True) -> Gap:
        gaps = self.gaps
        return Gap(
            first=self.first.label,
            second=self.second.label,
            pairs=len(gaps),
            points=100 * float(gaps.mean()) if len(gaps) else math.nan,
            p=p,
            why=why,
            paired=paired,
        )

    def without_power(self, needed: int, tests: int) -> Gap:
        count = len(self.gaps)
        tied = f", {count - self.unequal} of them level," if self.unequal < count else ""
        among = f" among {tests} tests" if tests > 1 else ""
        pairs = f"{count} pair{'' if count == 1 else 's'} of seeds{tied}"
        return self.told(
            None, f"{pairs}{among} cannot give a p below {LEVEL}; run {needed} seeds or more in both"
        )


def least_pairs(tests: int) -> int:
    """The pairs of seeds that a signed-rank test needs to have a p below `LEVEL` as the first of so many.

    The smallest two-sided p of n pairs is 2 / 2^n, and Holm's rule multiplies the first p by their number.
    """
    return math.floor(math.log2(2 * tests / LEVEL)) + 1


def _tests(pairs: Sequence[_Pairs], apart: str) -> list[Gap]:
    """Wilcoxon's signed-rank tests of all pairs that have power, corrected by Holm's rule."""
    if apart:
        return [own.told(None, apart, paired=False) for own in pairs]
    hopeful = [own for own in pairs if own.unequal >= least_pairs(1)]
    needed = least_pairs(max(1, len(hopeful)))
    made = [own for own in hopeful if own.unequal >= needed]
    found = [signed_rank(own.gaps.tolist(), [0.0] * len(own.gaps)) for own in made]
    by_pair = dict(zip(map(id, made), holm(found), strict=True))
    return [
        own.told(by_pair[id(own)]) if id(own) in by_pair else own.without_power(needed, len(hopeful))
        for own in pairs
    ]
