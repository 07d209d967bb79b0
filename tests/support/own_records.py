"""Tables and arrays of a person's own, and what a study makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from securefl.data.columns import Column
from securefl.data.in_memory import given
from securefl.data.layout import Layout
from securefl.data.own import Prepared, from_files, prepare
from securefl.data.sides import Sides

COLUMNS = {
    "age": Column(range=(0, 120), missing=40, indicator=True),
    "sex": Column(categories=("f", "m")),
}
LAYOUT = Layout(target=("ill",), classes=("no", "yes"), ignore=("name",), columns=COLUMNS)
BY_CLIENT = replace(LAYOUT, client_column="hospital")
SMALL = Layout(classes=2)


def table(frame: pd.DataFrame, layout: Layout = LAYOUT, **options: Any) -> Prepared:
    return prepare(given(frame, layout, "people"), layout, name="people", sides=Sides(0), **options)


def filed(source: Path, layout: Layout = LAYOUT, test: Path | None = None, **options: Any) -> Prepared:
    found = from_files(source, test, layout, lenient=options.get("claimed", False))
    return prepare(found, layout, name="people", sides=Sides(0), **options)


def of(thing: object, layout: Layout = SMALL, **options: Any) -> Prepared:
    return prepare(given(thing, layout, "mine"), layout, name="mine", sides=Sides(0), **options)


def arrays(n: int = 20, width: int = 3, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, width)), np.arange(n) % 2


class Items(torch.utils.data.Dataset[tuple[Any, int]]):
    """As somebody's torch data set is."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[Any, int]:
        return torch.tensor(self.x[place]), int(self.y[place])
