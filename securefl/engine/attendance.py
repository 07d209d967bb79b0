"""Attendance: which parties took no part in a round, since which round, and the public reason.

It is the server's view, for the person who runs the server. Every word of it follows from facts that the
server has anyway: the parties it asked, the replies on its wire, its own checks of them, and its public
account of charges. No client's reason enters. A client that abstains does not say why, so the server knows
only that it sent no value. The reason stands in that client's own `securefl party status`. In a simulation
the clients' reasons are in the same process. They are in `observer.Log`, which this module does not read.

Who took part is not for publication (`storage.private_folder`), since under an infinite epsilon a client's
silence may depend on its records. Under a finite one it does not: such a client answers as it would without
records (`core.abstaining`), so this view adds nothing to what the ledger counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, Self

_NAMED: Final = 8
"""The number of absent parties that a line names. It counts the others."""


class Absence(Enum):
    """Why a party took no part in a round, as the server sees it."""

    SILENT = "silent"
    """No reply came, or none in time."""
    REFUSED = "refused the order"
    """It replied that it refuses: it has another plan, roster or session, or has forgotten its session."""
    NO_VALUE = "sent no value"
    """It replied, and its replies had no value. Its owner reads why in `securefl party status`."""
    INVALID = "sent an invalid message"
    """The server could not use its message."""
    CHEATED = "proven to cheat"
    """Its signed messages prove it. It is asked no more."""
    OVER_BUDGET = "over budget"
    """By its public charges, its budget bears no further round, so it is not asked."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the server saw of one cohort query, or of several of one round.

    Attributes:
        asked: the names of the clients that were asked, and of the key holder if it was needed.
        absent: the parties of these that gave nothing usable, with the reason.
        short: why the server opened no sum, in its own words; empty if it opened all.
    """

    asked: frozenset[str] = frozenset()
    absent: Mapping[str, Absence] = field(default_factory=dict)
    short: str = ""

    def outside(self, absent: Mapping[str, Absence]) -> Seen:
        """The same with these parties absent: they are outside the session, so no request reached them."""
        return replace(self, absent={**self.absent, **absent})

    @classmethod
    def together(cls, queries: Iterable[Seen]) -> Seen:
        """All queries of a round: a party is absent if it missed one of them, for its latest reason."""
        found = cls()
        for one in queries:
            found = cls(
                asked=found.asked | one.asked,
                absent={**found.absent, **one.absent},
                short=one.short or found.short,
            )
        return found

    def record(self) -> dict[str, Any]:
        """As a value for JSON, for the record of a round. `of` reads it."""
        return {
            "asked": sorted(self.asked),
            "absent": {name: self.absent[name].value for name in sorted(self.absent)},
            "short": self.short,
        }

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Read such a value. An invalid one raises an error of any type."""
        return cls(
            asked=frozenset(map(str, record["asked"])),
            absent={str(name): Absence(word) for name, word in record["absent"].items()},
            short=str(record["short"]),
        )


@dataclass(frozen=True, order=True)
class Absent:
    """A party's absence: its name, the reason's words, and the first round of it without a break."""

    name: str
    why: str
    since: int


@dataclass(frozen=True, kw_only=True)
class Presence:
    """Who took part in one round.

    Attributes:
        number: of the round.
        asked, answered: the numbers of clients that were asked, and of those that took part.
        absent: the parties that took no part, by name. Clients over budget are among them, though not asked.
        short: why no sum was opened; empty if all were.
    """

    number: int
    asked: int
    answered: int
    absent: tuple[Absent, ...] = ()
    short: str = ""

    def line(self) -> str:
        """One line, such as "round 4: 3 of 5 answered; client-0001 silent since round 2"."""
        said = f"{self.answered} of {self.asked} answered" if self.asked else "nobody was asked"
        named = [f"{one.name} {one.why} since round {one.since}" for one in self.absent[:_NAMED]]
        more = len(self.absent) - len(named)
        parts = [said, *named, *([f"{more} others absent"] if more else [])]
        if self.short:
            parts.append(f"no sum was opened: {self.short.rstrip('.')}")
        return f"round {self.number}: {'; '.join(parts)}"


class Attendance:
    """Follows absences over the rounds of one run or session.

    >>> from securefl.engine.attendance import Absence, Attendance, Seen
    >>> known = Attendance()
    >>> three = frozenset({"client-0000", "client-0001", "client-0002"})
    >>> silent = Seen(asked=three, absent={"client-0001": Absence.SILENT})
    >>> known.round(1, silent).line()
    'round 1: 2 of 3 answered; client-0001 silent since round 1'
    >>> known.round(2, silent, over_budget=["client-0003"]).absent[0].since
    1

    An absence begins with its reason, so another reason begins another absence. It ends once the party
    answers. A round in which a party is not asked changes nothing for it.
    """

    def __init__(self) -> None:
        self._open: dict[str, Absent] = {}

    def round(self, number: int, seen: Seen, *, over_budget: Collection[str] = ()) -> Presence:
        """Note one round.

        Args:
            number: of the round. Rounds come in order.
            seen: all queries of the round, together.
            over_budget: the names of the clients that the public account lets rest in this round.
        """
        for name in seen.asked - set(seen.absent):
            self._open.pop(name, None)
        for name, why in (
            *seen.absent.items(),
            *((name, Absence.OVER_BUDGET) for name in over_budget if name not in seen.asked),
        ):
            known = self._open.get(name)
            if known is None or known.why != why.value:
                self._open[name] = Absent(name, why.value, number)
        here = {*seen.absent, *over_budget}
        clients = {name for name in seen.asked if name.startswith("client-")}
        return Presence(
            number=number,
            asked=len(clients),
            answered=len(clients - set(seen.absent)),
            absent=tuple(sorted(self._open[name] for name in here if name in self._open)),
            short=seen.short,
        )


def spans(rounds: Sequence[Presence]) -> list[tuple[Absent, int, int]]:
    """Each absence of these rounds, with its last round and the number of rounds it lasted, in order."""
    found: dict[Absent, list[int]] = {}
    for one in rounds:
        for absent in one.absent:
            found.setdefault(absent, []).append(one.number)
    ordered = sorted(found.items(), key=lambda item: (item[0].since, item[0].name))
    return [(absent, missed[-1], len(missed)) for absent, missed in ordered]
