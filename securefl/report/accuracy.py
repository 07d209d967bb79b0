"""The definition of accuracy in words, for axes and sentences. `training.evaluation` computes it.

It is apart from the computation, so that a reader of finished runs does not load torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Final


@dataclass(frozen=True)
class Measure:
    """The definition of "accuracy": a phrase that follows "it is", a label for an axis, and the least value.

    The largest value is 1. constant: the constant answer that has the best accuracy.
    """

    words: str
    axis: str
    least: float
    constant: str


MEASURES: Final[Mapping[str, Measure]] = {
    "classification": Measure(
        "the share of test records whose class is right",
        "accuracy (share, 0 to 1)",
        0.0,
        "the most frequent class",
    ),
    "regression": Measure(
        "the mean of 1 − |y − ŷ| / max(y, ŷ) over test records and targets, which are scaled to [0, 1] "
        "(FedProf's accuracy of a regression)",
        "accuracy, mean of 1 − |y − ŷ| / max(y, ŷ)",
        -inf,
        "the targets' mean",
    ),
    "multi-label": Measure(
        "the share of test records of which all labels are right",
        "accuracy (share, 0 to 1)",
        0.0,
        "the most frequent labels of a record",
    ),
}
"""The accuracy that `training.evaluation.evaluate` computes, by kind of problem (`Task`)."""


def joint(measures: Iterable[Measure]) -> Measure:
    """One measure for figures over several kinds of problems."""
    first, *others = sorted({*measures}, key=lambda own: -own.least)
    if not others:
        return first
    words = " or, if targets are not classes, ".join(own.words for own in (first, *others))
    return replace(others[-1], words=words, axis="accuracy, as each data set has it")
