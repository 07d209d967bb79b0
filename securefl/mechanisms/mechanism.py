"""Privacy mechanisms: rounded Gaussian noise by each client, by the server or by the key holder, and none.

A mechanism is made from a plan and a value's spec, which are public. It states which party draws noise, how
much, and what a release then costs against each party. No method of it is given records. PROOF.md beside
this file has the proofs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, sqrt
from typing import ClassVar, Final

from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent

from securefl.accounting.events import steps_event
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.release import KEY_HOLDER, SERVER, Charge
from securefl.dp.correlated import CorrelatedNoise
from securefl.dp.gaussian import TAIL, Integers, require_exact, rounded
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


@dataclass(frozen=True)
class Mechanism:
    """The noise on one value under one plan, rounded and Gaussian unless a subclass has another.

        >>> from securefl.algorithm import Plan, ValueSpec
        >>> from securefl.mechanisms import Protection
        >>> plan = Plan(noise="local", noise_multiplier=2.0, adjacency="add-remove", delta=1e-5, max_rounds=1)
        >>> one = {("record", "add-remove"): 1.0}
        >>> step = ValueSpec(name="step", reduction="sum", reveals="", sensitivity=one)
        >>> mechanism = Protection(plan, step).mechanism
        >>> mechanism.charge().server, mechanism.deviation(1), mechanism.sigma == 2.0 / step.grid.step
        (GaussianDpEvent(noise_multiplier=2.0), 2.0, True)

    The party `total_by` noises a total once. Without one each client noises its own value. A subclass
    overrides what differs. All methods are functions of public inputs.

    Attributes:
        legend: the description in figure legends.
        mutual: whether a client's privacy depends on the noise of other clients. The plan then states how
            many of them may collude.
        noised: whether noise is added at all.
        participation: the most releases of a client that the charges assume. None if they assume no limit.
        total_by: the party that draws noise for the total: server, key holder or None.

    Raises:
        ConfigError: `check` raises it if no release under this plan would have the noise that `charge`
            states.
        KeyError: the value's spec has no sensitivity for the plan's unit and adjacency.
    """

    plan: Plan
    spec: ValueSpec
    legend: ClassVar[str] = "noise of another mechanism"
    mutual: ClassVar[bool] = False
    noised: ClassVar[bool] = True
    participation: ClassVar[int | None] = None
    total_by: ClassVar[str | None] = None

    @property
    def sensitivity(self) -> float:
        """The L2 sensitivity, in the value's own unit."""
        return self.spec.sensitivity[self.plan.unit, self.plan.adjacency]

    @property
    def sensitivity_on_grid(self) -> float:
        """The L2 sensitivity, in grid units."""
        return self.sensitivity / self.spec.grid.step

    @cached_property
    def correlation(self) -> CorrelatedNoise:
        """How the noise on totals hangs together over rounds."""
        return self.plan.correlation(self.spec)

    @property
    def sigma(self) -> float:
        """The standard deviation of all promised noise, or of z if it is correlated, in grid units."""
        return self.plan.noise_multiplier * self.sensitivity_on_grid * self.correlation.column_norm

    @property
    def _by_each_client(self) -> bool:
        """Whether each client adds all of the noise to its own value."""
        return self.noised and self.total_by is None and not self.mutual

    @property
    def _farthest(self) -> int:
        """13 deviations of the noise on one total, whichever rows before it are lost, in grid units.

        Raises ConfigError if they are too large for integers.
        """
        rows = self.plan.max_rounds if self.correlation.correlated else 1
        # Multiply from left to right: another order could round up to one unit more, and so give another
        # modulus than a peer's.
        farthest = TAIL * self.sigma * self.correlation.reach(rows)
        require_exact(farthest)
        # The noise of each row is rounded by itself, and a total may have that of several rows.
        return ceil(farthest) + rows

    def check(self) -> None:
        """Raises ConfigError if no release under this plan would have the noise that `charge` states."""
        _ = self._farthest

    def charge(self) -> Charge | None:
        """The cost of one release, after `check`. None if no bound holds against an adversary of the plan."""
        if not self.noised or self.total_by in self.plan.adversaries:
            return None
        event = GaussianDpEvent(self.plan.noise_multiplier)
        return Charge(
            server=NonPrivateDpEvent() if self.total_by == SERVER else event,
            # It sees no total. But one that draws the noise can subtract it from a published total.
            key_holder=NonPrivateDpEvent() if self.total_by == KEY_HOLDER else NoOpDpEvent(),
            others=event,
        )

    def min_contributions(self, cohort: int) -> int:
        """The least number of contributions of a cohort that have the promised noise. 0: no least number.

        The server discards a total of fewer, even if the plan's `dropout` would allow it.
        """
        return 0

    def headroom(self) -> Headroom:
        """The room on the grid, and in a total's modulus, that the noise needs."""
        # A client that adds all of the noise by itself may cut what it noised to the grid.
        return Headroom(share=None) if self._by_each_client else Headroom()

    def client_noise(self, size: int, source: Source) -> Integers | None:
        """Draw the noise that one client adds to its value.

        Args:
            size: the number of the value's grid integers.
            source: the client's own randomness.

        Returns:
            int64 (size,), in grid units. None if a client adds no noise.
        """
        return rounded(size, self.sigma, source) if self._by_each_client else None

    def total_noise(self, party: str, size: int, source: Source) -> Integers | None:
        """Draw the independent noise that a party adds to a total. `totals.row_noise` draws correlated noise.

        Args:
            party: the server or the key holder, who draws.
            size: the number of the total's grid integers.
            source: the party's own randomness.

        Returns:
            int64 (size,), in grid units. None if this party adds no noise.
        """
        return rounded(size, self.sigma, source) if party == self.total_by else None

    def deviation(self, contributions: int) -> float:
        """The standard deviation of an entry's noise in a total of this many, in the value's unit.

        For correlated noise: that of independent noise under which prefix sums would err as much.
        """
        if not self.noised:
            return 0.0
        # Independent noises of all clients: the variances add up.
        noises = contributions if self._by_each_client else 1
        error = self.correlation.error(self.plan.max_rounds) if self.correlation.correlated else 1.0
        return self.plan.noise_multiplier * self.sensitivity * sqrt(noises) * error

    @property
    def _over_rounds(self) -> str:
        """How noise is correlated, in words for the card. Empty if it is not."""
        if not self.correlation.correlated:
            return ""
        return f", correlated over rounds (a client is in one of {self.plan.separation} rounds at most),"

    def learns(self, party: str) -> str:
        """The noise's effect on a party's view, in words for the privacy card. Empty for none.

        The server's words follow the words for the value itself.
        """
        return ""


class NoNoise(Mechanism):
    """No noise: the plan asks for none, or the value declares no sensitivity for the plan's unit."""

    noised: ClassVar[bool] = False


class Local(Mechanism):
    """Each client adds all of the noise to its own value. It trusts no other party.

    A number that no party sums is always noised this way.
    """

    word: Final = "local"
    legend: ClassVar[str] = "noise by each client"

    def learns(self, party: str) -> str:
        return ", with noise" if party == SERVER else ""


class Central(Mechanism):
    """The server adds the noise once, before others see a total. It is trusted with the bare total."""

    word: Final = "central"
    legend: ClassVar[str] = "noise by the server"
    total_by: ClassVar[str | None] = SERVER

    def charge(self) -> Charge | None:
        own = super().charge()
        if own is None or self.plan.sampling_rate == 1:
            return own
        # Nobody but the client and the server learns of a draw, and no draw depends on another.
        return replace(own, others=steps_event(self.plan.sampling_rate, self.plan.noise_multiplier, 1))

    def deviation(self, contributions: int) -> float:
        return super().deviation(contributions) / self.plan.sampling_rate

    def learns(self, party: str) -> str:
        if party != SERVER:
            return ""
        drawn = ", and which clients' own draws let them take part" if self.plan.sampling_rate < 1 else ""
        return (
            f" (trusted to sum them and add the noise{self._over_rounds} before another party sees the sum)"
            f"{drawn}"
        )


class KeyHolder(Mechanism):
    """The key holder of a two-server sum adds the noise once, to the sum of pads. Only it is trusted."""

    word: Final = "key-holder"
    legend: ClassVar[str] = "noise by the key holder"
    total_by: ClassVar[str | None] = KEY_HOLDER

    def headroom(self) -> Headroom:
        return Headroom(total=self._farthest)

    def learns(self, party: str) -> str:
        if party == KEY_HOLDER:
            return (
                f"the noise{self._over_rounds} that it draws, which it could subtract from a published total"
            )
        return ", with the key holder's noise" if party == SERVER else ""


Kind = type[Mechanism]
"""The mechanisms of one word of `[privacy] noise`."""
