"""`Dataset` and `Split`: records, targets and the person behind each record, as a train and a test part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.core.text_safety import is_legible

Index = NDArray[np.int64]
Task = Literal["classification", "regression", "multi-label"]
TARGETS: Final = {
    "classification": "one class of each record",
    "regression": "numeric targets",
    "multi-label": "several labels of each record",
}
"""What a record is answered by in each task, in words."""
"""The kind of a learning problem. It decides the loss and the accuracy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Records with targets, checked once at construction.

    >>> from securefl.data import Dataset
    >>> import numpy as np
    >>> x, y = np.zeros((3, 2), np.float32), np.array([0, 1, 1])
    >>> data = Dataset(name="two sensors", x=x, y=y, classes=2)
    >>> len(data), data.shape, data.take(np.array([2, 0])).y.tolist()
    (3, (2,), [1, 0])

    Args:
        name: The name of the data set.
        x: Records, shape (n, *shape). float32 for images, shape (n, channels, height, width) with pixels in
            [0, 1], and for sensor rows, shape (n, features). int64 for text, shape (n, characters): each
            entry is the position of a character in the vocabulary.
        y: int64 class labels of shape (n,) in [0, classes), or float32 targets of shape (n, targets).
        classes: Number of classes. 0 means a regression, or several labels.
        multi_label: Whether each target is a label of its own, 1 if the record has it and 0 if not.
        groups: int64 of shape (n,): the person that wrote or spoke each record. None if that is unknown.
        holders: Number of persons that may hold records, numbered as in `groups`. Some may have no record. 0
            means the persons in `groups`.
        lenient: Whether x and y may hold unusable records: values that are not finite, or no known label.
            Such a record counts as zero in every computation. A study with a finite epsilon needs this, since
            an error would reveal a record.
        fitted: The statistics that the preparation computed over all records, in words. Empty if the
            preparation uses public constants alone. Such a statistic is a release without noise: a study with
            a finite epsilon refuses the data set.

    Raises:
        DataError: Shapes, types, the label range or finiteness do not hold, or the name is not printable.
    """

    name: str
    x: NDArray[Any]
    y: NDArray[Any]
    classes: int
    multi_label: bool = False
    groups: NDArray[np.int64] | None = None
    holders: int = 0
    lenient: bool = False
    fitted: str = ""

    def __post_init__(self) -> None:
        if not is_legible(self.name):
            raise DataError(f"Expected a data set's name of printable letters, got {self.name!r}.")
        # Checked once here, so that later code needs no check of a record.
        n, x, y, groups = len(self.x), self.x, self.y, self.groups
        fits = x.ndim >= 2 and x.dtype in (np.float32, np.int64)
        self._require(fits, f"x of float32 or int64 and of shape (n, *shape), got {x.dtype} {x.shape}")
        if self.classes:
            self._require(
                y.dtype == np.int64 and y.shape == (n,), f"{n} labels y of int64, got {y.dtype} {y.shape}"
            )
            within = self.lenient or not n or 0 <= y.min() <= y.max() < self.classes
            self._require(bool(within), f"labels in [0, {self.classes}), got one outside")
        else:
            fits = y.dtype == np.float32 and y.ndim == 2 and len(y) == n
            self._require(fits, f"targets y of float32 and of shape ({n}, targets), got {y.dtype} {y.shape}")
        if self.multi_label:
            within = not self.classes and (self.lenient or bool(np.isin(y, (0, 1)).all()))
            self._require(within, "classes = 0 and labels of 0 and 1 for multi_label, got others")
        for what, values in (("values in x", x), ("targets y", y)):
            self._require(
                self.lenient or bool(np.isfinite(values).all()), f"finite {what}, got NaN or infinity"
            )
        if groups is not None:
            fits = groups.dtype == np.int64 and groups.shape == (n,)
            self._require(fits, f"{n} groups of int64, got {groups.dtype} {groups.shape}")
            known = not self.holders or not n or 0 <= groups.min() <= groups.max() < self.holders
            self._require(bool(known), f"groups in [0, {self.holders}), got one outside")

    def _require(self, holds: bool, expected: str) -> None:
        if not holds:
            raise DataError(f"Data set {self.name}: expected {expected}.")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record."""
        return tuple(self.x.shape[1:])

    @property
    def task(self) -> Task:
        """The kind of the learning problem."""
        if self.classes:
            return "classification"
        return "multi-label" if self.multi_label else "regression"

    @property
    def usable(self) -> NDArray[np.bool_]:
        """bool (n,): which records are finite and have a known label. The others count as zero."""
        return finite_rows(self.x) & labelled(self.y, self.task, self.classes)

    def take(self, index: NDArray[np.integer[Any]] | slice) -> Dataset:
        """Return some of the records, in this order, with their targets and groups.

        Args:
            index: the records' places, integers (m,), or a slice.

        Raises:
            IndexError: a place is not within the data set (numpy raises it).
        """
        groups = None if self.groups is None else self.groups[index]
        return replace(self, x=self.x[index], y=self.y[index], groups=groups)


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """The two parts of a data set. The clients share `train`. The server owns `test`.

    >>> from securefl.data import load
    >>> split = load("digits")  # it returns a Split
    >>> len(split.train), len(split.test)
    (1258, 539)

    Raises nothing.
    """

    train: Dataset
    test: Dataset


def finite_rows(x: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask (n,) of the records (n, *shape) that hold neither NaN nor infinity."""
    return np.asarray(np.isfinite(x).all(axis=tuple(range(1, x.ndim))))


def whole_numbers(
    x: NDArray[Any], y: NDArray[Any], name: str, *, lenient: bool = False
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Convert records of codes, such as the words of a text, to int64, for a model that reads whole numbers.

    Args:
        x: Records (n, *shape), int64 or float32.
        y: Their targets, (n,) or (n, targets).
        name: The name of the data set, for errors.
        lenient: Whether another value is no error, but makes the record unusable: its target becomes unknown.

    Returns:
        The records, int64 (n, *shape), and the targets.

    Raises:
        DataError: A value is no whole number from 0 to 2^24 - 1. float32 holds no others exactly.
    """
    if x.dtype == np.int64:
        return x, y
    fits = (x >= 0) & (x < 2**24) & (x == np.trunc(x))
    if not lenient and not fits.all():
        row, *place = np.argwhere(~fits)[0].tolist()
        raise DataError(
            f"{name}: expected whole numbers from 0 to {2**24 - 1:,}, since the model reads codes, got "
            f"{x[row, *place]:g} in record {row + 1} at {tuple(place)}. Correct the record, leave out a "
            "`range` or `scaling`, or have the model read real numbers and take codes by x[:, 0].long()."
        )
    bad, y = ~fits.all(axis=tuple(range(1, x.ndim))), y.copy()
    y[bad] = -1 if y.dtype == np.int64 else np.nan
    return np.where(fits, x, 0).astype(np.int64), y


def labelled(y: NDArray[Any], task: Task, classes: int) -> NDArray[np.bool_]:
    """A mask (n,) of the targets that are known: one of `classes` labels, labels of 0 and 1, or finite."""
    match task:
        case "classification":
            return np.asarray((y >= 0) & (y < classes))
        case "multi-label":
            return np.asarray(np.isin(y, (0, 1)).all(1))
        case "regression":
            return finite_rows(y)


def hold_out(n: int, share: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """Draw a uniform split with round(share * n) test records. Returns sorted (train, test) positions."""
    order = rng.permutation(n)
    count = round(share * n)
    return np.sort(order[count:]), np.sort(order[:count])


def stratified(labels: Index, share: float, rng: np.random.Generator) -> tuple[Index, Index]:
    """Draw a split with round(share * class size) test records a class: sorted (train, test) positions."""
    train, test = [], []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        kept, held = hold_out(len(members), share, rng)
        train.append(members[kept])
        test.append(members[held])
    return np.sort(np.concatenate(train)), np.sort(np.concatenate(test))
