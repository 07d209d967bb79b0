"""A person's own records: cast, declared, and never learnt over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.every import every
from support.own_records import BY_CLIENT, SMALL, Items, arrays, filed, of, table
from support.own_study import people

from securefl.core.errors import ConfigError
from securefl.data import Dataset, Split
from securefl.data.own import Prepared


def whole(made: Prepared) -> Dataset:
    """All records in the order of their first value."""
    both = [np.concatenate(parts) for parts in zip(*((p.x, p.y) for p in _parts(made)), strict=True)]
    order = np.lexsort(both[0].T)
    return replace(made.split.train, x=both[0][order], y=both[1][order], groups=None)


def _parts(made: Prepared) -> tuple[Dataset, Dataset]:
    return made.split.train, made.split.test


def test_one_record_moves_no_other() -> None:
    """Nothing is learnt: the same record has the same numbers, whatever stands beside it."""
    frame = people().drop(columns="hospital")
    more = pd.concat([frame, frame.iloc[[0]].assign(age=1e6, dose=-1e6)], ignore_index=True)
    rows = {tuple(row) for part in _parts(table(frame)) for row in part.x}
    assert rows < {tuple(row) for part in _parts(table(more)) for row in part.x}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_gives_what_the_table_gives(tmp_path: Path, suffix: str) -> None:
    frame, path = people(), tmp_path / f"people{suffix}"
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    else:
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    made = filed(path, BY_CLIENT)
    assert made.digest == table(frame, BY_CLIENT).digest
    assert made.clients == ("north", "south", "west")


def test_a_file_for_each_client_in_the_order_of_names(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for name, own_frame in people().groupby("hospital"):
        own_frame.drop(columns="hospital").to_parquet(tmp_path / f"{name}.parquet")
    (tmp_path / ".hidden").touch()
    made = filed(tmp_path)
    assert made.clients == ("north.parquet", "south.parquet", "west.parquet")
    assert made.split.train.groups is not None
    assert np.bincount(made.split.train.groups).min() > 0


def test_clients_that_are_numbers_come_in_their_order() -> None:
    frame = people().assign(hospital=[f"{k % 12}" for k in range(60)])
    assert table(frame, BY_CLIENT).clients == tuple(str(k) for k in range(12))


def test_arrays_of_a_npz(tmp_path: Path) -> None:
    x, y = arrays()
    np.savez(tmp_path / "mine.npz", x=x, y=y, whose=np.repeat(["b", "a"], 10))
    layout = replace(SMALL, client_column="whose")
    made = filed(tmp_path / "mine.npz", layout)
    assert made.clients == ("a", "b")
    np.savez(tmp_path / "test.npz", x=x[:5], y=y[:5])
    assert len(filed(tmp_path / "mine.npz", layout, tmp_path / "test.npz").split.test) == 5


class Face:
    """What a study reads of a Hugging Face data set."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = columns

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def with_format(self, _kind: str) -> Face:
        return self

    def __getitem__(self, _all: slice) -> Mapping[str, Any]:
        return self.columns


NAMED = replace(SMALL, target=("label",))
FORMS: dict[str, Callable[[Any, Any], object]] = {
    "pair": lambda x, y: (x, y),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "mapping": lambda x, y: {"x": x, "y": y},
    "tensors": lambda x, y: (torch.tensor(x), torch.tensor(y)),
    "labels as floats": lambda x, y: (x, y.astype(float)),
    "labels as truth values": lambda x, y: (x, y > 0),
    "labels in a column": lambda x, y: (x, y[:, None]),
    "torch": Items,
    "tensor data set": lambda x, y: torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y)),
    "data set": lambda x, y: Dataset(name="mine", x=x.astype(np.float32), y=y, classes=2),
    "table": lambda x, y: pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "label": y}),
    "face": lambda x, y: Face({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "label": y}),
    "face with arrays": lambda x, y: Face({"pixels": x, "label": y}),
}


@every("form", FORMS)
def test_every_form_is_the_same_records(form: str) -> None:
    x, y = arrays()
    found, wanted = whole(of(FORMS[form](x, y), NAMED)), whole(of((x, y)))
    assert np.array_equal(found.x, wanted.x)
    assert np.array_equal(found.y, wanted.y)


@every("form", FORMS)
def test_every_form_may_be_a_clients(form: str) -> None:
    clients = [FORMS[form](*arrays(seed=seed)) for seed in range(3)]
    made = of(clients, NAMED)
    assert len(made.clients) == 3
    assert len(of({"train": clients, "test": FORMS[form](*arrays(7))}, NAMED).split.test) == 7
    assert len(of(tuple(clients[:2]), NAMED).clients) == 2


def test_a_split_keeps_its_test_part() -> None:
    data = Dataset(name="mine", x=np.ones((4, 2), np.float32), y=np.arange(4) % 2, classes=2)
    assert len(of(Split(train=data, test=data)).split.test) == 4
    with pytest.raises(ConfigError, match="got both"):
        of(Split(train=data, test=data), share=0.5)


def test_what_a_data_set_was_fitted_on_is_still_said() -> None:
    data = Dataset(
        name="mine",
        x=np.arange(18, dtype=np.float32).reshape(9, 2),
        y=np.arange(9) % 2,
        classes=2,
        fitted="a mean",
    )
    assert of([data, data]).split.train.fitted == "a mean"


def test_each_client_gives_its_share_to_the_test_part() -> None:
    made = of([arrays(1000, seed=1), arrays(2000, seed=2)], share=0.3)
    assert made.split.train.groups is not None
    # Five standard deviations of a binomial: one key in a million leaves more or fewer.
    for kept, n in zip(np.bincount(made.split.train.groups), (1000, 2000), strict=True):
        assert abs(kept - 0.7 * n) < 5 * np.sqrt(0.21 * n)


def test_a_digest_follows_the_records() -> None:
    x, y = arrays()
    changed = x.copy()
    changed[3, 1] += 1e-3
    assert of((x, y)).digest == of((x.copy(), y)).digest
    assert of((x, y)).digest != of((changed, y)).digest
    halves, thirds = (of([(x[:n], y[:n]), (x[n:], y[n:])]).digest for n in (len(x) // 2, len(x) // 3))
    assert halves != thirds, "the same records of other clients"


def test_what_a_person_should_know_is_noted() -> None:
    notes = " ".join(table(people().drop(columns="hospital").assign(flat=3)).notes)
    assert "'dose', 'flat': numbers used without scaling" in notes
    assert "'flat': equal in all training records" in notes
