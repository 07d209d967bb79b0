"""Compares finished runs: what their studies differ in, their figures, and a test over paired seeds.

It reads run folders only: the study, the tables of rounds, and, on the machine of the runs, the private ones.
Runs are comparable if they measure the same thing on the same test records. Everything else may differ, and
is listed.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, count
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from securefl.core.errors import ConfigError, DataError
from securefl.core.release import PARTIES
from securefl.core.text_safety import uncell
from securefl.data import NAMES
from securefl.report.significance import LEVEL, holm, least_p, signed_rank
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
    # Their own names, or their paths if two of them have one name.
    alike = len({place.name for place in places}) < len(places)
    runs = [
        _read(folder, str(folder) if alike else place.name)
        for folder, place in zip(folders, places, strict=True)
    ]
    for one, other in combinations(runs, 2):
        _require_same_tests(one, other)
    series, metrics = [], []
    alone = all(len(run.arms) == 1 for run in runs)
    for run in runs:
        for arm, rows in run.metrics.groupby("arm", sort=False):
            series.append(_series(run.name, str(arm), run.name if alone else f"{run.name}: {arm}", rows))
            metrics.append(rows.assign(arm=series[-1].label))
    # By text, since 1 and 1.0, and a list and its copy, are one value. A study's name is no setting.
    keys = dict.fromkeys(key for run in runs for key in run.config if key != "study.name")
    values = {key: [run.config.get(key, NOT_SET) for run in runs] for key in keys}
    differences = {
        key: own for key, own in values.items() if len({json.dumps(v, default=str) for v in own}) > 1
    }
    apart = _apart(runs, [key for key in differences if key.split(".")[0] in _DEALT])
    return Comparison(
        runs=runs,
        series=series,
        differences=differences,
        gaps=_tests([*_opponents(series)], apart),
        notes=_notes(runs, series, apart),
        metrics=pd.concat(metrics, ignore_index=True),
    )


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
    key, records = folder / PRIVATE / "split.key", folder / PRIVATE / "records.json"
    digests = _json(records) if records.is_file() else {}
    return Finished(
        name=name,
        folder=folder,
        text=text,
        config=dict(_flat(toml(text))),
        # On the machine of the run, with the accuracies of personal models.
        metrics=_table(private if private.is_file() else folder / "metrics.csv"),
        measure=str(_json(folder / "summary.json").get("accuracy", "")),
        digests={name: said for name, said in digests.items() if "SHA-256" in str(said)},
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
    tested = [f"data.{word}" for word in _TESTED]
    tested += [key for key in (*one.config, *other.config) if key.startswith("data.columns.")]
    both = [(key, one.config.get(key, NOT_SET), other.config.get(key, NOT_SET)) for key in tested]
    both += [
        (f"SHA-256 of {key}", one.digests[key], other.digests[key])
        for key in one.digests.keys() & other.digests.keys()
    ]
    both += [("accuracy", one.measure, other.measure)]
    for key, mine, theirs in both:
        if mine != theirs:
            raise ConfigError(
                f"Expected runs of one measure on the same records, got {key} = {mine} in {one.name} and "
                f"{theirs} in {other.name}: their accuracies do not compare. Compare runs of one kind of "
                "task, over one version of one data set."
            )


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


def _series(run: str, arm: str, label: str, own: pd.DataFrame) -> Series:
    last = own.sort_values("round").groupby("seed")["accuracy"].apply(lambda ended: ended.iloc[-1])
    moved = own.groupby("seed")[["bytes_up", "bytes_down"]].sum().mean() / 1e6
    return Series(
        label=label,
        run=run,
        arm=arm,
        models=str(own["models"].iloc[0]),
        rounds=int(own["round"].max()),
        accuracies={int(str(seed)): float(value) for seed, value in last.items()},
        megabytes_up=float(moved["bytes_up"]),
        megabytes_down=float(moved["bytes_down"]),
        epsilon={party: float(own[f"epsilon_{party}"].max()) for party in PARTIES},
    )


def _opponents(series: Sequence[Series]) -> Iterator[tuple[Series, Series]]:
    """The pairs to be tested: an arm of a later run with that of the first run, by name, or if both have one
    arm."""
    arms = Counter(own.run for own in series)
    first = series[0].run
    for own in (one for one in series if one.run != first):
        for other in (one for one in series if one.run == first):
            if (other.arm == own.arm or arms[first] == arms[own.run] == 1) and other.models == own.models:
                yield own, other


def least_pairs(tests: int) -> int:
    """The pairs of seeds that a signed-rank test needs to have a p below `LEVEL` as the first of so many.

    Holm's rule multiplies the first p by their number.
    """
    return next(pairs for pairs in count(1) if tests * least_p(pairs) < LEVEL)


def _tests(pairs: Sequence[tuple[Series, Series]], apart: str) -> list[Gap]:
    """Wilcoxon's signed-rank tests of all pairs that have power, corrected by Holm's rule.

    apart: why the same seed is not the same world in all runs. Then nothing is tested.
    """
    gaps = [(pd.Series(one.accuracies) - pd.Series(other.accuracies)).dropna() for one, other in pairs]
    # The test leaves out seeds that ended level.
    unequal = [int((own != 0).sum()) for own in gaps]
    hopeful = max(1, sum(number >= least_pairs(1) for number in unequal))
    needed = least_pairs(hopeful)
    made = [place for place, number in enumerate(unequal) if number >= needed and not apart]
    alone = [signed_rank([*gaps[place]], [0.0] * len(gaps[place])) for place in made]
    p = dict(zip(made, holm(alone), strict=True))
    found = []
    for place, ((one, other), own) in enumerate(zip(pairs, gaps, strict=True)):
        level = f", {len(own) - unequal[place]} of them level," if unequal[place] < len(own) else ""
        among = f" among {hopeful} tests" if hopeful > 1 else ""
        powerless = (
            f"{len(own)} pair{'' if len(own) == 1 else 's'} of seeds{level}{among} cannot give a p below "
            f"{LEVEL}; run {needed} seeds or more in both"
        )
        found.append(
            Gap(
                first=one.label,
                second=other.label,
                pairs=len(own),
                points=100 * float(own.mean()),
                p=p.get(place),
                why="" if place in p else apart or powerless,
                paired=not apart,
            )
        )
    return found
