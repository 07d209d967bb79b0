"""What an algorithm asks of its clients, and what it is answered.

There are two kinds of question in an Ask, a *sum* over the cohort and *each*, one number per client.
How sums are summed, how the numbers are opened and what is noised are words of the Plan, the same for
every algorithm; `protect` is the one place where they meet the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from securefl.core.errors import LocalProtocolError
from securefl.core.grid import Grid
from securefl.core.legible import require_legible
from securefl.core.release import Adjacency, Unit
from securefl.profiles import Bounds, Query, Variant

Floats = NDArray[np.float64]
_ROUNDING = 1e-6
"""How far below 0 the expanded form of a divergence can come out, generously."""
Float32s = NDArray[np.float32]
Kept = Mapping[str, NDArray[Any]]
"""Named arrays that a client keeps on its device between rounds."""


@dataclass(frozen=True, kw_only=True)
class Sends:
    """One kind of value that clients release.

    Attributes:
        name: its name in the ledger and in `[privacy] unprotected`.
        how: summed over the cohort, or opened for each client.
        reveals: what the server sees of it in the clear, in words, for the privacy card.
        reveals_encrypted: what it sees of it where scores are encrypted; empty where it never is.
        on_model: whether clients compute it on the broadcast model.
        reads: what it depends on beside the broadcast. The "records" alone; or also state that was "trained"
            on them: removing one record moves that without bound, so record-level epsilon is infinite,
            whatever `sensitivity` says of the rest, which the noise is then merely scaled to; or "nothing",
            but a model whose training is accounted.
        training: what the training that comes before it costs, where a model was broadcast; record level,
            add or remove.
        sensitivity: L2, per (unit, adjacency); a pair that is absent is unbounded.
        extra: how often it is asked for beyond once in `every` rounds, in a whole run.
        every: it is asked for in rounds whose number this divides; 0 is in none.
        once: it cannot change in a session (the same records, nothing trained, nothing broadcast), so each
            client gives it once: two sums of it over two sets of clients would differ by a client's value.
        cohort: the fewest clients that are asked for one sum of it; 0 where that is not known beforehand.
        grid: the integers that sums are taken on.
    """

    name: str
    how: Literal["sum", "each"]
    reveals: str
    reveals_encrypted: str = ""
    on_model: bool = True
    reads: Literal["records", "trained", "nothing"] = "records"
    training: DpEvent | None = None
    sensitivity: Mapping[tuple[Unit, Adjacency], float] = field(default_factory=dict)
    grid: Grid = field(default_factory=Grid)
    extra: int = 0
    every: int = 1
    once: bool = False
    cohort: int = 0

    def __post_init__(self) -> None:
        require_legible(self.name, "the name of a value")

    def due(self, number: int) -> bool:
        """Whether it is asked for in this round, from 1."""
        return bool(self.every) and number % self.every == 0

    def asked(self, rounds: int) -> int:
        """The most often a client is asked for it, in as many rounds."""
        if self.once:
            return 1
        return (rounds // self.every if self.every else 0) + self.extra


@dataclass(frozen=True)
class Sum:
    """Ask for the weighted sum of a vector of `size` values over the cohort."""

    sends: Sends
    size: int


@dataclass(frozen=True, kw_only=True)
class Value:
    """A client's value before protection: integers of its grid, or float64 vectors that no noise can be on.

    `integers` are in units of the grid of its `sends`. Noise is put on nothing else: rounding afterwards
    would add to the sensitivity. A float64 vector of a sum is all `clear`.
    `keep` stays on the client's device, in place of what it kept before; None leaves that as it is. Where
    there is an `after_noise`, the value is what it makes of the integers times the grid's step, once noise
    is on them where the plan says so (post-processing).
    `clipped` and `floored` count the entries that were moved into public bounds; no server learns them.
    """

    integers: NDArray[np.int64] | None = None
    clear: Floats = field(default_factory=lambda: np.zeros(0))
    hidden: Floats = field(default_factory=lambda: np.zeros(0))
    keep: Kept | None = None
    after_noise: Callable[[Floats], Value] | None = None
    clipped: int = 0
    floored: int = 0

    def __post_init__(self) -> None:
        if self.integers is None:
            if self.after_noise is not None:
                raise LocalProtocolError("Expected `integers` beside `after_noise`, which follows from them.")
            return
        if self.clear.size or self.hidden.size:
            raise LocalProtocolError("Expected `integers` or floats of one value, got both.")
        if self.integers.dtype != np.int64 or self.integers.ndim != 1:
            raise LocalProtocolError(
                f"Expected a flat vector of int64 integers of the grid, got {self.integers.dtype} of shape "
                f"{self.integers.shape}. Put the records on the grid one by one (`dp.clipping.to_grid`)."
            )

    def floats(self, grid: Grid) -> Floats:
        """What a client gives in the clear, without noise: integers times the step of this grid."""
        return self.clear if self.integers is None else self.integers.astype(np.float64) * grid.step


@dataclass(frozen=True)
class Each:
    """Ask every client of the cohort for one number.

    Without a `query` the client's value is the number. With one, the value is a profile's features and
    the number is their divergence from the query's baseline; where the plan hides scores, the hidden part
    travels concealed and the server learns the number only. The query stays with the server.
    `bounds` are the public bounds that clients clip to. `least` and `most` are the public range of a
    number without a query; a client that claims one outside it is refused.
    """

    sends: Sends
    query: Query | None = None
    variant: Variant = Variant.FULL
    bounds: Bounds = field(default_factory=Bounds)
    least: float = -np.inf
    most: float = np.inf

    def lengths(self) -> tuple[int, int]:
        """Number of values in the hidden and in the clear part."""
        if self.query is None:
            return 0, 1
        weights = self.query.split(self.variant)
        return len(weights.hidden), len(weights.clear)

    def number(self, value: Value) -> float:
        """The number that a value in the clear answers with."""
        if self.query is None:
            return float(value.clear[0])
        weights = self.query.split(self.variant)
        product = float(value.hidden @ weights.hidden) + float(value.clear @ weights.clear)
        return (product + self.query.constant) / len(self.query.mean)

    def allows(self, number: float) -> bool:
        """Whether an honest client's number could be this one; never true of NaN."""
        if self.query is None:
            return bool(np.isfinite(number)) and self.least <= number <= self.most
        length = len(self.query.mean)
        return number >= -_ROUNDING and abs(
            number * length - self.query.constant
        ) <= self.bounds.largest_product(length)


@dataclass(frozen=True)
class ByDraws:
    """A client's value weighs as often as it was drawn, which every client of the cohort may know.

    Weights are whole numbers that all clients see: a server that sets one to 1 and the others to 1e-12 would
    read one client's value off the sum.
    """

    draws: Mapping[int, int]

    def __post_init__(self) -> None:
        if not self.draws or min(self.draws.values()) < 1:
            raise LocalProtocolError(f"Expected one draw or more of each client, got {dict(self.draws)}.")

    def weight(self, client: int, sends: Sends) -> float:
        """draws / K; of values that noise is scaled to, draws over the most of any client.

        The noise is as large whatever the weight, so K would only make the values small beside it.
        """
        return draw_weight(self.draws[client], sum(self.draws.values()), max(self.draws.values()), sends)


def draw_weight(own: int, whole: int, most: int, sends: Sends) -> float:
    """The weight of a client with so many of all draws; `most` are the most of any client."""
    return own / (most if sends.sensitivity else whole)


@dataclass(frozen=True)
class ByCount:
    """A client's value weighs n_k / n: the client multiplies by its own n_k, and `total` is the public n."""

    total: int

    def __post_init__(self) -> None:
        if self.total < 1:
            raise LocalProtocolError(f"Expected a total of at least one record, got {self.total}.")


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One exchange with a cohort.

    Attributes:
        cohort: client numbers, each once.
        broadcast: what every client of the cohort is sent and computes on, float32 (d,): a model, mostly.
        public: further arrays that every client of the cohort may know.
        weights: what values weigh in the sums; None is 1 each.
        introduction: which introduction of its values this is, from 1; 0 for an Ask of the rounds.
    """

    cohort: tuple[int, ...]
    broadcast: Float32s
    sums: tuple[Sum, ...] = ()
    each: tuple[Each, ...] = ()
    public: Mapping[str, Floats] = field(default_factory=dict)
    weights: ByDraws | ByCount | None = None
    introduction: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.weights, ByDraws) and set(self.weights.draws) != set(self.cohort):
            raise LocalProtocolError("Expected draws of each client of the cohort, and of nobody else.")
        names = [sends.name for sends in self.wants()]
        if len(set(self.cohort)) < len(self.cohort) or len(set(names)) < len(names):
            raise LocalProtocolError(
                f"Expected each client and each want once, got {self.cohort} and {names}."
            )

    def wants(self) -> tuple[Sends, ...]:
        return (*(s.sends for s in self.sums), *(e.sends for e in self.each))

    def total(self, question: Sum, integers: NDArray[np.int64], survivors: Sequence[int]) -> Total:
        """The answer to one sum from the grid integers of these survivors."""
        weight = float(len(survivors))
        if isinstance(self.weights, ByDraws):
            weight = sum(self.weights.weight(client, question.sends) for client in survivors)
        elif self.weights is not None:
            weight = np.nan  # n_k is the clients' own
        return Total(integers.astype(np.float64) * question.sends.grid.step, weight)


@dataclass(frozen=True)
class Total:
    """The sum over the survivors, float64 (d,), and their weights' sum; nan where they weigh n_k / n."""

    value: Floats
    weight: float


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What came back. A client that stayed silent or was refused is absent.

    A survivor whose encrypted number could not be opened is absent from that number alone. Where sums are
    hidden, `each` comes from an exchange before theirs: a client may have answered in one of the two alone.
    """

    survivors: tuple[int, ...]
    totals: Mapping[str, Total]
    each: Mapping[str, Mapping[int, float]]
