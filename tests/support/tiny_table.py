"""A table of seconds on digits, as an installed package would bring it."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pandas as pd
import pytest

from securefl.published import table as catalogue
from securefl.published.table import Figure, Measure, Part, Row, Table
from support.tiny_study import FEDAVG, FEDPROF, text

ROWS = (
    Row(
        label="Avg",
        arm="FedAvg",
        figures={Measure.BEST: Figure(mean=0.5, deviation=0.01)},
        sends=("update",),
    ),
    Row(
        label="Ours",
        arm="FedProf",
        figures={Measure.BEST: Figure(mean=0.6), Measure.ROUNDS: Figure(mean=None)},
        options={"alpha": 25.0, "fraction": 0.5, "scheme": "II"},
    ),
)


def part(name: str = "one", source: str = "digits", protocol: str = "fedavg", **changes: Any) -> Part:
    study = text(FEDAVG, FEDPROF, **{"seeds": "[1, 2]", **changes})
    return Part(
        name=name,
        text=study.replace('"digits"', f'"{source}"').replace('"fedavg"', f'"{protocol}"'),
        rows=ROWS,
        ours="FedProf",
        setting={"study.rounds": 500, "data.clients": 6, "data.partition.kind": "shards"},
        seeds=5,
    )


def table(*parts: Part, **changes: Any) -> Table:
    values: dict[str, Any] = {
        "title": "Digits",
        "source": "Nobody, Table 1",
        "parts": parts or (part(),),
        "measures": (Measure.BEST, Measure.ROUNDS),
        "minutes": 1,
        "differences": ("Digits in place of everything.",),
    }
    return Table(**{**values, **changes})


TABLE = table()
OTHER = table(part(rounds=3))
"""Another version of the same."""
LACKING = table(part(protocol="fedcorr"))
"""A table of a protocol that nobody has."""
ELSEWHERE = table(part(), part("two", source="mnist"))
"""A table whose second part reads data that has to be fetched."""


def install(monkeypatch: pytest.MonkeyPatch, **tables: str) -> None:
    """Install these tables, each by the name of a constant here, and no others."""
    own = [EntryPoint(name, f"{__name__}:{constant}", "securefl.tables") for name, constant in tables.items()]
    others = catalogue.entry_points

    def found(*, group: str) -> Any:
        return own if group == "securefl.tables" else others(group=group)

    monkeypatch.setattr(catalogue, "entry_points", found)


def metrics(**accuracies: list[list[float]]) -> pd.DataFrame:
    """Metrics as a study leaves them: by arm, a list of accuracies for each seed; 60 s, 0.5 Wh, 1 MB up and
    2 MB down a round."""
    spent = {"seconds": 60.0, "watt_hours": 0.5, "bytes_up": 10**6, "bytes_down": 2 * 10**6, "megabytes": 3.0}
    rows = [
        {"arm": arm, "seed": seed, "round": number, "accuracy": value, **spent}
        for arm, runs in accuracies.items()
        for seed, run in enumerate(runs)
        for number, value in enumerate(run, start=1)
    ]
    return pd.DataFrame(rows)
