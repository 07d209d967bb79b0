"""The interface of a sum scheme that `[privacy] sum` names: the server learns the sum and nothing else.

Each scheme has one class per party, called its side. For each attempt at a sum a side creates the party's
state machine. It uses only what that party knows. A machine does no slow work itself: it returns a `Need`,
and the host does the work. A scheme may request only these kinds of work:

client       `acts.Begin`, `acts.RecordAct`   record an act before it is done
             `hiding.ComputeAndConceal`       compute, charge and conceal the client's values
server       `machine.Work`                   carries its own inputs, so it can run in any process
key holder   `machine.Work`, `acts.RecordAct` if there is a key holder

The server's side makes an `Opened` or an `Unopened` of its machine's result. Sums in the clear need no
attempt: the exchange itself adds them, by `clear`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Sum, ValueSpec
from securefl.algorithm.weighing import Weights, require_allowed
from securefl.core.agreement import Directory, Identity, Vector
from securefl.core.errors import ConfigError
from securefl.core.machine import Machine
from securefl.core.messages import Cohort, Order, client_name
from securefl.core.wire import Header
from securefl.mechanisms.charges import fewest_contributions
from securefl.storage.own_record import PartyKeys


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a hidden sum, as one party knows it from its own plan, its order and the server's call.

        >>> from securefl.algorithm import ValueSpec, Sum
        >>> from securefl.algorithm.weighing import Weights
        >>> from securefl.sums import Attempt, Header
        >>> step = Sum(ValueSpec(name="step", reduction="sum", reveals="a step"), 3)
        >>> attempt = Attempt(header=Header(bytes(32), round=1, attempt=1, stage=0), sums=(step,),
        ...                   initial=0, number=0, again=0, cohort=("a", "b"),
        ...                   weights=Weights((1, 1, 1)), task=bytes(32))
        >>> attempt.ordered, attempt.vectors()[0].bits
        (3, 33)

    Attributes:
        header: the session, round, stage and attempt.
        sums: the sums of the query.
        initial, number: as in the query.
        again: how many retries preceded this attempt.
        cohort: names of the called clients, a subset of the ordered cohort.
        weights: the weights that the order states for the ordered cohort.
        task: digest of the task that this party sent to the cohort, or received.

    Raises nothing.
    """

    header: Header
    sums: tuple[Sum, ...]
    initial: int
    number: int
    again: int
    cohort: tuple[str, ...]
    weights: Weights
    task: bytes

    @classmethod
    def of(
        cls,
        order: Order,
        cohort: Cohort,
        *,
        header: Header,
        sums: tuple[Sum, ...],
        called: Iterable[int],
        task: bytes,
    ) -> Self:
        """The attempt of these clients at the sums of an order over this cohort."""
        return cls(
            header=header,
            sums=sums,
            initial=order.initial,
            number=order.number,
            again=order.again,
            cohort=tuple(sorted(map(client_name, called))),
            weights=Weights.of(order, cohort),
            task=task,
        )

    @property
    def ordered(self) -> int:
        """The size of the cohort that was ordered."""
        return self.weights.ordered

    @property
    def spec(self) -> tuple[ValueSpec, ...]:
        """The specs of the summed values."""
        return tuple(wanted.spec for wanted in self.sums)

    def vectors(self, room: Callable[[ValueSpec], int] = lambda spec: 0) -> tuple[Vector, ...]:
        """The sums as vectors. The modulus has room for the whole cohort, plus `room`."""
        return tuple(self._vector(wanted, room(wanted.spec)) for wanted in self.sums)

    def _vector(self, wanted: Sum, room: int) -> Vector:
        spec = wanted.spec
        most = self._sum_bound(spec) + room
        return Vector(
            name=spec.name,
            length=wanted.size,
            # Enough bits for the sum over the whole cohort and its sign. With fewer, the sum could wrap
            # modulo 2^bits unnoticed. The packing needs at least 8 bits.
            bits=max(8, most.bit_length() + 1),
            bound=spec.grid.limit,
            ask=self.initial,
            again=self.again,
            number=self.number,
            once=spec.schedule.once,
            sum_bound=most,
        )

    def _sum_bound(self, spec: ValueSpec) -> int:
        """The largest magnitude of the clients' sum, in units of the grid."""
        limit, clients = spec.grid.limit, len(self.cohort)
        if spec.sensitivity or self.weights.kind != "draws":
            return clients * limit
        # The weights add up to 1 at most, and each client's value is within the grid before it is weighted.
        # A weighted value in single precision is off by 2^-22 of itself, and rounds by half a unit.
        return min(clients * limit, limit + (limit >> 22) + 1 + clients)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The opened sums over the survivors.

        >>> import numpy as np
        >>> from securefl.sums import Opened
        >>> Opened(totals={"step": np.array([3, -1])}, survivors=("a", "b")).totals["step"].tolist()
        [3, -1]

    Attributes:
        totals: the sums by name, int64 (d,), in grid units.
        survivors: the names of the clients in the sums.
        proven_cheaters: clients that provably sent something that cannot be summed, each with the reason.

    Raises nothing.
    """

    totals: Mapping[str, NDArray[np.int64]]
    survivors: tuple[str, ...]
    proven_cheaters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Unopened:
    """An attempt that opened nothing, and the reason.

        >>> from securefl.sums import Unopened
        >>> Unopened(reason="No sum: Expected at least 4 contributions, got 2.").final
        False

    Attributes:
        reason: a sentence.
        final: True if no further attempt at these sums can open another set.
        proven_cheaters: clients that provably caused the failure, each with the reason. The server leaves
            them out of the next attempt.

    Raises nothing.
    """

    reason: str
    final: bool = False
    proven_cheaters: Mapping[str, str] = field(default_factory=dict)


class ClientSide(Protocol):
    """The clients' side of a sum scheme, for one session."""

    def machines(
        self, attempt: Attempt, identities: Sequence[Identity], key: bytes
    ) -> Mapping[str, Machine[Any]]:
        """The machines of the given clients, by name.

        Args:
            attempt: the attempt, as these clients know it.
            identities: the clients whose machines are made.
            key: the key of this attempt as the key holder signed it. Empty if the scheme needs none.

        Raises:
            ConfigError: the plan does not allow the attempt.
            CryptoError: the key is not the key holder's.
        """
        ...


class ServerSide(Protocol):
    """The server's side of a sum scheme, for one session."""

    def check(self, attempt: Attempt) -> None:
        """Raises ConfigError if the plan does not allow the attempt, before any client is called."""
        ...

    def machine(self, attempt: Attempt, key: bytes) -> Machine[Any]:
        """The server's machine. Raises ConfigError and CryptoError as `ClientSide.machines` does."""
        ...

    def outcome(self, machine: Any, result: Any) -> Opened | Unopened:
        """The outcome of the attempt, from the machine and its result."""
        ...


class KeyHolderSide(Protocol):
    """The key holder's side of a sum scheme, for one session."""

    def machine(self, attempt: Attempt) -> tuple[Machine[Any], bytes]:
        """The machine, and the key of this attempt for all parties.

        The key is empty if the pinned keys are enough. Raises ConfigError as `ClientSide.machines` does.
        """
        ...


class SumScheme(Protocol):
    """A sum scheme under one plan. Each party makes its own side, without secrets of other parties.

        >>> from securefl.algorithm import Plan, ValueSpec
        >>> from securefl.sums import scheme_of
        >>> sizes = dict(min_cohort_size=20, max_cohort_size=20, min_honest=8, max_client_weight=0.1)
        >>> plan = Plan(sum="masked", corrupt=0.2, dropout=0.1, delta=1e-5, max_rounds=10, **sizes)
        >>> scheme = scheme_of(plan)
        >>> scheme.check(ValueSpec(name="step", reduction="sum", reveals="a step"), cohort=20)
        >>> scheme.key_holder_learns
        ''

    Raises:
        ConfigError: `check` raises it if no sum of these values over a cohort of this size would ever open.
    """

    @property
    def key_holder_learns(self) -> str:
        """What the key holder learns, in words. Empty if the scheme has no key holder."""
        ...

    def check(self, spec: ValueSpec, cohort: int) -> None:
        """Raises ConfigError if no sum of these values over a cohort of this size would ever open."""
        ...

    def clients(self, directory: Directory) -> ClientSide:
        """The clients' side, from the pinned keys of all parties."""
        ...

    def server(self, own: PartyKeys) -> ServerSide:
        """The server's side, from its identity, its record and the pinned keys."""
        ...

    def key_holder(self, own: PartyKeys) -> KeyHolderSide | None:
        """The key holder's side. None if the scheme has no key holder."""
        ...


def required_contributions(plan: Plan, specs: Sequence[ValueSpec], cohort: int, weights: Weights) -> int:
    """The least number of contributions in a total of these values that a key holder opens.

    Args:
        plan: the plan of the run.
        specs: the specs of the summed values.
        cohort: the number of called clients.
        weights: the weights that the order states.

    Raises:
        ConfigError: the plan does not allow the order, or fewer clients are called than open a total.
    """
    require_allowed(plan, specs, weights)
    enough = least_opened(plan, weights.ordered, specs)
    fewest = max(enough, plan.min_cohort_size or 2)
    if not fewest <= cohort <= weights.ordered:
        raise ConfigError(
            f"Expected {fewest} to {weights.ordered} clients of the {weights.ordered} ordered, got {cohort}: "
            "call more clients, or let fewer open a sum (lower `min_cohort_size`, raise `dropout`)."
        )
    return enough


def least_opened(plan: Plan, ordered: int, specs: Sequence[ValueSpec]) -> int:
    """The least number of contributions in any hidden total of these values.

    At least two: a total of one client is its value.
    """
    return max(2, fewest_contributions(plan, ordered, specs))
