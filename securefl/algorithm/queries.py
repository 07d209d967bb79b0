"""Cohort queries and their answers, and the specs of the values that clients send.

A cohort query asks for sums over the cohort, and for one number per client. The `Plan` says how sums are
computed, how numbers are opened and which values are noised. It has the same fields for every algorithm.
`protect` is the only function that applies a plan to values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from securefl.core.arguments import checked
from securefl.core.errors import LocalProtocolError
from securefl.core.grid import Grid
from securefl.core.linear import LinearQuery
from securefl.core.release import Adjacency, Unit
from securefl.core.text_safety import require_legible
from securefl.dp import clipping

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Floats = NDArray[np.float64]
Float32s = NDArray[np.float32]
ClientState = Mapping[str, NDArray[Any]]
"""Client state: named arrays that a client keeps on its device between rounds."""
Weighing = Literal["equal", "draws", "counts"]
"""How clients' values are weighted in a sum."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When a value is queried in a run, and how many releases of it may leave a client.

        >>> from securefl.algorithm import Schedule
        >>> schedule = Schedule(period=2, initial=1)
        >>> schedule.due(2), schedule.asked(10)  # in rounds 2, 4, ..., 10, and once before round 1
        (True, 6)

    Attributes:
        period: it is queried in rounds that are multiples of this. 0: in no round.
        initial: the number of initial queries for it in a run, before anything is trained.
        extra: the number of further queries for it in a run, beyond the one in each round that is a multiple
            of `period`. The extra queries of one round are numbered 1, 2 and so on. Each is charged like the
            round's own query.
        once: the value does not change in a session, because it depends neither on the broadcast nor on
            trained state, and the records stay the same. Each client sends it in one sum only: two sums over
            cohorts that differ in one client would reveal that client's value.
        max_releases: for a value that answers linear queries, the most releases of one client over all
            rounds, attempts and sessions, noised or not. The client's ledger enforces it. "schedule": as many
            as one run's queries (`asked`). Each release is one linear equation in the client's vector, so as
            many releases as the vector has hidden entries can reveal all of it. None for all other values.

    Raises:
        LocalProtocolError: a number is no whole number from 0, or `max_releases` none from 1.
    """

    period: int = 1
    initial: int = 0
    extra: int = 0
    once: bool = False
    max_releases: int | Literal["schedule"] | None = None

    def __post_init__(self) -> None:
        least = {"period": 0, "initial": 0, "extra": 0}
        if self.max_releases not in (None, "schedule"):
            least["max_releases"] = 1
        for name, low in least.items():
            if type(value := getattr(self, name)) is not int or value < low:
                raise LocalProtocolError(
                    f"Expected `{name}` of a schedule as a whole number from {low}, got {value!r}."
                )

    def due(self, number: int) -> bool:
        """Whether the value is queried in the round of this number, from 1."""
        return bool(self.period) and number % self.period == 0

    @property
    def at_end(self) -> bool:
        """Whether its one query comes at the end of a run: in no regular round, and before none."""
        return self.once and not (self.period or self.initial)

    def asked(self, rounds: int) -> int:
        """The most queries for it that reach one client in a run of this many rounds."""
        if self.once:
            return 1
        return (rounds // self.period if self.period else 0) + self.initial + self.extra

    def most_releases(self, rounds: int) -> int | None:
        """The most releases of one client in this many rounds. None if it answers no linear query."""
        return self.asked(rounds) if self.max_releases == "schedule" else self.max_releases


@checked
@dataclass(frozen=True, kw_only=True)
class ValueSpec:
    """The spec of one value that clients send: its name, its reduction, and what bounds it.

        >>> from securefl.algorithm import Grid, ValueSpec
        >>> step = ValueSpec(name="step", reduction="sum", reveals="a step", grid=Grid(bound=8.0),
        ...                  sensitivity={("record", "add-remove"): 1.0})
        >>> step.grid.bound, step.schedule.period
        (8.0, 1)

    Attributes:
        name: its name in the ledger and in `[privacy] non_private`.
        reduction: "sum": the server gets the sum over the cohort. "none": the server gets one number from
            each client.
        reveals: what the server sees of it in the clear, in words, for the privacy card.
        form: what a total tells of single values without noise. "real": real numbers of all clients at most
            entries, so the card states how well one client's value is guessed (`Plan.guess_error`).
            "discrete": entries may take few numbers, such as signs or mostly 0. A total then tells more than
            any linear guess, and the card states no figure. It is what nothing else is declared to be. "map":
            0 or 1 for each pair of a client's units. The counts of pairs give every single map, so a hidden
            sum without noise is refused.
        reveals_encrypted: what the server sees of it if scores are encrypted. Empty if it never is encrypted.
        reveals_public: what the server sees in place of `reveals` under a `public_num_examples`. Empty if it
            sees the same.
        on_model: whether clients compute it on the broadcast model.
        depends_on: what it depends on beside the broadcast. "records": the records only. "trained-state":
            also state that was trained on them. Removing one record changes such state without bound, so
            record-level epsilon is infinite, and `sensitivity` does not count. "model": only a model whose
            training is accounted.
        reads_state: whether it reads the client state (`ClientContext.kept`). "none": it gets none. "bound":
            only such state as this query's own bytes determine, which the client checks. "unbound": also what
            earlier queries left. "repeated": the same, and it takes off what an earlier sum had, so that one
            sum has the difference of two rounds. "unknown": it gets the state, and its code may keep more
            elsewhere. A hidden sum without noise holds none of these three against a server that lies, and
            "repeated" against no server (`mechanisms.agreed`).
        follows: whether it counts on another release of its client, which has a draw of its own: then
            `Plan.sampling_rate` is refused. Every value that reads state as "bound" or "repeated" does. A
            model of a study's own code changes `reads_state`, and not this.
        training: the DP cost of the private training that precedes the value in a round, per record added or
            removed. It is charged only if a model was broadcast, so not in an initial query.
        sensitivity: L2 sensitivity by (unit, adjacency), in the value's own unit. Unbounded for an absent
            pair.
        bounded_by: by unit, the option of a study that bounds it, as words that follow "take" in a refusal.
        cohort: the least number of clients in a query for its sum. 0 if that is unknown beforehand.
        grid: the integers on which sums are taken.
        schedule: when it is queried, and how many releases of it may leave a client.
        weighs: how orders weight its values in a sum. A client refuses an order that weights them otherwise,
            and an order with weights that `Plan.weights` does not name.
        draws: the number of draws of clients for one weighted sum of it. 0 if the protocol does not state it.
        accumulates: whether a model is a sum of its totals over rounds. Only such a value gains by noise that
            is correlated over rounds (`Plan.coefficients`): a total that is used once would have more of it.
        packed: whether a sum in the clear travels without its zeros. In hidden sums zeros would reveal part
            of the value, so they travel.
        spread: whether its queries have a bound on the spread of their weights (`LinearBounds.spread`).

    Raises:
        LocalProtocolError: a sum declares `max_releases`, a number that can be encrypted declares none, or a
            number per client is `packed`.
        ConfigError: an argument of another type, or a name with characters that cannot be printed safely.
    """

    name: str
    reduction: Literal["sum", "none"]
    reveals: str
    form: Literal["real", "discrete", "map"] = "discrete"
    reveals_encrypted: str = ""
    reveals_public: str = ""
    on_model: bool = True
    depends_on: Literal["records", "trained-state", "model"] = "records"
    reads_state: Literal["unknown", "none", "bound", "unbound", "repeated"] = "unknown"
    follows: bool = False
    training: DpEvent | None = None
    sensitivity: Mapping[tuple[Unit, Adjacency], float] = field(default_factory=dict)
    bounded_by: Mapping[Unit, str] = field(default_factory=dict)
    grid: Grid = field(default_factory=Grid)
    schedule: Schedule = field(default_factory=Schedule)
    cohort: int = 0
    weighs: Weighing = "equal"
    draws: int = 0
    accumulates: bool = False
    packed: bool = False
    spread: bool = False

    def __post_init__(self) -> None:
        require_legible(self.name, "the name of a value")
        object.__setattr__(self, "follows", self.follows or self.reads_state in ("bound", "repeated"))
        if self.packed and self.reduction != "sum":
            raise LocalProtocolError(f"Expected a sum if `packed`, got {self.name!r}, one number a client.")
        most = self.schedule.max_releases
        if most is not None and self.reduction == "sum":
            raise LocalProtocolError(
                f"Expected `max_releases` of one number a client alone, got {most!r} of a sum, {self.name!r}."
            )
        if most is None and self.reduction == "none" and self.reveals_encrypted:
            raise undeclared(self.name)

    @property
    def each_round(self) -> bool:
        """Whether it is a sum that every round queries once: a plan's `separation` is for these alone."""
        return self.reduction == "sum" and self.schedule == Schedule()

    def asked(self, rounds: int, separation: int = 1) -> int:
        """The most queries for it that reach one client in a run, under a plan's `separation`."""
        return ceil(rounds / separation) if self.each_round else self.schedule.asked(rounds)


def undeclared(name: str) -> LocalProtocolError:
    """The error for a value that answers linear queries and declares no number of releases."""
    return LocalProtocolError(
        f"Expected `max_releases` of {name!r}, which answers linear queries, got none: enough different "
        'queries reveal the whole vector. Declare a number, or "schedule".'
    )


@checked
@dataclass(frozen=True)
class Sum:
    """A query for the weighted sum over the cohort of a vector of `size` values.

        >>> from securefl.algorithm import ValueSpec, Sum
        >>> Sum(ValueSpec(name="step", reduction="sum", reveals="a step"), 3).size
        3

    Raises:
        ConfigError: an argument of another type.
        LocalProtocolError: a `size` below 0.
    """

    spec: ValueSpec
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise LocalProtocolError(f"Expected a sum of at least 0 values, got {self.size}.")


@dataclass(frozen=True, kw_only=True)
class Value:
    """A client's value before protection: integers of a grid, or float vectors without noise.

        >>> import numpy as np
        >>> from securefl.algorithm import Grid, Value
        >>> Value(integers=np.array([2, -4]), step=0.25).floats().tolist()
        [0.5, -1.0]
        >>> rows, grid = np.array([[3.0, 4.0], [0.0, 0.5]]), Grid(step=0.25, bound=8.0)
        >>> Value.summed(rows, grid, 2.5).floats().tolist()
        [1.5, 2.5]

    Attributes:
        integers: int64 (d,), in units of `step`. Noise is added to these only: rounding floats afterwards
            would add to the sensitivity.
        step: the step of the grid on which the integers were made. `protect` refuses another than that of
            the spec, for which the noise is sized.
        clear: floats (d,) that travel in the clear. The floats of a sum are all here: float64, or float32 for
            models.
        hidden: float64 (h,), the vector that the scheme of `[privacy] scores` conceals.
        new_state: the new client state. It replaces the old one and stays on the device. None: no change.
        after_noise: makes the value from the integers times the grid's step. It runs after noise was added,
            if the plan adds any, so it is post-processing.
        clipped, floored: the number of entries that were clipped into public bounds. No server learns them.
        blank: why it is the value of a client without records, such as training that diverged, or "". It is
            noted for the client's owner alone, and is no part of what is sent.

    Raises:
        LocalProtocolError: both integers and floats, integers that are not int64 (d,) or have no finite step
            above 0, or `after_noise` without integers.
    """

    integers: NDArray[np.int64] | None = None
    step: float = 0.0
    clear: NDArray[np.floating[Any]] = field(default_factory=lambda: np.zeros(0))
    hidden: Floats = field(default_factory=lambda: np.zeros(0))
    new_state: ClientState | None = None
    after_noise: Callable[[Floats], Value] | None = None
    clipped: int = 0
    floored: int = 0
    blank: str = ""

    def __post_init__(self) -> None:
        if self.integers is None:
            if self.after_noise is not None:
                raise LocalProtocolError("Expected `integers` with `after_noise`, which is applied to them.")
            return
        if self.clear.size or self.hidden.size:
            raise LocalProtocolError("Expected `integers` or floats of one value, got both.")
        if self.integers.dtype != np.int64 or self.integers.ndim != 1:
            raise LocalProtocolError(
                f"Expected a flat vector of int64 integers of the grid, got {self.integers.dtype} of shape "
                f"{self.integers.shape}. Put the records on the grid one by one (`Value.summed`)."
            )
        if not 0 < self.step < np.inf:
            raise LocalProtocolError(
                f"Expected the `step` of the grid on which the integers were made, finite and above 0, got "
                f"{self.step}."
            )

    @staticmethod
    def summed(rows: NDArray[np.floating[Any]], grid: Grid, bound: float) -> Value:
        """Sum a client's records on a grid, each scaled down to an L2 norm of at most `bound`.

        Each record is rounded by itself, towards zero, so `bound` is the sensitivity of the sum to adding or
        removing one of them, and no order or division of the records changes the sum.

        Args:
            rows: finite floats (n, d), a row for each record.
            grid: the value's grid.
            bound: the largest norm of a row, in the value's unit.

        Returns:
            The value, of int64 (d,) integers in grid units.

        Raises:
            ConfigError: the bound is not from 1 to below 2^31 steps of the grid.
            DataError: a row is not finite.
        """
        integers = clipping.to_grid(np.asarray(rows, np.float64), grid.step, int(bound / grid.step))
        return Value(integers=integers.sum(0), step=grid.step)

    def floats(self) -> NDArray[np.floating[Any]]:
        """Return the value in the clear, without noise. It stays on the client's device.

        Returns:
            Floats (d,): the integers times their step, or `clear` itself if there are none.
        """
        return self.clear if self.integers is None else self.integers.astype(np.float64) * self.step


@dataclass(frozen=True)
class PerClient:
    """A query for one number from every client of the cohort.

        >>> from securefl.algorithm import PerClient, ValueSpec
        >>> spec = ValueSpec(name="loss", reduction="none", reveals="the loss")
        >>> loss = PerClient(spec, least=0.0, most=5.0)
        >>> loss.allows(2.0), loss.allows(7.0), loss.lengths()
        (True, False, (0, 1))

    Attributes:
        spec: the value's spec.
        query: None if the client's value is the number. With a linear query the value is a vector, and the
            number is its inner product with the query's weights. If the plan hides scores, the hidden part
            travels concealed and the server learns only the number. The query stays with the server; its
            bounds are public.
        least, most: the public range of a number without a `query`. The server refuses a client whose number
            is outside it.

    Raises:
        LocalProtocolError: a `query` for a value that declares no `max_releases`.
    """

    spec: ValueSpec
    query: LinearQuery | None = None
    least: float = -np.inf
    most: float = np.inf

    def __post_init__(self) -> None:
        if self.query is not None and self.spec.schedule.max_releases is None:
            raise undeclared(self.spec.name)

    def lengths(self) -> tuple[int, int]:
        """The number of entries in the hidden part, and in the clear part."""
        if self.query is None:
            return 0, 1
        return self.query.bounds.hidden_length, self.query.bounds.clear_length

    def number(self, value: Value) -> float:
        """The number that a value in the clear gives."""
        if self.query is None:
            return float(value.clear[0])
        return self.query.number(value.hidden, np.asarray(value.clear, dtype=np.float64))

    def allows(self, number: float) -> bool:
        """Whether an honest client could send this number. False for NaN."""
        if self.query is None:
            return bool(np.isfinite(number)) and self.least <= number <= self.most
        return self.query.allows(number)


@dataclass(frozen=True)
class ByDraws:
    """Weights by draws: each client's value is weighted by how often the client was drawn, which is public.

        >>> from securefl.algorithm import ByDraws, ValueSpec
        >>> model = ValueSpec(name="model", reduction="sum", reveals="a model")
        >>> ByDraws({3: 2, 7: 1}).whole_weight((3,), model)
        0.6666666666666666

    Weights are whole numbers that all clients of the cohort see. A server that could set one weight to 1 and
    the others to 1e-12 would read one client's value off the sum.

    Raises:
        LocalProtocolError: no draws, fewer than one of a client, or 2^63 or more of all.
    """

    draws: Mapping[int, int]

    def __post_init__(self) -> None:
        if not self.draws or min(self.draws.values()) < 1:
            raise LocalProtocolError(f"Expected at least one draw of each client, got {dict(self.draws)}.")
        if (whole := sum(self.draws.values())) >= 2**63:
            raise LocalProtocolError(f"Expected fewer than 2^63 draws in all, got {whole}. Draw fewer.")

    def whole_weight(self, clients: Sequence[int], spec: ValueSpec) -> float:
        """The sum of the weights of these clients: each one's draws over all draws, K.

        With a sensitivity it is over the most draws of any one client. The noise is sized for a weight of 1,
        so division by K would shrink the values and not the noise.
        """
        whole, most = sum(self.draws.values()), max(self.draws.values())
        return sum(draw_weight(self.draws[client], whole, most, spec) for client in clients)


def draw_weight(own: int, whole: int, most: int, spec: ValueSpec) -> float:
    """The weight of a client with `own` of `whole` draws. `most` is the largest number of any client."""
    return own / (most if spec.sensitivity else whole)


@dataclass(frozen=True)
class ByCount:
    """Weights n_k / n. Each client multiplies by its own number of records n_k; `total` is the public n.

        >>> from securefl.algorithm import ByCount
        >>> ByCount(600).total
        600

    Raises:
        LocalProtocolError: `total` is below 1.
    """

    total: int

    def __post_init__(self) -> None:
        if self.total < 1:
            raise LocalProtocolError(f"Expected a total of at least one record, got {self.total}.")


@dataclass(frozen=True, kw_only=True)
class CohortQuery:
    """A cohort query: one exchange with a cohort, for sums over it and numbers of each client.

        >>> import numpy as np
        >>> from securefl.algorithm import CohortQuery, ValueSpec, Sum
        >>> step = ValueSpec(name="step", reduction="sum", reveals="a step")
        >>> query = CohortQuery(cohort=(0, 2), broadcast=np.zeros(3, np.float32), sums=(Sum(step, 3),))
        >>> query.total(query.sums[0], np.array([2**21, 0, 2**20]), (0, 2)).value.tolist()
        [1.0, 0.0, 0.5]

    Attributes:
        cohort: client numbers, each once, or the ids of a `SecureAggregator`.
        broadcast: a vector that every client of the cohort receives and computes on, float32 (d,), mostly a
            model.
        sums: the sums over the cohort.
        per_client: the queries for one number from each client.
        public: further arrays that every client of the cohort may know.
        weights: the weights of values in the sums. None: 1 each.
        initial: the number of this initial query, from 1. 0 for a query of the rounds.
        number: the number of this query among those for its values in its round. A client uses a separate
            random stream for each number. A retry is another attempt at the same query, so it keeps the
            number.

    Raises:
        LocalProtocolError: a client or a value named twice, draws of other clients than the cohort, a
            negative number, or both an `initial` and a `number`.
    """

    cohort: tuple[Any, ...]
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
                f"Expected `initial` or `number`, not both, and neither below 0, got initial {self.initial} "
                f"and number {self.number}."
            )
        if isinstance(self.weights, ByDraws) and set(self.weights.draws) != set(self.cohort):
            raise LocalProtocolError(
                f"Expected draws of exactly the cohort {self.cohort}, got {list(self.weights.draws)}."
            )
        names = [spec.name for spec in self.wants()]
        # A client named twice would count as two towards a threshold.
        if len(set(self.cohort)) < len(self.cohort) or len(set(names)) < len(names):
            raise LocalProtocolError(
                f"Expected each client and each value once, got {self.cohort} and {names}."
            )

    def wants(self) -> tuple[ValueSpec, ...]:
        """The specs of all values that this query asks for."""
        return (*(s.spec for s in self.sums), *(e.spec for e in self.per_client))

    def total(self, wanted: Sum, integers: NDArray[Any], survivors: Sequence[int]) -> Total:
        """Return the answer to one sum.

        Args:
            wanted: the sum.
            integers: the opened sum of the survivors' integers, with noise, (d,), in grid units.
            survivors: the clients whose values are in it.

        Returns:
            The total in the value's own unit, float64 (d,), with the weight that `Total` states.
        """
        weight = float(len(survivors))
        if isinstance(self.weights, ByDraws):
            weight = self.weights.whole_weight(survivors, wanted.spec)
        elif self.weights is not None:
            weight = np.nan  # each client used its own n_k, which the server does not know
        return Total(np.multiply(integers, wanted.spec.grid.step, dtype=np.float64), weight)


@dataclass(frozen=True)
class Total:
    """A sum over the survivors, and the sum of their weights.

        >>> import numpy as np
        >>> from securefl.algorithm import Total
        >>> total = Total(np.array([3.0, 6.0]), weight=3.0)
        >>> (total.value / total.weight).tolist()
        [1.0, 2.0]

    Attributes:
        value: float64 (d,).
        weight: the sum of the survivors' weights. nan if values are weighted by n_k / n.

    Raises nothing.
    """

    value: Floats
    weight: float


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers to a cohort query. A client that fell silent or was refused is absent.

        >>> from securefl.algorithm import Answers
        >>> Answers(survivors=(0, 2), totals={}, per_client={"loss": {0: 0.5, 2: 0.7}}).per_client["loss"][2]
        0.7

    Attributes:
        survivors: the clients whose contributions were used.
        totals: the sums by name of the value.
        per_client: by name of the value, each client's number. A survivor is absent here if its encrypted
            number could not be opened. If sums are hidden, the numbers come from an exchange before the sum,
            so a client may be in `per_client` and not in `survivors`, or the reverse.
        error_bound: the largest error of a concealed number, except with probability 1e-6. 0 in the clear.

    Raises nothing.
    """

    survivors: tuple[Any, ...]
    totals: Mapping[str, Total]
    per_client: Mapping[str, Mapping[Any, float]]
    error_bound: float = 0.0
