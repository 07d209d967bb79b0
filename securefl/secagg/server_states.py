"""What the server of secure aggregation knows in each phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from securefl.core.grown import Grown
from securefl.core.keys import Signature
from securefl.secagg.agreement import ClosedRoster, Entry
from securefl.secagg.dealing import Published
from securefl.secagg.masks import Words


@dataclass(frozen=True)
class Advertising:
    """Round 0: the members' advertisements. In every phase `waited` counts the deadlines that passed."""

    phase = 0
    entries: Grown[int, Entry]
    waited: int = 0


@dataclass(frozen=True)
class Sharing:
    """Round 1: the dealings of the closed roster's members."""

    phase = 1
    closed: ClosedRoster = field(repr=False)
    dealt: Grown[int, Published] = field(repr=False)
    waited: int = 0


@dataclass(frozen=True, kw_only=True)
class Summing:
    """Round 2: the running sums, and the signature of each input in them.

    `gone` are the holders that complained and left. `accused` has, for each dealer, who accused it without
    proof.
    """

    phase = 2
    closed: ClosedRoster = field(repr=False)
    dealt: Mapping[int, Published] = field(repr=False)
    sums: tuple[Words, ...] = field(repr=False)
    inputs: Grown[int, Signature] = field(repr=False)
    gone: frozenset[int] = frozenset()
    accused: Mapping[int, frozenset[int]] = field(default_factory=dict)
    waited: int = 0

    @property
    def dealers(self) -> tuple[int, ...]:
        return tuple(sorted(self.dealt))

    @property
    def survivors(self) -> tuple[int, ...]:
        return tuple(sorted(self.inputs))


@dataclass(frozen=True)
class Agreeing:
    """Round 3: the signatures on the one set of survivors."""

    phase = 3
    summed: Summing
    signatures: Grown[int, Signature] = field(repr=False)
    waited: int = 0


@dataclass(frozen=True)
class Opening:
    """Round 4: who answered, and the opened shares of each dealer by holder."""

    phase = 4
    summed: Summing
    asked: tuple[int, ...]
    answered: frozenset[int]
    shares: Mapping[int, Grown[int, bytes]] = field(repr=False)
    waited: int = 0


@dataclass(frozen=True)
class Working:
    """The host takes the masks off."""

    phase = 5


@dataclass(frozen=True)
class Closing:
    """It is over."""

    phase = 6


ServerState = Advertising | Sharing | Summing | Agreeing | Opening | Working | Closing
