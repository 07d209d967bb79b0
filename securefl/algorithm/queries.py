"""What an algorithm asks of its clients, and what it is answered.

An Ask has two kinds of question: a *sum* over the cohort, and *each*, one number per client. The Plan says
how sums are summed, how the numbers are opened and what is noised. It does so in the same words for every
algorithm. `protect` is the one place where the plan meets the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import LocalProtocolError
from securefl.core.grid import Grid
from securefl.core.linear import LinearQuery
from securefl.core.release import Adjacency, Unit
from securefl.core.text_safety import require_legible

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]
ClientState = Mapping[str, NDArray[Any]]
"""Named arrays that a client keeps on its device between rounds."""


@dataclass(frozen=True, kw_only=True)
class ValueSpec:
    """One kind of value that clients release.

    Attributes:
        name: its name in the ledger and in `[privacy] non_private`.
        reduction: "sum": summed over the cohort, or opened for each client.
        reveals: what the server sees of it in the clear, in words, for the privacy card.
        reveals_encrypted: what the server sees of it if scores are encrypted. Empty if it never is.
        on_model: whether clients compute it on the broadcast model.
        depends_on: what it depends on beside the broadcast. "records": the records alone. "trained-state":
            also state that was trained on them. Removing one record moves such state without bound, so
            record-level epsilon is infinite, whatever `sensitivity` says of the rest. "model": only a model
            whose training is accounted.
        training: the cost of the training before it, if a model was broadcast, per record added or removed.
        sensitivity: in L2, by (unit, adjacency). It is unbounded for a pair that is absent.
        bounded_by: by unit, what a study sets to bound it, as words behind "take": for whoever is refused.
        period: it is asked for in rounds whose number this divides. 0 is in no round.
        initial_queries: how often it is asked for in a whole run before anything is trained, charged so.
        extra_queries: how often it is asked for in a whole run beyond once in `every` rounds, as number 1, 2
            and so on of a round. These are charged like that of the round itself.
        once: it cannot change in a session (the same records, nothing trained, nothing broadcast). Each
            client gives it once: two sums of it over two sets of clients would differ by a client's value.
        cohort: the least number of clients that are asked for one sum of it. 0 if it is not known before.
        grid: the integers that sums are taken on.
        weighs: how orders weigh its values in a sum. An order that weighs them otherwise is refused, and so
            is one whose weights the plan does not name (`Plan.weights`).
        draws: how many draws of clients its protocol makes for one sum that is weighed, 0 if it does not say.
        packed: whether a sum in the clear travels without its zeros. In hidden sums zeros would tell of it.
        max_releases: of a value that answers a linear query, the most that leave one client: on its ledger,
            in all rounds, attempts and sessions, noised or not. "schedule" is as many as one run asks for
            (`asked`). Each release is one linear equation in the client's vector, so as many as the vector
            has hidden entries can tell all of it. Such a value declares a number. Others have None.

    LocalProtocolError for a number of a value that no query is of, and for none where one is.
    """

    name: str
    reduction: Literal["sum", "none"]
    reveals: str
    reveals_encrypted: str = ""
    on_model: bool = True
    depends_on: Literal["records", "trained-state", "model"] = "records"
    training: DpEvent | None = None
    sensitivity: Mapping[tuple[Unit, Adjacency], float] = field(default_factory=dict)
    bounded_by: Mapping[Unit, str] = field(default_factory=dict)
    grid: Grid = field(default_factory=Grid)
    period: int = 1
    initial_queries: int = 0
    extra_queries: int = 0
    once: bool = False
    cohort: int = 0
    weighs: Literal["equal", "draws", "counts"] = "equal"
    draws: int = 0
    packed: bool = False
    max_releases: int | Literal["schedule"] | None = None

    def __post_init__(self) -> None:
        require_legible(self.name, "the name of a value")
        if self.packed and self.reduction != "sum":
            raise LocalProtocolError(f"Expected a sum to be packed, got {self.name!r}, one number a client.")
        most = self.max_releases
        if most is None:
            if self.reduction == "none" and self.reveals_encrypted:
                raise undeclared(self.name)
        elif self.reduction != "none" or (most != "schedule" and (type(most) is not int or most < 1)):
            raise LocalProtocolError(
                f'Expected `max_releases` as a whole number from 1, or "schedule", of one number a client, '
                f"got {most!r} of {self.name!r} ({self.reduction!r})."
            )

    def due(self, number: int) -> bool:
        """Whether it is asked for in this round, from 1."""
        return bool(self.period) and number % self.period == 0

    def asked(self, rounds: int) -> int:
        """The most often a client is asked for it, in as many rounds."""
        if self.once:
            return 1
        return (rounds // self.period if self.period else 0) + self.initial_queries + self.extra_queries

    def most_releases(self, rounds: int) -> int | None:
        """The most releases of one client, in a plan of so many rounds. None if it answers no query."""
        return self.asked(rounds) if self.max_releases == "schedule" else self.max_releases


def undeclared(name: str) -> LocalProtocolError:
    """Why a value that answers linear queries may not leave without a number of releases."""
    return LocalProtocolError(
        f"Expected `max_releases` of {name!r}, which answers linear queries, got none: queries that differ "
        'at will read the whole vector. Declare a number, or "schedule".'
    )


@dataclass(frozen=True)
class Sum:
    """Ask for the weighted sum of a vector of `size` values over the cohort."""

    spec: ValueSpec
    size: int


@dataclass(frozen=True, kw_only=True)
class Value:
    """A client's value before protection: integers of its grid, or vectors of floats that no noise can be on.

    `integers` are in units of the grid of its `spec`. Noise is put on nothing else: rounding afterwards
    would add to the sensitivity. The floats of a sum are all `clear`, of float64 or, as models, of float32.
    `new_state` stays on the client's device, in place of the state kept before. None leaves that state as it
    is. `after_noise`, if there is one, makes the value from the integers times the grid's step. It runs after
    noise was added, if the plan adds any, so it is post-processing. `clipped` and `floored` count the entries
    that were moved into public bounds. No server learns them.
    """

    integers: NDArray[np.int64] | None = None
    clear: NDArray[np.floating[Any]] = field(default_factory=lambda: np.zeros(0))
    hidden: Floats = field(default_factory=lambda: np.zeros(0))
    new_state: ClientState | None = None
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

    def floats(self, grid: Grid) -> NDArray[np.floating[Any]]:
        """The value in the clear, without noise: integers times the step of this grid."""
        return self.clear if self.integers is None else self.integers.astype(np.float64) * grid.step


@dataclass(frozen=True)
class PerClient:
    """Ask every client of the cohort for one number.

    Without a `query` the client's value is the number. With one, the value is a vector, and the number is its
    inner product with the query's weights. If the plan hides scores, the hidden part travels concealed, and
    the server learns the number only. The query stays with the server; its bounds are public.
    `least` and `most` are the public range of a number without a query. A client that claims a number outside
    it is refused. LocalProtocolError for a query of a value that declares no `max_releases`.
    """

    spec: ValueSpec
    query: LinearQuery | None = None
    least: float = -np.inf
    most: float = np.inf

    def __post_init__(self) -> None:
        if self.query is not None and self.spec.max_releases is None:
            raise undeclared(self.spec.name)

    def lengths(self) -> tuple[int, int]:
        """Number of values in the hidden and in the clear part."""
        if self.query is None:
            return 0, 1
        return self.query.bounds.hidden_length, self.query.bounds.clear_length

    def number(self, value: Value) -> float:
        """The number that a value in the clear answers with."""
        if self.query is None:
            return float(value.clear[0])
        return self.query.number(value.hidden, np.asarray(value.clear, dtype=np.float64))

    def allows(self, number: float) -> bool:
        """Whether an honest client's number could be this one. False for NaN."""
        if self.query is None:
            return bool(np.isfinite(number)) and self.least <= number <= self.most
        return self.query.allows(number)


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

    def weight(self, client: int, spec: ValueSpec) -> float:
        """The weight: draws / K. For values with a sensitivity, draws over the largest number of any client.

        Noise does not shrink with the weights, so K would only make the values small beside it.
        """
        return self.whole_weight((client,), spec)

    def whole_weight(self, clients: Sequence[int], spec: ValueSpec) -> float:
        """The weight of these clients together."""
        whole, most = sum(self.draws.values()), max(self.draws.values())
        return sum(draw_weight(self.draws[client], whole, most, spec) for client in clients)


def draw_weight(own: int, whole: int, most: int, spec: ValueSpec) -> float:
    """The weight of a client with `own` of `whole` draws. `most` is the largest number of any client."""
    return own / (most if spec.sensitivity else whole)


@dataclass(frozen=True)
class ByCount:
    """A client's value weighs n_k / n. The client multiplies by its own n_k, and `total` is the public n."""

    total: int

    def __post_init__(self) -> None:
        if self.total < 1:
            raise LocalProtocolError(f"Expected a total of at least one record, got {self.total}.")


@dataclass(frozen=True, kw_only=True)
class CohortQuery:
    """One exchange with a cohort.

    Attributes:
        cohort: client numbers, each once.
        broadcast: a vector that every client of the cohort is sent and computes on, float32 (d,), mostly a
            model.
        public: further arrays that every client of the cohort may know.
        weights: the weights of values in the sums. None is 1 each.
        initial: which introduction of its values this is, from 1. 0 for an Ask of the rounds.
        number: which Ask of its values this is within its round. A client draws from another stream for each
            number. Stages and attempts do not count: a retry has the number of what it repeats.
    """

    cohort: tuple[int, ...]
    broadcast: Float32s
    sums: tuple[Sum, ...] = ()
    per_client: tuple[PerClient, ...] = ()
    public: Mapping[str, Floats] = field(default_factory=dict)
    weights: ByDraws | ByCount | None = None
    initial: int = 0
    number: int = 0

    def __post_init__(self) -> None:
        if min(self.initial, self.number) < 0 or (self.initial and self.number):
            raise LocalProtocolError(
                f"Expected an introduction or a number within the round, got introduction "
                f"{self.initial} and number {self.number}."
            )
        if isinstance(self.weights, ByDraws) and set(self.weights.draws) != set(self.cohort):
            raise LocalProtocolError(
                f"Expected draws of the cohort {self.cohort} alone, got {sorted(self.weights.draws)}."
            )
        names = [spec.name for spec in self.wants()]
        # A client that is named twice would count as two towards a threshold.
        if len(set(self.cohort)) < len(self.cohort) or len(set(names)) < len(names):
            raise LocalProtocolError(
                f"Expected each client and each want once, got {self.cohort} and {names}."
            )

    def wants(self) -> tuple[ValueSpec, ...]:
        return (*(s.spec for s in self.sums), *(e.spec for e in self.per_client))

    def total(self, question: Sum, integers: NDArray[Any], survivors: Sequence[int]) -> Total:
        """The answer to one sum from the grid integers of these survivors."""
        weight = float(len(survivors))
        if isinstance(self.weights, ByDraws):
            weight = self.weights.whole_weight(survivors, question.spec)
        elif self.weights is not None:
            weight = np.nan  # each client multiplied by its own n_k, which the server does not know
        return Total(integers.astype(np.float64) * question.spec.grid.step, weight)


@dataclass(frozen=True)
class Total:
    """The sum over the survivors, float64 (d,), and the sum of their weights, nan if they weigh n_k / n."""

    value: Floats
    weight: float


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers to an Ask. A client that stayed silent or was refused is absent.

    A survivor whose encrypted number could not be opened is absent from that number alone. If sums are
    hidden, `each` comes from an exchange before theirs, so a client may have answered in one of the two.
    """

    survivors: tuple[int, ...]
    totals: Mapping[str, Total]
    per_client: Mapping[str, Mapping[int, float]]
