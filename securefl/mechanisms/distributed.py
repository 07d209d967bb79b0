"""`noise = "distributed"`: each client adds a noise share. The honest survivors' shares add up to the noise.

PROOF.md beside this file has the proof.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import ClassVar, Final

from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent

from securefl.core.errors import ConfigError
from securefl.core.release import SERVER, Charge
from securefl.dp.gaussian import TAIL, Integers, discrete, discrete_event, share
from securefl.dp.noise import Source
from securefl.mechanisms.mechanism import Headroom, Mechanism


class Distributed(Mechanism):
    """Discrete Gaussian shares, sized for the least number of honest survivors of the declared cohort."""

    word: Final = "distributed"
    legend: ClassVar[str] = "noise in shares of the clients"
    mutual: ClassVar[bool] = True

    def check(self) -> None:
        """Raises ConfigError if the grid is too coarse for the noise, or too fine or narrow for a share.

        If the grid's bound cut shares off, the sum would have less noise than is charged.
        """
        super().check()
        discrete_event(self._total_sigma(), self.sensitivity_on_grid)
        farthest = self.sensitivity_on_grid + TAIL * self.share_sigma()
        limit = self.spec.grid.limit
        if farthest > limit:
            raise ConfigError(
                f"Expected {self.spec.name!r} and its share of the noise within {limit} grid units, got "
                f"{farthest:.3g}: the bound would cut the noise off. Take a coarser grid, or less noise."
            )

    def charge(self) -> Charge:
        seen = GaussianDpEvent(self.plan.noise_multiplier) if self.plan.hidden else self._of_shares(1)
        return Charge(server=seen, key_holder=NoOpDpEvent(), others=self._others())

    def min_contributions(self, cohort: int) -> int:
        """The least number of contributions whose shares add up to enough noise.

        Shares are sized for the declared cohort.
        If the cohort is smaller than that, a larger fraction of it must answer. If it is larger, more clients
        may collude, so more must answer.
        """
        declared, plan = self.spec.cohort, self.plan
        # The first bound is for smaller cohorts than declared, the second for larger ones.
        enough = plan.survivors(max(cohort, declared))
        honest = plan.survivors(declared) - plan.knowing(declared)
        return max(enough, honest + plan.knowing(cohort))

    def headroom(self) -> Headroom:
        return Headroom(share=ceil(TAIL * self.share_sigma()))

    def client_noise(self, size: int, source: Source) -> Integers:
        return discrete(size, self.share_sigma(), source)

    def deviation(self, contributions: int) -> float:
        """Shares are sized for the fewest honest survivors, so further contributions add noise."""
        return self.share_sigma() * self.spec.grid.step * sqrt(contributions)

    def learns(self, party: str) -> str:
        if party != SERVER:
            return ""
        if self.plan.hidden:
            return ", noise of the honest clients' shares included"
        return (
            ", with its own share of the noise (a stand-in for secure aggregation: trusted to sum before it "
            "looks)"
        )

    def share_sigma(self) -> float:
        """Sigma of a client's share, in grid units. Raises ConfigError if no share can be sized."""
        if not self.spec.cohort:
            raise ConfigError(
                f"Expected a least size of the cohorts of {self.spec.name!r} to size shares of noise from, "
                "got none. Declare `cohort`, or take another noise."
            )
        cohort = self.spec.cohort
        return share(self._total_sigma(), self.plan.survivors(cohort), self.plan.knowing(cohort))

    def _total_sigma(self) -> float:
        """Sigma of the sum of the honest shares, in grid units."""
        # `discrete_event` subtracts 4 from sigma^2. Adding 4 here gives the plan's multiplier.
        return sqrt(self.sigma**2 + 4)

    def _of_shares(self, honest: int) -> DpEvent:
        """The event of a value under this many shares of noise, such as one that is summed in the clear."""
        return GaussianDpEvent(sqrt(honest * self.share_sigma() ** 2 - 4) / self.sensitivity_on_grid)

    def _others(self) -> DpEvent:
        """The event against another client, which knows its own share of the noise in the sum."""
        # If the sizing already assumed that the adversary knows a share (`knowing` >= 1), the full noise
        # remains against another client. Otherwise the noise is short by that client's own share.
        cohort, plan = self.spec.cohort, self.plan
        honest = plan.survivors(cohort) - max(plan.colluding(cohort), 1)
        if plan.knowing(cohort) >= 1:
            return GaussianDpEvent(plan.noise_multiplier)
        return self._of_shares(honest) if honest else NonPrivateDpEvent()
