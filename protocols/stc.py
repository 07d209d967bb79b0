"""STC, sparse ternary compression (Sattler et al. 2019): the largest entries, as signs of one size.

A client adds its residual to its update. It sends the top share p of the entries by size, each replaced by
mu times its sign, where mu is the mean of their sizes, and keeps the rest as its residual. The server does
the same with the mean of the clients' values and a residual of its own (Algorithm 2). Positions are coded as
gaps in Golomb code (Algorithm 3), in both directions.

Differences from the paper:

- In hidden sums a client's value travels with all its zeros, since its positions tell of its records. Golomb
  code is then used on the way down only.
- A client that missed rounds gets their changes one by one, and not their sum, which is as exact and longer.
  All clients of a cohort get the same changes (`compression`).
- The authors' code compresses each tensor by itself, and sends all entries that are as large as the last one
  of the top: `per_tensor` and `ties`, the preset "authors". If that last one is 0, it also sends -mu for
  each 0. Here a 0 stays 0.
- Running statistics of batch norm are averaged as they are: they are no weights, and one size for all would
  make variances zero.
- Under `update_bound` the ternary value is scaled down to the bound. The residual is what the value without a
  bound leaves.

F. Sattler, S. Wiedemann, K.-R. Müller and W. Samek: Robust and Communication-Efficient Federated Learning
from Non-IID Data. IEEE Transactions on Neural Networks and Learning Systems, 2019. arXiv 1903.02891.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm import Algorithm, Float32s, Floats, Value, ValueSpec
from securefl.core.ranges import Fraction
from securefl.errors import DataError
from securefl.protocols.averaging import Averaging, Options
from securefl.protocols.compression import Compressed, entries, largest
from securefl.protocols.contributions import bounded
from securefl.training import Problem, trained_state


@dataclass(frozen=True, kw_only=True)
class STC(Options):
    """Options of STC.

    p: share of the entries that are sent, up and down. The paper takes 1/400.
    per_tensor: whether each tensor, such as a layer's weights, is compressed by itself, with a mu of its own.
        Of its n entries ceil(p n) are sent. Otherwise the whole model is compressed at once.
    ties: whether entries as large as the last one of the top are sent too. Otherwise the first of them are.
        The mean of a few ternary values has many equal entries.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "authors": {"per_tensor": True, "ties": True},
    }
    p: Fraction = 0.0025
    per_tensor: bool = False
    ties: bool = False

    def build(self, problem: Problem) -> Algorithm:
        part = Compressed(problem, phases=(Ternary(problem, self),))
        return Averaging(problem=problem, fraction=self.fraction, part=part)


def ternary(whole: Floats, count: int, *, ties: bool = False) -> Floats:
    """The `count` largest values by size as mu times their signs. All others are 0.

    mu is the mean of their sizes (Algorithm 1). ties: whether equals of the last of them are sent too.
    """
    found, sizes = np.zeros(len(whole)), np.abs(whole)
    top = largest(whole, count)
    mu = sizes[top].mean()
    if ties:
        top = np.flatnonzero(sizes >= sizes[top].min())
    found[top] = mu * np.sign(whole[top])
    return found


@dataclass(frozen=True, eq=False)
class Ternary:
    """STC's compression of a model's update (d,)."""

    problem: Problem
    options: STC

    @property
    def size(self) -> int:
        return len(self.problem.initial)

    @property
    def nonzero(self) -> int:
        """Without ties."""
        return len(self.problem.averaged[0]) + sum(count for _, count in self._parts)

    @cached_property
    def _parts(self) -> Sequence[tuple[NDArray[np.int64], int]]:
        """The places of each part that is compressed by itself, and how many of its entries are sent."""
        p, averaged = self.options.p, self.problem.averaged[0]
        if not self.options.per_tensor:
            weights = np.setdiff1d(np.arange(self.size), averaged)
            return [(weights, entries(p, len(weights)))]
        ends = np.cumsum([entry.numel() for entry in trained_state(self.problem.layers).values()])
        tensors = np.split(np.arange(self.size), ends[:-1])
        return [(own, ceil(p * len(own) - 1e-9)) for own in tensors if not np.isin(own, averaged).any()]

    def _ternary(self, whole: Floats) -> Floats:
        found = whole.copy()
        for places, count in self._parts:
            found[places] = ternary(whole[places], count, ties=self.options.ties)
        return found

    def spec(self, update: ValueSpec) -> ValueSpec:
        reveals = "the signs of the largest entries of its model update and residual, and which these are"
        if len(self.problem.averaged[0]):
            reveals += "; the step of its batch norm's running statistics"
        return replace(update, reveals=reveals, packed=True)

    def sent(self, whole: Floats) -> tuple[Float32s, Floats]:
        found = self._ternary(whole).astype(np.float32)
        return found, found.astype(np.float64)

    def value(self, numbers: Float32s | DataError) -> Value:
        return bounded(self.problem, np.zeros(self.size, np.float32), numbers)

    def change(self, mean: Floats, residual: Floats) -> tuple[Float32s, Floats]:
        """The ternary part of mean and residual. What it leaves is the next residual."""
        whole = residual + mean
        change = self._ternary(whole).astype(np.float32)
        return change, whole - change
