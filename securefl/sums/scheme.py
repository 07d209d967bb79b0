"""One word of `[privacy] sum`: a way of summing integers of which the server sees the sum alone.

A way has a side for each party. A side makes its party's machine of one attempt at a sum, from what that
party knows. Machines order slow work. This is all of it, whatever the way:

client       `acts.Begin`, `acts.RecordAct`   what it is about to do is on record first
             `hiding.ComputeAndConceal`                    its values are computed, charged and concealed
server       `machine.Work`                   runs anywhere, with all it needs
key holder   `machine.Work`, `acts.RecordAct` where there is one

The server's side says what the result of its machine means, an `Opened` or an `Unopened`. Sums in the clear
need no attempt: the exchange itself adds them, by `clear`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Sum, ValueSpec
from securefl.algorithm.weighing import Weights, require_allowed
from securefl.core.agreement import Directory, Identity, Vector
from securefl.core.errors import ConfigError
from securefl.core.machine import Machine
from securefl.core.wire import Header
from securefl.mechanisms.charges import fewest_contributions
from securefl.storage.own_record import Own


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a hidden sum, as one party knows it: from its own plan, its order and the server's call.

    Attributes:
        sums: what is summed.
        initial, number, again: of the questions; `again` counts how often they were put anew.
        cohort: names of who is called; a subset of the cohort that was ordered.
        weights: what the order said of the weights of that cohort.
        task: digest of what this party told the cohort, or was told.
    """

    header: Header
    sums: tuple[Sum, ...]
    initial: int
    number: int
    again: int
    cohort: tuple[str, ...]
    weights: Weights
    task: bytes

    @property
    def ordered(self) -> int:
        """The size of the cohort that was ordered."""
        return self.weights.ordered

    @property
    def spec(self) -> tuple[ValueSpec, ...]:
        """What is summed."""
        return tuple(question.spec for question in self.sums)

    def vectors(self, room: Callable[[ValueSpec], int] = lambda spec: 0) -> tuple[Vector, ...]:
        """The sums as vectors. The modulus has room for the whole cohort, and for `room` beside it."""
        return tuple(
            Vector(
                name=question.spec.name,
                length=question.size,
                # The sum of the whole cohort, with a bit for its sign: in fewer bits it would wrap, and
                # nobody would see it. Packing takes no fewer than 8.
                bits=max(
                    8, (len(self.cohort) * question.spec.grid.limit + room(question.spec)).bit_length() + 1
                ),
                bound=question.spec.grid.limit,
                ask=self.initial,
                again=self.again,
                number=self.number,
                once=question.spec.once,
            )
            for question in self.sums
        )


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The sums over the survivors, int64 by name, and the survivors' names.

    culprits: clients that are proven to have sent what could not be summed, and why.
    """

    totals: Mapping[str, NDArray[np.int64]]
    survivors: tuple[str, ...]
    proven_cheaters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Unopened:
    """Nothing was opened, and why.

    Attributes:
        reason: a sentence.
        final: no attempt at these questions can open another set any more.
        culprits: clients that are proven to have caused it, and why; the next attempt goes without them.
    """

    reason: str
    final: bool = False
    proven_cheaters: Mapping[str, str] = field(default_factory=dict)


class ClientSide(Protocol):
    """A way of summing as clients have it, for one session."""

    def machines(
        self, attempt: Attempt, identities: Sequence[Identity], key: bytes
    ) -> Mapping[str, Machine[Any]]:
        """By name, the machines of the clients at hand.

        key: what the key holder said its key of this attempt is; empty where a way needs none.
        ConfigError for an attempt that the plan does not allow, CryptoError for a key that is not the key
        holder's.
        """
        ...


class ServerSide(Protocol):
    """A way of summing as the server has it, for one session."""

    def check(self, attempt: Attempt) -> None:
        """ConfigError for an attempt that the plan does not allow, before anybody is called to it."""
        ...

    def machine(self, attempt: Attempt, key: bytes) -> Machine[Any]:
        """ConfigError and CryptoError as for `ClientSide.machines`."""
        ...

    def outcome(self, machine: Any, result: Any) -> Opened | Unopened:
        """What the total is, from the machine and its result."""
        ...


class KeyHolderSide(Protocol):
    """A way of summing as the key holder has it, for one session."""

    def machine(self, attempt: Attempt) -> tuple[Machine[Any], bytes]:
        """The machine, and the key of this attempt for everybody; empty where the pinned ones are enough.

        ConfigError as for `ClientSide.machines`.
        """
        ...


class SumScheme(Protocol):
    """A way of summing under one plan. Each party makes its own side, and has nothing of the others'."""

    @property
    def key_holder_learns(self) -> str:
        """What the key holder learns, in words; empty where the way has none."""
        ...

    def check(self, spec: ValueSpec, cohort: int) -> None:
        """ConfigError where no sum of these values over a cohort of this size would ever be opened."""
        ...

    def clients(self, directory: Directory) -> ClientSide: ...

    def server(self, own: Own) -> ServerSide: ...

    def key_holder(self, own: Own) -> KeyHolderSide | None:
        """None where the way has no key holder."""
        ...


def required_contributions(plan: Plan, specs: Sequence[ValueSpec], cohort: int, weights: Weights) -> int:
    """The fewest contributions that a key holder opens a total of these values of.

    cohort: how many clients are called. ConfigError for an order that the plan does not allow, and for fewer
    clients than are enough.
    """
    require_allowed(plan, specs, weights)
    enough = least_opened(plan, weights.ordered, specs)
    fewest = max(enough, plan.min_cohort_size or 2)
    if not fewest <= cohort <= weights.ordered:
        raise ConfigError(
            f"Expected {fewest} to {weights.ordered} clients of the {weights.ordered} ordered, got {cohort}: "
            "ask more, or let fewer be enough (`min_cohort_size`, `dropout`)."
        )
    return enough


def least_opened(plan: Plan, ordered: int, specs: Sequence[ValueSpec]) -> int:
    """The fewest contributions that any hidden total of these values is opened of.

    Two at least: a total of one client is its value.
    """
    return max(2, fewest_contributions(plan, ordered, specs))
