"""Studies on a person's own records and model, as a new user writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

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


def folder(home: Path, *, data: str = DATA, extra: str = "", rounds: int = 2) -> Path:
    """A folder with records, model and study, as a new user has it. Returns the study's path."""
    home.mkdir(parents=True, exist_ok=True)
    people().drop(columns="hospital").to_csv(home / "people.csv", index=False)
    (home / "net.py").write_text(NET, encoding="utf-8")
    study = home / "study.toml"
    study.write_text(written(data=data, extra=extra, rounds=rounds), encoding="utf-8")
    return study
