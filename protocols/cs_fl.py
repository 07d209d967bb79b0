"""CS-FL (Li, Li and Varshney 2021): sketches of sparse updates, then votes on the sign of every entry.

A round has two phases, and clients train in both. In the first a client takes s, the `sparsity` share of the
entries of its update with the largest sizes, and sends the sketch y = A s, or the signs of y (1-bit CS-FL).
The rest of its update is its residual. The server takes the mean of the sketches and recovers a sparse step
from it: by iterative hard thresholding (Blumensath and Davies), or from signs by binary iterative hard
thresholding (Jacques et al.). The model moves by `sketch_rate` times the step. In the second phase a client
trains from that model and sends the signs of update and residual, one for each value of the model. The model
moves by `vote_rate` along the sign of their sum, entry by entry: the majority's. A residual outlives its
round only if its client missed the second phase.

Sketches and votes are linear: the sum of the clients' sketches is the sketch of the clients' sum, whether it
is hidden or not.

Differences from the source, whose text this project does not have. It is read from its abstract, from the
code of FedLog's authors (github.com/rossyu/fedlog, model/csfl.py), and from another public code of it that
has the same two phases:

- FedLog's code sketches the entries above a size, 0.005, which are half of them in the first round on MNIST;
  here `sparsity` is a share, as in the other code. FedLog's code divides A by its largest singular value, so
  that it recovers a short step, and keeps all of the step but its smallest entries. With that, or with
  FedLog's sketch rate of 0.001, nearly all that the model learns comes from the votes.
- A is not a dense Gaussian matrix, drawn anew in each round, which for d = 500,000 would take 100 GB. It is
  `rows` random rows of the cosine transform behind random signs, sqrt(d / rows) R C D, from the public seed.
  It takes O(d) memory and O(d log d) time, and its columns have unit length on average.
- The server recovers as many entries as the sketches of all clients have together, K * sparsity * d, but at
  most a tenth of the rows, or a twentieth of those of signs: beyond that, thresholding does not recover.
- In the first phase the change goes down as positions and values, which take fewer bytes than a sketch and
  are exact; in the source clients recover it from the mean sketch.
- Signs of sketches carry no length, so the step from them has the norm 1 before the rate.
- An entry without a majority stays as it is. In the clear a vote takes two bits, in a hidden sum as many as
  any number.

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
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from securefl.algorithm import Algorithm, Float32s, Floats, Value, ValueSpec
from securefl.core.ranges import Fraction, Positive
from securefl.errors import ConfigError, DataError
from securefl.protocols.averaging import Averaging, Options, cohort_size
from securefl.protocols.compression import Compressed, entries, thresholded
from securefl.protocols.contributions import SMALL_WHOLE, bounded, of_client
from securefl.training import Problem

ROWS, ROWS_OF_SIGNS = 10, 20
"""The rows of a sketch for each entry that is recovered, of numbers and of signs.

With fewer, thresholding finds wrong entries: of 10 entries among 2,000 it fails for nearly every sketch with
5 rows for each, for two in five with 8 if all entries are as large, and for one in twenty with 10. From 10
rows of signs for each entry it finds a direction of cosine 0.7 to the true one, from 20 of 0.92.
"""


@dataclass(frozen=True, kw_only=True)
class CSFL(Options):
    """Options of CS-FL.

    measurements: the length of a sketch, as a share of the model's values.
    sparsity: share of the entries that are sketched.
    signs: whether the signs of a sketch are sent in its place (1-bit CS-FL).
    sketch_rate: the factor of the step that is recovered from sketches. From signs the step has norm 1.
    vote_rate: how far each value of the model moves along the majority of the votes.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # Those of FedLog's authors on CIFAR; on MNIST their script has what Table A.2 has. Their sparsity is
        # a size, below which entries are left out. Its number is taken as a share here, as elsewhere.
        "authors": {
            "sparsity": 0.0005,
            "sketch_rate": 0.01,
            "vote_rate": 0.01,
            "local": {"learning_rate": 0.001, "batch_size": 10},
        }
    }
    measurements: Fraction = 0.1
    sparsity: Fraction = 0.005
    signs: bool = False
    sketch_rate: Positive = 1.0
    vote_rate: Positive = 0.001

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
        first = Sketched(problem, self, sketch, recovered=min(together, sketch.rows // each))
        part = Compressed(problem, phases=(first, Votes(size=d, rate=self.vote_rate)))
        return Averaging(problem=problem, fraction=self.fraction, part=part)


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
        moved = sketch.of(along)
        length = float(np.sum(moved**2))
        if length == 0:
            return found
        rate = float(np.sum(along**2)) / length
        # a step that changes the places may be too long: it is halved until the residual falls
        while True:
            tried = thresholded(found + rate * slope, count)
            # the sketch is linear, and a step that keeps the places goes along `along`
            kept = np.array_equal(tried != 0, there)
            rest = left - rate * moved if kept else y - sketch.of(tried)
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


# The two phases ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sketched:
    """The first phase: sketches of the largest entries, or the signs of sketches.

    recovered: the number of entries of the step.
    """

    problem: Problem
    options: CSFL
    sketch: Sketch
    recovered: int

    @property
    def size(self) -> int:
        return self.sketch.rows

    @property
    def nonzero(self) -> int:
        return self.size

    def spec(self, update: ValueSpec) -> ValueSpec:
        whole = "the largest entries of its model update and residual (they can be recovered from it)"
        if self.options.signs:
            return of_signs(replace(update, reveals=f"the signs of a sketch of {whole}"), self.size)
        return replace(update, reveals=f"a sketch of {whole}")

    def sent(self, whole: Floats) -> tuple[Float32s, Floats]:
        part = thresholded(whole, entries(self.options.sparsity, len(whole)))
        y = self.sketch.of(part)
        with np.errstate(over="ignore"):  # infinite numbers are refused, or sent as zeros
            return (np.sign(y) if self.options.signs else y).astype(np.float32), part

    def value(self, numbers: Float32s | DataError) -> Value:
        if self.options.signs:
            return signs_value(numbers, self.size)
        return bounded(self.problem, np.zeros(self.size, np.float32), numbers)

    def change(self, mean: Floats, residual: Floats) -> tuple[Float32s, Floats]:
        recovering = recover_from_signs if self.options.signs else recover
        step = self.options.sketch_rate * recovering(self.sketch, mean, self.recovered)
        return step.astype(np.float32), residual


@dataclass(frozen=True, kw_only=True, eq=False)
class Votes:
    """The second phase: the sign of each entry of update and residual (d,). No residual is left.

    rate: how far a majority moves a value of the model.
    """

    size: int
    rate: float

    @property
    def nonzero(self) -> int:
        return self.size

    def spec(self, update: ValueSpec) -> ValueSpec:
        reveals = "the sign of each entry of its model update and residual"
        return of_signs(replace(update, name="votes", reveals=reveals, packed=True), self.size)

    def sent(self, whole: Floats) -> tuple[Float32s, Floats]:
        return np.sign(whole).astype(np.float32), whole

    def value(self, numbers: Float32s | DataError) -> Value:
        return signs_value(numbers, self.size)

    def change(self, mean: Floats, residual: Floats) -> tuple[Float32s, Floats]:
        return (self.rate * np.sign(mean)).astype(np.float32), residual


def of_signs(spec: ValueSpec, size: int) -> ValueSpec:
    """The spec of `size` signs. They have a sensitivity per client, whatever the client trained."""
    return replace(spec, sensitivity=of_client(sqrt(size)), grid=SMALL_WHOLE)


def signs_value(numbers: Float32s | DataError, size: int) -> Value:
    """Signs as grid integers. After a training that failed they are zeros.

    Signs have a finite sensitivity under every plan, so silence after a failed training would reveal it.
    """
    signs = np.zeros(size) if isinstance(numbers, DataError) else numbers / SMALL_WHOLE.step
    return Value(integers=signs.astype(np.int64), step=SMALL_WHOLE.step)
