"""A Dataset refuses what does not fit together; splits are seeded, disjoint and stratified."""

from __future__ import annotations

import numpy as np
import pytest
from support.every import every

from securefl.core.errors import DataError
from securefl.data.dataset import Dataset, hold_out, stratified


def classified(**changes: object) -> Dataset:
    fields: dict[str, object] = {
        "name": "toy",
        "x": np.arange(12, dtype=np.float32).reshape(6, 2),
        "y": np.array([0, 1, 2, 0, 1, 2]),
        "classes": 3,
        "groups": np.array([7, 7, 8, 8, 9, 9]),
    }
    return Dataset(**(fields | changes))  # type: ignore[arg-type]  # some tests pass wrong types on purpose


def test_take_keeps_records_targets_and_groups_together() -> None:
    part = classified().take(np.array([4, 0]))

    assert part.x.tolist() == [[8, 9], [0, 1]]
    assert part.y.tolist() == [1, 0]
    assert part.groups is not None
    assert part.groups.tolist() == [9, 7]
    assert (len(part), part.shape, part.classes) == (2, (2,), 3)


@every(
    ("changes", "expected"),
    [
        ({"x": np.zeros(6, np.float32)}, "shape"),
        ({"x": np.zeros((6, 2), np.float64)}, "float32 or int64"),
        ({"x": np.full((6, 2), np.nan, np.float32)}, "finite values in x"),
        ({"y": np.zeros(6, np.int32)}, "int64"),
        ({"y": np.zeros(5, np.int64)}, "6 labels"),
        ({"y": np.array([0, 1, 2, 0, 1, 3])}, r"labels in \[0, 3\)"),
        ({"y": np.array([0, 1, 2, 0, 1, -1])}, r"labels in \[0, 3\)"),
        ({"groups": np.zeros(5, np.int64)}, "got"),
        ({"groups": np.zeros(6)}, "groups of int64"),
        ({"classes": 0}, "targets y of float32"),
        ({"classes": 0, "y": np.zeros((5, 2), np.float32)}, "targets"),
        ({"classes": 0, "y": np.zeros(6, np.float32)}, "targets"),
        ({"classes": 0, "y": np.full((6, 2), np.inf, np.float32)}, "finite targets"),
    ],
)
def test_fields_that_do_not_fit_are_refused(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        classified(**changes)


def test_a_held_out_part_and_the_rest_make_the_whole() -> None:
    train, test = hold_out(10, 0.3, np.random.default_rng(0))

    assert len(test) == 3
    assert sorted([*train, *test]) == list(range(10))


def test_a_stratified_split_holds_out_the_same_share_of_every_class() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])

    train, test = stratified(labels, 0.3, np.random.default_rng(0))

    assert np.bincount(labels[test]).tolist() == [30, 15, 3]
    assert sorted([*train, *test]) == list(range(160))
