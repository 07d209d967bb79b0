"""A finished run as it is on disk, for comparisons, figures and statements. It loads no torch."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import pandas as pd

from securefl.core.errors import ConfigError, DataError
from securefl.core.release import PARTIES
from securefl.core.text_safety import uncell
from securefl.report.accuracy import MEASURES, Measure
from securefl.storage.inputs import content
from securefl.storage.private_folder import PRIVATE, run_config
from securefl.storage.texts import read_text, toml
from securefl.study.publication import PERSONAL

EPSILONS: Final = [f"epsilon_{party}" for party in PARTIES]
_COLUMNS: Final = {"arm", "seed", "round", "accuracy", "bytes_up", "bytes_down", "models", *EPSILONS}


@dataclass(frozen=True, kw_only=True, eq=False)
class Finished:
    """A finished run as it is on disk.

    name: distinct among the compared runs. config: the values of the study by dotted key, those of an arm
    under `arm "NAME".`. metrics: a row for each arm, seed and round. digests: of own records, by name.
    split: the key that drew the test records, if one did.
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
    def personal(self) -> bool:
        """Whether accuracies of it are of personal models."""
        return bool((self.metrics["models"] == PERSONAL).any())

    @property
    def measure(self) -> Measure:
        """The definition of its accuracy."""
        words = str(self.summary.get("accuracy") or "of unknown kind")
        known = {own.words: own for own in MEASURES.values()}
        return known.get(words) or Measure(words, "accuracy", -inf, "one constant answer")

    @property
    def infinite_reason(self) -> dict[str, str]:
        """For each arm, why its epsilon is infinite; empty if it is not."""
        return {arm["name"]: arm.get("infinite_reason", "") for arm in self.summary.get("arms", [])}

    @property
    def over_rounds(self) -> dict[str, list[str]]:
        """For each arm, how contributions of a client, and noise, hang together over rounds, in sentences."""
        return {arm["name"]: arm.get("over_rounds", []) for arm in self.summary.get("arms", [])}


def finished_run(folder: Path, name: str, *, private: bool = True) -> Finished:
    """Read a finished run. private: whether accuracies of personal models are read, if they are here.

    Raises ConfigError for a folder without a finished run, and DataError for a damaged file.
    """
    config, apart = run_config(folder), folder / PRIVATE
    if not (folder / "summary.json").is_file():
        raise ConfigError(
            f"{folder}: not finished; go on with: securefl run {config} --out {folder}. Then compare again."
        )
    text = read_text(config)
    table = toml(text)
    arms = {f"arm {json.dumps(arm.pop('name', ''))}": arm for arm in table.pop("arm", ())}
    flat = pd.json_normalize({**table, **arms}).to_dict("records")[0]
    key, records, metrics = (apart / file for file in ("split.key", "records.json", "metrics.csv"))
    digests = _read(records) if records.is_file() else {}
    # On the machine of the run, with the accuracies of personal models.
    rounds = metrics if private and metrics.is_file() else folder / metrics.name
    return Finished(
        name=name,
        folder=folder,
        text=text,
        config={str(key): value for key, value in flat.items()},
        metrics=_read(rounds),
        summary=_read(folder / "summary.json"),
        digests={name: said for name, said in digests.items() if "SHA-256" in str(said)},
        split=content(key, 4096) if key.is_file() else b"",
    )


def table_of_rounds(raw: bytes) -> pd.DataFrame:
    """The table in the bytes of a metrics.csv, with arms and figures by their own names."""
    # An arm may be called "NA", or have a "#" in its name. Only an empty field is a missing number, and only
    # the first line may be a comment.
    noted, arm = int(raw[:1] == b"#"), {"arm": str}
    found = pd.read_csv(io.BytesIO(raw), skiprows=noted, dtype=arm, keep_default_na=False, na_values=[""])
    return found.map(uncell).rename(columns=uncell)


def _read(path: Path) -> Any:
    """The JSON object or the table of rounds in a file. Raises DataError for a damaged one."""
    is_table, raw = path.suffix == ".csv", content(path, 2**28)
    try:
        found: Any = table_of_rounds(raw) if is_table else json.loads(raw)
        if is_table and ((missing := sorted(_COLUMNS - {*found.columns})) or found.empty):
            raise ValueError(f"no column {', '.join(missing)}." if missing else "no row.")
        if not is_table and not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__}.")
    except ValueError as error:
        what = "a table of rounds" if is_table else "a JSON object"
        again = f"Write it again: securefl report {path.parent}"
        raise DataError(f"{path}: expected {what}, got: {error} {again}") from None
    return found
