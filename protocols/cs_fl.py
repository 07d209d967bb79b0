"""CS-FL (Li, Li and Varshney 2021): random sketches of sparse updates, and recovery of their mean.

A client adds its residual to its update. Of the sum it takes s, the `sparsity` share of the entries with the
largest sizes, and sends the sketch y = A s, or the signs of y. The rest is its next residual. The server
takes the mean of the sketches and recovers a sparse step from it: by iterative hard thresholding (Blumensath
and Davies), or from signs by binary iterative hard thresholding (Jacques et al.). In the second phase the
`sparsity` share of the largest entries of the step and the server's residual goes down. Sketches are linear:
the sum of the clients' sketches is the sketch of the clients' sum, whether it is hidden or not.

Differences from the source, which this project knows from FedLog's description of its baselines and from the
code of FedLog's authors:

- That code keeps the entries above a size, 0.005; here `sparsity` is a share of them. It carries no residual
  from round to round: in its second phase clients train again and send the signs of update and residual, all
  d of them, and the server moves by the learning rate along the sign of their mean. Its server moves by the
  recovered step times the learning rate. Its A is drawn anew in each round.
- A is not a dense Gaussian matrix, which for d = 500,000 would take 100 GB. It is `rows` random rows of the
  cosine transform behind random signs, sqrt(d / rows) R C D, from the public seed. It takes O(d) memory and
  O(d log d) time, and its columns have unit length on average.
- The server recovers as many entries as the sketches of all clients have together, K * sparsity * d, but at
  most a tenth of the rows, or a twentieth of those of signs: beyond that, thresholding does not recover.
- The change goes down as positions and values, which take fewer bytes than a sketch and are exact.
- Signs carry no length, so the server's step from them has the norm `step_norm`.

C. Li, G. Li and P. K. Varshney: Communication-Efficient Federated Learning Based on Compressed Sensing. IEEE
Internet of Things Journal 8 (20), 2021. T. Blumensath and M. E. Davies: Normalized Iterative Hard
Thresholding, IEEE JSTSP 4 (2), 2010. L. Jacques et al.: Robust 1-Bit Compressive Sensing via Binary Stable
Embeddings of Sparse Vectors, IEEE Transactions on Information Theory 59 (4), 2013.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from securefl.algorithm import Adjacency, Algorithm, Float32s, Floats, Grid, Unit, Value, ValueSpec
from securefl.errors import ConfigError, DataError
from securefl.protocols.averaging import check_fraction, cohort_size
from securefl.protocols.compression import CompressedAveraging, check_share, entries, thresholded
from securefl.protocols.contributions import bounded
from securefl.training import Problem

ROWS, ROWS_OF_SIGNS = 10, 20
"""The rows of a sketch for each entry that is recovered, of numbers and of signs.

With fewer, thresholding finds wrong entries: of 10 entries among 2,000 it fails for nearly every sketch with
5 rows for each, for two in five with 8 if all entries are as large, and for one in twenty with 10. From 10
rows of signs for each entry it finds a direction of cosine 0.7 to the true one, from 20 of 0.92.
"""
_SIGNS: Final = Grid(step=2.0**-10, bound=2.0**14)
"""The grid of signs. A step is small against any noise, and the noise stays within the bound."""


@dataclass(frozen=True, kw_only=True)
class CSFL:
    """Options of CS-FL.

    fraction: C; K = ceil(C N) clients a round.
    measurements: the length of a sketch, as a share of the model's values.
    sparsity: share of the entries that are sketched, and of those that go down.
    signs: whether the signs of a sketch are sent in its place.
    step_norm: the norm of the server's step from signs.
    """

    fraction: float
    measurements: float = 0.1
    sparsity: float = 0.005
    signs: bool = False
    step_norm: float = 1.0

    def __post_init__(self) -> None:
        check_fraction(self.fraction)
        check_share("measurements", self.measurements)
        check_share("sparsity", self.sparsity)
        if not 0 < self.step_norm < np.inf:
            raise ValueError(f"Expected step_norm > 0, got {self.step_norm}. Write a norm such as 1.0.")

    def build(self, problem: Problem) -> Algorithm:
        d = len(problem.initial)
        sketch = Sketch(seed=problem.seed, rows=ceil(self.measurements * d - 1e-9), size=d)
        kept = entries(self.sparsity, d)
        each = ROWS_OF_SIGNS if self.signs else ROWS
        if sketch.rows < each * kept:
            raise ConfigError(
                f"Expected sketches of at least {each * kept} numbers, {each} for each of {kept} "
                f"entries, got {sketch.rows}: so small a sketch does not give the entries back. Raise "
                "`measurements` or lower `sparsity`."
            )
        together = kept * cohort_size(self.fraction, problem.clients)
        return CompressedAveraging(
            problem=problem,
            compression=Sketched(
                problem=problem,
                sketch=sketch,
                sparsity=self.sparsity,
                recovered=min(together, sketch.rows // each),
                step_norm=self.step_norm if self.signs else None,
            ),
            fraction=self.fraction,
        )


# Sketches ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """The public matrix A (rows, size), as a product of fast maps.

    seed: of its signs and of its rows.
    """

    seed: int
    rows: int
    size: int

    @cached_property
    def _drawn(self) -> tuple[Floats, NDArray[np.int64]]:
        """The signs (size,) and the rows of the cosine transform (rows,)."""
        rng = np.random.default_rng((self.seed, self.rows, self.size))
        signs = rng.choice(np.array([-1.0, 1.0]), self.size)
        return signs, np.sort(rng.choice(self.size, self.rows, replace=False))

    def of(self, vector: Floats) -> Floats:
        """A x, (rows,)."""
        signs, rows = self._drawn
        found: Floats = fft.dct(signs * vector, norm="ortho")[rows] * sqrt(self.size / self.rows)
        return found

    def back(self, numbers: Floats) -> Floats:
        """A^T y, (size,)."""
        signs, rows = self._drawn
        spread = np.zeros(self.size)
        spread[rows] = numbers * sqrt(self.size / self.rows)
        found: Floats = signs * fft.idct(spread, norm="ortho")
        return found


def recover(sketch: Sketch, y: Floats, count: int, steps: int = 60) -> Floats:
    """A vector (size,) of at most `count` nonzero values whose sketch is near y: normalised IHT.

    Each step goes along the slope of |y - A x|^2 as far as is best on the entries that are nonzero, and keeps
    the `count` largest values. It ends early if the residual no longer falls.
    """
    found, left = np.zeros(sketch.size), y
    for _ in range(steps):
        slope = sketch.back(left)
        there = found != 0 if found.any() else thresholded(slope, count) != 0
        along = np.where(there, slope, 0.0)
        length = float(np.sum(sketch.of(along) ** 2))
        if length == 0:
            return found
        rate = float(np.sum(along**2)) / length
        # a step that changes the places may be too long: it is halved until the residual falls
        while True:
            tried = thresholded(found + rate * slope, count)
            rest = y - sketch.of(tried)
            if np.sum(rest**2) < np.sum(left**2):
                break
            rate /= 2
            if rate < 1e-6:
                return found
        fallen = 1 - np.sum(rest**2) / np.sum(left**2)
        found, left = tried, rest
        if fallen < 1e-6:
            break
    return found


def recover_from_signs(sketch: Sketch, y: Floats, count: int, steps: int = 60) -> Floats:
    """A vector (size,) of norm 1 and `count` nonzero values whose sketch has signs near y: binary IHT.

    y is a vector of signs or a mean of such vectors, and 0 gives 0.
    """
    if not y.any():
        return np.zeros(sketch.size)
    found = thresholded(sketch.back(y), count)
    best, least = found, np.inf
    for _ in range(steps):
        wrong = y - np.sign(sketch.of(found))
        if (miss := float(np.sum(np.abs(wrong)))) < least:
            best, least = found, miss
        found = found / np.linalg.norm(found)
        found = thresholded(found + sketch.back(wrong) / sqrt(sketch.rows), count)
    return np.asarray(best / np.linalg.norm(best))


# The compression ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Sketched:
    """CS-FL's compression. `recovered` is the number of entries of a step.

    step_norm: the norm of a step that is recovered from signs. None if sketches are sent as they are.
    """

    problem: Problem
    sketch: Sketch
    sparsity: float
    recovered: int
    step_norm: float | None = None

    @property
    def size(self) -> int:
        return self.sketch.rows

    @property
    def nonzero(self) -> int:
        return self.size

    def spec(self, update: ValueSpec) -> ValueSpec:
        which = "a sketch" if self.step_norm is None else "the signs of a sketch"
        whole = "the largest entries of its model update and residual (they can be recovered from it)"
        found = replace(update, reveals=f"{which} of {whole}")
        if self.step_norm is None:
            return found
        norm = sqrt(self.size)
        moved: Mapping[tuple[Unit, Adjacency], float] = {
            ("client", "zero-out"): norm,
            ("client", "replace-one"): 2 * norm,
        }
        return replace(found, sensitivity=moved, grid=_SIGNS)

    def sent(self, whole: Floats) -> tuple[Float32s, Floats]:
        part = thresholded(whole, entries(self.sparsity, len(whole)))
        y = self.sketch.of(part)
        with np.errstate(over="ignore"):  # infinite numbers are refused, or sent as zeros
            return (y if self.step_norm is None else np.sign(y)).astype(np.float32), part

    def value(self, numbers: Float32s | DataError) -> Value:
        if self.step_norm is None:
            return bounded(self.problem, np.zeros(self.size, np.float32), numbers)
        if isinstance(numbers, DataError):
            if self.problem.local.update_bound is None and self.problem.private is None:
                raise numbers
            numbers = np.zeros(self.size, np.float32)
        return Value(integers=(numbers / _SIGNS.step).astype(np.int64))

    def step(self, mean: Floats) -> Floats:
        if self.step_norm is None:
            return recover(self.sketch, mean, self.recovered)
        return self.step_norm * recover_from_signs(self.sketch, mean, self.recovered)

    def change(self, whole: Floats) -> Float32s:
        return thresholded(whole, entries(self.sparsity, len(whole))).astype(np.float32)
