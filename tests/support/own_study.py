"""Studies on a person's own records and model, as a new user writes them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from support.tiny_study import FEDAVG, text

NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, inputs, outputs, width=4):
        super().__init__()
        self.body = nn.Linear(inputs, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.body(x).relu())
"""
DATA = """
[data]
source = "people.csv"
target = "ill"
classes = ["no", "yes"]
ignore = ["name"]
clients = 4
partition = { kind = "iid" }
[data.columns]
age = { range = [0, 120], missing = 40, indicator = true }
sex = { categories = ["f", "m"] }
"""
MODEL = '[model]\nkind = "net:Net"\n'


def people(n: int = 60, seed: int = 0) -> pd.DataFrame:
    """Records whose target follows from age, with a client each."""
    rng = np.random.default_rng(seed)
    age = rng.integers(1, 99, n)
    return pd.DataFrame(
        {
            "name": [f"person {k}" for k in range(n)],
            "age": age,
            "sex": rng.choice(["f", "m"], n),
            "dose": rng.normal(0, 1, n).round(3),
            "hospital": rng.choice(["north", "south", "west"], n),
            "ill": np.where(age > 50, "yes", "no"),
        }
    )


def written(*, data: str = DATA, model: str = MODEL, extra: str = "", rounds: int = 2) -> str:
    """The tiny study's TOML on these records, with this model."""
    whole = text(FEDAVG, rounds=rounds, extra=extra)
    head, _, rest = whole.partition("[data]")
    return head + data + model + "[local]" + rest.partition("[local]")[2]


def folder(home: Path, *, data: str = DATA, model: str = MODEL, extra: str = "", rounds: int = 2) -> Path:
    """A folder with records, model and study, as a new user has it. Returns the study's path."""
    home.mkdir(parents=True, exist_ok=True)
    people().drop(columns="hospital").to_csv(home / "people.csv", index=False)
    (home / "net.py").write_text(NET, encoding="utf-8")
    study = home / "study.toml"
    study.write_text(written(data=data, model=model, extra=extra, rounds=rounds), encoding="utf-8")
    return study


@contextmanager
def installed(home: Path, name: str, source: str, points: str = "") -> Iterator[Path]:
    """A package `name` as pip would install it in `home`, with these entry points, for a while."""
    (home / name).mkdir(parents=True)
    (home / name / "__init__.py").write_text(source, encoding="utf-8")
    about = home / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (about / "RECORD").write_text(f"{name}/__init__.py,,\n", encoding="utf-8")
    (about / "top_level.txt").write_text(f"{name}\n", encoding="utf-8")
    (about / "entry_points.txt").write_text(points, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(home)
        yield home
    sys.modules.pop(name, None)
