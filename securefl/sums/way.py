"""What stands behind one word of `[privacy] sum`: a way of summing integers that the server sees no single
one of.

A way makes the machines of one attempt at a sum. Machines order slow work. This is all of it, whatever the
way:

client       `acts.Begin`, `acts.Record`   what it is about to do is on record first
             `hiding.Hide`                 its values are computed, charged and concealed
server       `machine.Work`                runs anywhere, with all it needs
key holder   `machine.Work`, `acts.Record` where there is one

The way says what the result of the server's machine means, an `Opened` or an `Unopened`. Sums in the clear
need no attempt: the exchange itself adds them, by `clear`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from securefl.core import agreement
from securefl.core.agreement import Identity, Vector
from securefl.core.errors import ConfigError
from securefl.core.machine import Machine
from securefl.core.wire import Header
from securefl.messages import client_name
from securefl.plan import Plan, fewest_contributions
from securefl.rounds import Ask, Sends
from securefl.storage.journal import Journal

A = TypeVar("A", bound=agreement.Agreement)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a hidden sum, as the server calls it.

    Attributes:
        ask: what is asked.
        again: how often it was put anew after an answer was lost.
        cohort: who is called; a subset of the cohort that was ordered.
        ordered: size of that cohort.
        task: digest of what the server told the cohort.
        told: by name, the digest of what each client was told; who was told nothing takes no part.
    """

    ask: Ask
    again: int
    cohort: Sequence[int]
    ordered: int
    header: Header
    task: bytes
    told: Mapping[str, bytes] = field(repr=False)

    @property
    def sends(self) -> tuple[Sends, ...]:
        """What is summed."""
        return tuple(question.sends for question in self.ask.sums)

    def vectors(self, room: Callable[[Sends], int] = lambda sends: 0) -> tuple[Vector, ...]:
        """The sums as vectors whose modulus has room for the whole cohort, and for so much beside it."""
        return tuple(
            Vector(
                name=question.sends.name,
                length=question.size,
                bits=max(
                    8, (len(self.cohort) * question.sends.grid.limit + room(question.sends)).bit_length() + 1
                ),
                bound=question.sends.grid.limit,
                ask=self.ask.introduction,
                again=self.again,
                once=question.sends.once,
            )
            for question in self.ask.sums
        )

    def agreement_of(self, name: str, agreed: A) -> A:
        """The agreement as this client was told of it; usually the very one."""
        told = self.told[name]
        return agreed if agreed.task == told else replace(agreed, task=told)


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The sums over the survivors, int64 by name, and the survivors' names.

    culprits: clients that are proven to have sent what could not be summed, and why.
    """

    totals: Mapping[str, NDArray[np.int64]]
    survivors: tuple[str, ...]
    culprits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Unopened:
    """Nothing was opened, and why.

    Attributes:
        reason: a sentence.
        final: another set could not be opened any more, in any attempt at these questions.
        culprits: clients that are proven to have caused it, and why; the next attempt goes without them.
    """

    reason: str
    final: bool = False
    culprits: Mapping[str, str] = field(default_factory=dict)


class Way(Protocol):
    """A way of summing under one plan. One object serves a session."""

    @property
    def key_holder_learns(self) -> str:
        """What the key holder learns, in words; empty where the way has none."""
        ...

    def check(self, sends: Sends, cohort: int) -> None:
        """ConfigError where no sum of these values over a cohort of this size would ever be opened."""
        ...

    def machines(self, attempt: Attempt) -> Mapping[str, Machine[Any]]:
        """By party, the machines of one attempt; those of clients under their names.

        ConfigError for a cohort that the plan does not allow.
        """
        ...

    def outcome(self, server: Any, result: Any) -> Opened | Unopened:
        """What the total is, from the server's machine and its result."""
        ...


class Identities:
    """The lasting keys of clients, the same for a whole session and after a restart.

    They are the clients' own and would be on their devices.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._known: dict[tuple[str, bytes], Identity] = {}

    def of(self, attempt: Attempt) -> list[Identity]:
        """The cohort's, in the order of names."""
        names, session = sorted(map(client_name, attempt.cohort)), attempt.header.session
        new = [name for name in names if (name, session) not in self._known]
        for name, secret in zip(new, self._journal.lasting(new, session) if new else [], strict=True):
            self._known[name, session] = Identity.of(name, secret)
        return [self._known[name, session] for name in names]


def required_contributions(plan: Plan, sends: Sequence[Sends], cohort: int, ordered: int) -> int:
    """The fewest contributions that a key holder opens a total of these values of.

    ConfigError for a cohort below what the plan declares, and for a total that too few honest clients would
    stand behind.
    """
    enough = max(2, fewest_contributions(plan, ordered, sends))
    fewest = max(enough, plan.least_cohort)
    if cohort < fewest:
        raise ConfigError(
            f"Expected a cohort of at least {fewest} clients, got {cohort}: ask more, or let fewer be enough "
            "(`least_cohort`, `dropout`)."
        )
    honest = enough - plan.colluding(ordered)
    if honest < plan.least_honest:
        raise ConfigError(
            f"Expected at least {plan.least_honest} honest inputs, got {honest}: {enough} clients are enough "
            f"for a sum, and {plan.colluding(ordered)} of them may collude (`least_honest`, `dropout`, "
            "`corrupt`)."
        )
    return enough
