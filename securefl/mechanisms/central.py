"""`noise = "central"`: the summing server adds the noise once. It is trusted with the bare total.

PROOF.md beside this file has the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent

from securefl.core.release import SERVER, Charge
from securefl.dp.gaussian import Integers, rounded
from securefl.dp.noise import Source
from securefl.mechanisms.base import BaseMechanism


class Central(BaseMechanism):
    """Rounded Gaussian noise that the server adds before any other party sees a total."""

    word: Final = "central"
    legend: ClassVar[str] = "noise by the server"
    trusts: ClassVar[str] = "for the server, which central noise trusts"
    total_by: ClassVar[str | None] = SERVER

    def charge(self) -> Charge | None:
        if SERVER in self.plan.adversaries:
            return None
        event = GaussianDpEvent(self.plan.noise_multiplier)
        return Charge(server=NonPrivateDpEvent(), key_holder=NoOpDpEvent(), others=event)

    def total_noise(self, party: str, size: int, rows: Sequence[Source]) -> Integers | None:
        return rounded(size, self.sigma, rows[0]) if party == SERVER else None

    def learns(self, party: str) -> str:
        if party != SERVER:
            return ""
        return " (trusted to sum them and add the noise before another party sees the sum)"
