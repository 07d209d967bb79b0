"""Gathers finished runs and sweeps for one figure or table of a paper: as one sweep, whose cells they are.

The keys in which their studies differ are its swept keys. Records of different sources, and epsilons per
record and per client, do not compare, so each has a panel of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Any, Final

import pandas as pd

from securefl.core.errors import ConfigError
from securefl.report.accuracy import Measure, joint
from securefl.storage.private_folder import SWEEP, require_format
from securefl.storage.texts import kept, read_text, toml
from securefl.study.comparison import require_same_tests, unchecked
from securefl.study.config import Study, brought_of, origin_of
from securefl.study.finished import Finished, finished_run
from securefl.study.folder import require_no_more, study_of
from securefl.study.publication import public
from securefl.sweep.cells import CONFIG, Cell, Sweep, parse_sweep
from securefl.sweep.tradeoff import Series, series_of, summary_table, with_settings

_APART: Final = ("data.source", "privacy.unit")
"""Keys whose values have panels of their own."""
_NO_SETTING: Final = ("study.name", "study.seeds", "study.target", "arm.name")
_IDLE: Final = ("runtime.", "measures.")
"""The beginnings of keys that distinguish no series: an accuracy does not depend on them. Those of `_IDLE` do
where each seed would be there twice without them, as in a sweep over such a key."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Gathered:
    """Series of finished runs and sweeps.

    series: over epsilon. unprotected: those of runs without noise, which have no epsilon. measure: of their
    accuracy. notes: what a reader of figure or table must know, in sentences.
    """

    series: Sequence[Series]
    unprotected: Sequence[Series]
    measure: Measure
    notes: Sequence[str]


def run_folders(folder: Path) -> tuple[list[Path], list[str]]:
    """The finished runs in a run's folder (itself) or a sweep's, and a note on the cells that are missing.

    Raises ConfigError for a sweep none of whose runs is finished, or of which one cell was chosen privately.
    """
    config = folder / CONFIG
    if not config.is_file():
        return [folder], []
    require_format(folder, SWEEP)
    with kept(config):
        sweep = parse_sweep(read_text(config), home=origin_of(config)[0], brought=brought_of(folder))
    if sweep.choice is not None:
        raise ConfigError(
            f"Expected runs that may be published, got the sweep {folder}, of which one cell was chosen "
            f"privately: its trials may not. Name the chosen one: {folder / 'chosen'}"
        )
    homes = {cell.name: sweep.home(folder, cell) for cell in sweep.cells}
    for cell in sweep.cells:
        require_no_more(cell.study, homes[cell.name])
    missing = [name for name, home in homes.items() if not (home / "summary.json").is_file()]
    again = f"To run them: securefl sweep {config} --out {folder}"
    if len(missing) == len(homes):
        raise ConfigError(f"Expected finished cells in {folder}, got none of {len(homes)}. {again}")
    lacking = f"{folder}: {len(missing)} of {len(homes)} cells are missing, since they failed or never ran"
    notes = [f"{lacking} ({'; '.join(missing)}). {again}"] if missing else []
    return [home for name, home in homes.items() if name not in missing], notes


def gather(folders: Sequence[Path], *, private: bool = False) -> Gathered:
    """Gather finished runs and sweeps by their folders. The folders are only read.

    private: whether accuracies of personal models are read too, which are not for publication.
    Raises ConfigError for a folder that is no finished run or sweep, for a run that is there twice, for runs
    of one source that are not tested on the same records (`require_same_tests`), and where no accuracy may
    be shown. Raises DataError for a damaged file.
    """
    found = [run_folders(folder) for folder in folders]
    runs = [finished_run(home, str(home), private=private) for homes, _ in found for home in homes]
    for name, times in Counter(run.name for run in runs).items():
        if times > 1:
            raise _twice(name, name)
    firsts = dict[tuple[Any, bool], Finished]()
    for run in runs:
        own = run.config.get(_APART[0])  # other sources have panels of their own
        firsts.setdefault((own, run.personal), run)
        for first in (first for (source, _), first in firsts.items() if source == own):
            require_same_tests(first, run)
    cells = [Cell(overrides={}, name=run.name, folder=run.name, study=study_of(run.folder)) for run in runs]
    keys = list(dict.fromkeys([*_APART, *(key for cell in cells for key in _keys(cell.study))]))
    pooled = Sweep(name="", keys=tuple(keys), cells=tuple(cells), text="")
    told = [(cell, {"infinite_reason": run.infinite_reason}) for cell, run in zip(cells, runs, strict=True)]
    rounds = [with_settings(pooled, cell, run.metrics) for cell, run in zip(cells, runs, strict=True)]
    summary = summary_table(pooled, told, pd.concat(rounds, ignore_index=True))
    summary = summary if private else public(summary)
    varied = _settings(summary, keys)
    pooled = replace(pooled, keys=tuple(varied), panels=tuple(key for key in _APART if key in varied))
    # A sweep's own run without noise is a point of its line; a run that is named is a line of its own.
    named = {str(folder) for folder in folders}
    bare = {cell.folder for cell in cells if not cell.study.claims and cell.folder in named}
    plain = summary["cell"].isin(bare) & ~summary["epsilon_true"].map(isfinite)
    return _of(
        pooled,
        summary[~plain],
        summary[plain],
        runs,
        [*unchecked(runs), *(note for _, own in found for note in own)],
    )


def _of(
    sweep: Sweep, summary: pd.DataFrame, plain: pd.DataFrame, runs: Sequence[Finished], notes: list[str]
) -> Gathered:
    series = series_of(sweep, summary) if len(summary) else []
    # Without noise there is no unit of privacy, so the line is across the panels of both.
    source = replace(sweep, panels=sweep.panels[:1] if _APART[0] in sweep.panels else ())
    beyond = series_of(source, plain, first=len(series)) if len(plain) else []
    # A method has one colour, with noise and without.
    looks = {own.line: own.look for own in series}
    unprotected = [
        replace(
            own,
            label=f"{own.label}, no noise",
            line=f"{own.line}, no noise",
            look=looks.get(own.line, own.look + len(series)),
        )
        for own in beyond
    ]
    every = [*series, *unprotected]
    notes += _notes(every)
    if not any(own.known for own in every):
        raise ConfigError(f"Expected an accuracy to show, got none. {' '.join(notes)}")
    return Gathered(
        series=[own for own in series if own.known],
        unprotected=[own for own in unprotected if own.known],
        measure=joint(run.measure for run in runs),
        notes=notes,
    )


def _keys(study: Study) -> Iterator[str]:
    """The dotted keys of a study's text that distinguish series."""
    for section, own in toml(study.text).items():
        for table in own if isinstance(own, list) else [own]:
            keys = [f"{section}.{word}" for word in table] if isinstance(table, dict) else []
            yield from (key for key in keys if not key.startswith(_NO_SETTING))


def _settings(summary: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """The keys that distinguish series. Raises ConfigError if a seed is there twice under one setting."""
    several = [key for key in keys if summary[key].map(str).nunique() > 1]
    for varied in ([key for key in several if not key.startswith(_IDLE)], several):
        text = summary[[*varied, "arm", "protocol", "asked", "seed"]].map(str)
        if not (twice := text.duplicated(keep=False)).any():
            return varied
    first, second, *_ = summary.loc[text.eq(text[twice].iloc[0]).all(axis=1), "cell"]
    raise _twice(first, second)


def _twice(first: str, second: str) -> ConfigError:
    return ConfigError(
        f"Expected each seed of an arm once under one setting, got it in {first} and in {second}: an "
        "interval that counts it twice would be too narrow. Leave one of them out."
    )


def _notes(series: Sequence[Series]) -> Iterator[str]:
    for own in series:
        rows = own.rows
        seeds = rows.groupby("asked")["seed"].nunique().min()
        if own.personal and not own.known:
            yield (
                f"{own.label}: its accuracies are of personal models on clients' own records, which no "
                "epsilon covers. For yourself alone, show them with --private."
            )
        elif lost := int(rows["final_accuracy"].isna().sum()):
            yield f"{own.label}: {lost} of {len(rows)} runs have no final accuracy: their models diverged."
        if own.known and seeds == 1:
            yield f"{own.label}: one seed, so there is no interval. Give `seeds` under [study] three or more."
        endless = rows[(rows["asked"] < inf) & ~rows["epsilon_true"].map(isfinite)]
        reasons = filter(None, endless["infinite_reason"].unique())
        yield from (f"{own.label}: no finite epsilon, since {reason}." for reason in reasons)
