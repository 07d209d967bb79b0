"""The interface of a privacy mechanism, and the base class of Gaussian ones.

A mechanism is made from a plan and a value's spec, which are public. It states which party draws noise, how
much, what a release then costs against each party, and which party must be trusted. No method of it is given
records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar, Final, Protocol

from securefl.accounting.events import NON_PRIVATE
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.release import Charge
from securefl.dp.gaussian import Integers
from securefl.dp.noise import Source

KEY_HOLDER_ADDS: Final = "two-server"
"""The only sum scheme in which the key holder computes a sum that it can add noise to."""


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """The grid units that noise may take on top of the number that it protects.

        >>> from securefl.mechanisms import Headroom
        >>> Headroom(share=13 * 64), Headroom(share=None)
        (Headroom(share=832, total=0), Headroom(share=None, total=0))

    Attributes:
        share: on top of a client's value in a sum. The client refuses larger noise, since the grid's bound
            would cut it off. None: the noise is that of one client only, so the noised value may be cut to
            the grid, which is post-processing.
        total: on top of a total whose modulus must hold the noise. The key holder refuses larger noise.

    Raises nothing.
    """

    share: int | None = 0
    total: int = 0


@dataclass(frozen=True, kw_only=True)
class Participation:
    """The releases of a value that one client may be in. The charge of each release assumes no more.

        >>> from securefl.mechanisms import Participation
        >>> Participation(most=5).separation
        1

    Attributes:
        most: the most releases of one client.
        separation: the least number of rounds from one of its releases to the next.

    Raises nothing.
    """

    most: int
    separation: int = 1


class Mechanism(Protocol):
    """The noise on one value under one plan.

        >>> from securefl.algorithm import Plan, ValueSpec
        >>> from securefl.mechanisms import mechanism_of
        >>> plan = Plan(noise="local", noise_multiplier=2.0, adjacency="add-remove", delta=1e-5, max_rounds=1)
        >>> one = {("record", "add-remove"): 1.0}
        >>> step = ValueSpec(name="step", reduction="sum", reveals="", sensitivity=one)
        >>> mechanism_of(plan, step).charge().server
        GaussianDpEvent(noise_multiplier=2.0)

    Raises:
        ConfigError: `check` raises it if no release under this plan would have the noise that `charge`
            states.
    """

    @property
    def noised(self) -> bool:
        """Whether noise is added at all."""
        ...

    @property
    def exposed(self) -> Charge:
        """The charge of a release if `charge` is None and the plan names the value as non-private."""
        ...

    @property
    def participation(self) -> Participation | None:
        """The most releases of a client that the charges assume. None if they assume no limit."""
        ...

    @property
    def trusts(self) -> str:
        """The reason why `charge` is None, as words that follow "would leave its client without noise"."""
        ...

    @property
    def total_by(self) -> str | None:
        """The party that draws noise for the total: server, key holder or None."""
        ...

    def check(self) -> None:
        """Raises ConfigError if no release under this plan would have the noise that `charge` states."""
        ...

    def charge(self) -> Charge | None:
        """The cost of one release, after `check`. None if no bound holds against an adversary of the plan."""
        ...

    def min_contributions(self, cohort: int) -> int:
        """The least number of contributions that have the promised noise. 0: no least number.

        The number is for a cohort of the given size.

        The server discards a total of fewer, even if the plan's `dropout` would allow it.
        """
        ...

    def headroom(self) -> Headroom:
        """The room on the grid, and in a total's modulus, that the noise needs."""
        ...

    def client_noise(self, size: int, source: Source) -> Integers | None:
        """The noise that one client adds to `size` grid integers: int64 (size,). None if it adds nothing."""
        ...

    def total_noise(self, party: str, size: int, rows: Sequence[Source]) -> Integers | None:
        """This party's noise on a total of `size` grid integers: int64 (size,). None if it adds nothing.

        Args:
            party: the party that asks, server or key holder.
            size: the number of entries.
            rows: sources of randomness, rows[0] for this release.
        """
        ...

    def deviation(self, contributions: int) -> float:
        """The standard deviation of an entry's noise in a total of this many, in the value's unit."""
        ...

    def learns(self, party: str) -> str:
        """The noise's effect on a party's view, in words for the privacy card. Empty for none.

        The server's words follow the words for the value itself.
        """
        ...


class Kind(Protocol):
    """A factory of mechanisms for one word of `[privacy] noise`, mostly a class.

    Attributes:
        legend: the word's description in figure legends.
        mutual: whether a client's privacy depends on the noise of other clients. The plan then states how
            many of them may collude.
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
    """No noise: the plan asks for none, or the value declares no sensitivity for the plan's unit."""

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
    """The base class of Gaussian mechanisms: sigma is the plan's noise multiplier times the sensitivity.

        >>> from securefl.algorithm import Plan, ValueSpec
        >>> from securefl.mechanisms import BaseMechanism
        >>> plan = Plan(noise="local", noise_multiplier=2.0, adjacency="add-remove", delta=1e-5, max_rounds=1)
        >>> one = {("record", "add-remove"): 1.0}
        >>> step = ValueSpec(name="step", reduction="sum", reveals="", sensitivity=one)
        >>> mechanism = BaseMechanism(plan, step)
        >>> mechanism.deviation(1), mechanism.sigma == 2.0 / step.grid.step
        (2.0, True)

    The base class draws no noise and has no needs. A mechanism overrides the methods in which it differs.

    Raises:
        KeyError: the value's spec has no sensitivity for the plan's unit and adjacency.
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
        """The L2 sensitivity, in the value's own unit."""
        return self.spec.sensitivity[self.plan.unit, self.plan.adjacency]

    @property
    def sensitivity_on_grid(self) -> float:
        """The L2 sensitivity, in grid units."""
        return self.sensitivity / self.spec.grid.step

    @property
    def sigma(self) -> float:
        """The standard deviation of all promised noise, in grid units."""
        return self.plan.noise_multiplier * self.sensitivity_on_grid

    @property
    def _by_each_client(self) -> bool:
        """Whether each client adds all of the noise to its own value."""
        return self.total_by is None and not self.mutual

    def check(self) -> None:
        pass

    def min_contributions(self, cohort: int) -> int:
        return 0

    def headroom(self) -> Headroom:
        # A client that adds all of the noise by itself may cut what it noised to the grid.
        return Headroom(share=None) if self._by_each_client else Headroom()

    def client_noise(self, size: int, source: Source) -> Integers | None:
        return None

    def total_noise(self, party: str, size: int, rows: Sequence[Source]) -> Integers | None:
        return None

    def deviation(self, contributions: int) -> float:
        # Independent noises of all clients: the variances add up.
        noises = contributions if self._by_each_client else 1
        return self.plan.noise_multiplier * self.sensitivity * sqrt(noises)
