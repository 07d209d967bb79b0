"""`noise = "local"`: each client adds all of the noise to its own value. It trusts no other party.

PROOF.md beside this file has the proof.
"""

from __future__ import annotations

from typing import ClassVar, Final

from dp_accounting import GaussianDpEvent, NoOpDpEvent

from securefl.core.release import SERVER, Charge
from securefl.dp.gaussian import Integers, rounded
from securefl.dp.noise import Source
from securefl.mechanisms.base import BaseMechanism


class Local(BaseMechanism):
    """Rounded Gaussian noise by each client. A number that no party sums is always noised this way."""

    word: Final = "local"
    legend: ClassVar[str] = "noise by each client"

    def charge(self) -> Charge:
        event = GaussianDpEvent(self.plan.noise_multiplier)
        return Charge(server=event, key_holder=NoOpDpEvent(), others=event)

    def client_noise(self, size: int, source: Source) -> Integers:
        return rounded(size, self.sigma, source)

    def learns(self, party: str) -> str:
        return ", with noise" if party == SERVER else ""
