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
- Under `update_bound` the ternary value is scaled down to the bound. The residual is what the value without a
  bound leaves.

F. Sattler, S. Wiedemann, K.-R. Müller and W. Samek: Robust and Communication-Efficient Federated Learning
from Non-IID Data. IEEE Transactions on Neural Networks and Learning Systems, 2019. arXiv 1903.02891.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from securefl.algorithm import Algorithm, Float32s, Floats, Value, ValueSpec
from securefl.core.ranges import Fraction
from securefl.errors import DataError
from securefl.protocols.averaging import Averaging, Options
from securefl.protocols.compression import Compressed, entries, largest
from securefl.protocols.contributions import bounded
from securefl.training import Problem


@dataclass(frozen=True, kw_only=True)
class STC(Options):
    """Options of STC.

    p: share of the entries that are sent, up and down. The paper takes 1/400.
    """

    p: Fraction = 0.0025

    def build(self, problem: Problem) -> Algorithm:
        part = Compressed(problem, phases=(Ternary(problem, self.p),))
        return Averaging(problem=problem, fraction=self.fraction, part=part)


def ternary(whole: Floats, p: float) -> Floats:
    """The top share p of the values by size, at least one, as mu times their signs. All others are 0.

    mu is the mean of their sizes (Algorithm 1).
    """
    found = np.zeros(len(whole))
    top = largest(whole, entries(p, len(whole)))
    found[top] = np.abs(whole[top]).mean() * np.sign(whole[top])
    return found


@dataclass(frozen=True, eq=False)
class Ternary:
    """STC's compression of a model's update (d,)."""

    problem: Problem
    p: float

    @property
    def size(self) -> int:
        return len(self.problem.initial)

    @property
    def nonzero(self) -> int:
        return entries(self.p, self.size)

    def spec(self, update: ValueSpec) -> ValueSpec:
        return replace(
            update,
            reveals="the signs of the largest entries of its model update and residual, and which these are",
            packed=True,
        )

    def sent(self, whole: Floats) -> tuple[Float32s, Floats]:
        found = ternary(whole, self.p).astype(np.float32)
        return found, found.astype(np.float64)

    def value(self, numbers: Float32s | DataError) -> Value:
        return bounded(self.problem, np.zeros(self.size, np.float32), numbers)

    def change(self, mean: Floats, residual: Floats) -> tuple[Float32s, Floats]:
        """The ternary part of mean and residual. What it leaves is the next residual."""
        whole = residual + mean
        change = ternary(whole, self.p).astype(np.float32)
        return change, whole - change
