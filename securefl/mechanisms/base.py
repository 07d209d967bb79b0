"""What a mechanism is: one object of a plan and of the description of a value, from public inputs alone.

A mechanism says who draws noise, how much, what one release then costs against each party, and who must be
trusted with what. Nothing here is drawn from records, and no method is given any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

from securefl.accounting.events import NON_PRIVATE
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.release import Charge
from securefl.dp.gaussian import Integers
from securefl.dp.noise import Source

KEY_HOLDER_ADDS: Final = "two-server"
"""The sums in which the key holder adds numbers that it can put noise on."""


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """Grid units that noise may take beside what it protects.

    Attributes:
        share: beside a client's value in a sum. Noise beyond it is refused, since the grid's bound would cut
            it off. None: one client's noise is all of it, so the noised value may be cut to the grid, which
            is post-processing.
        total: beside a total whose modulus must hold the noise. Noise beyond it is refused.
    """

    share: int | None = 0
    total: int = 0


@dataclass(frozen=True, kw_only=True)
class Participation:
    """How often one client may be in releases of a value. The charge of each holds for no more.

    Attributes:
        most: the most releases of one client.
        separation: the least number of rounds from one of its releases to the next.
    """

    most: int
    separation: int = 1


class Mechanism(Protocol):
    """The noise on one kind of value under one plan."""

    @property
    def noised(self) -> bool:
        """Whether noise is added at all."""
        ...

    @property
    def exposed(self) -> Charge:
        """The charge of a release for which `charge` is None, and which the plan names as unprotected."""
        ...

    @property
    def participation(self) -> Participation | None:
        """What the charges lean on, None if each release stands for itself."""
        ...

    @property
    def trusts(self) -> str:
        """Why `charge` is None, in words behind "would leave its client without noise"."""
        ...

    @property
    def total_by(self) -> str | None:
        """The party that draws noise for the total: server, key holder or None."""
        ...

    def check(self) -> None:
        """ConfigError if no release under this plan would have the noise that `charge` states."""
        ...

    def charge(self) -> Charge | None:
        """The cost of one release, after `check`. None if nothing is bounded against a party of the plan."""
        ...

    def min_contributions(self, cohort: int) -> int:
        """The fewest contributions of a cohort of this size that hold the promised noise. 0: none are needed.

        A total of fewer is thrown away, whatever else the plan lets a sum have.
        """
        ...

    def headroom(self) -> Headroom: ...

    def client_noise(self, size: int, source: Source) -> Integers | None:
        """What one client adds to `size` grid integers: int64 (size,). None if it adds nothing."""
        ...

    def total_noise(self, party: str, size: int, rows: Sequence[Source]) -> Integers | None:
        """What this party adds to a total of `size` grid integers: int64 (size,). None if it adds nothing.

        rows: what noise is drawn from, rows[0] for this release.
        """
        ...

    def deviation(self, contributions: int) -> float:
        """Deviation of the noise in an entry of a total of so many contributions, in the value's own unit."""
        ...

    def learns(self, party: str) -> str:
        """What the noise changes of what a party learns, in words for the privacy card; empty for nothing.

        Those for the server follow the words for the value itself.
        """
        ...


class Kind(Protocol):
    """What makes mechanisms of one word of `[privacy] noise`, such as a class.

    Attributes:
        legend: how legends say the word.
        mutual: whether a client's privacy hangs on the noise of others. The plan then states how many of them
            may collude.
        total_by: as for the mechanisms.
    """

    @property
    def legend(self) -> str: ...

    @property
    def mutual(self) -> bool: ...

    @property
    def total_by(self) -> str | None: ...

    def __call__(self, plan: Plan, spec: ValueSpec, /) -> Mechanism: ...


@dataclass(frozen=True)
class NoNoise:
    """The null object: the plan asks for no noise, or the value declares no sensitivity in its unit."""

    noised: ClassVar[bool] = False
    exposed: ClassVar[Charge] = NON_PRIVATE
    participation: ClassVar[Participation | None] = None
    trusts: ClassVar[str] = ""
    total_by: ClassVar[str | None] = None

    def check(self) -> None:
        pass

    def charge(self) -> None:
        return None

    def min_contributions(self, cohort: int) -> int:
        return 0

    def headroom(self) -> Headroom:
        return Headroom()

    def client_noise(self, size: int, source: Source) -> None:
        return None

    def total_noise(self, party: str, size: int, rows: Sequence[Source]) -> None:
        return None

    def deviation(self, contributions: int) -> float:
        return 0.0

    def learns(self, party: str) -> str:
        return ""


@dataclass(frozen=True)
class BaseMechanism:
    """What the mechanisms of this package share: sigma is the plan's multiplier times the sensitivity.

    Each adds what is its own. Without that it draws nothing, and asks for nothing.
    """

    plan: Plan
    spec: ValueSpec
    legend: ClassVar[str] = "noise of another mechanism"
    mutual: ClassVar[bool] = False
    noised: ClassVar[bool] = True
    exposed: ClassVar[Charge] = NON_PRIVATE
    participation: ClassVar[Participation | None] = None
    trusts: ClassVar[str] = ""
    total_by: ClassVar[str | None] = None

    @property
    def sensitivity(self) -> float:
        """In L2, in the value's own unit."""
        return self.spec.sensitivity[self.plan.unit, self.plan.adjacency]

    @property
    def sensitivity_on_grid(self) -> float:
        """In grid units."""
        return self.sensitivity / self.spec.grid.step

    @property
    def sigma(self) -> float:
        """The deviation of all the noise that is promised, in grid units."""
        return self.plan.noise_multiplier * self.sensitivity_on_grid

    def check(self) -> None:
        pass

    def min_contributions(self, cohort: int) -> int:
        return 0

    def headroom(self) -> Headroom:
        # A client that adds all of the noise by itself may cut what it noised to the grid.
        alone = self.total_by is None and not self.mutual
        return Headroom(share=None) if alone else Headroom()

    def client_noise(self, size: int, source: Source) -> Integers | None:
        return None

    def total_noise(self, party: str, size: int, rows: Sequence[Source]) -> Integers | None:
        return None

    def deviation(self, contributions: int) -> float:
        return self.plan.noise_multiplier * self.sensitivity
