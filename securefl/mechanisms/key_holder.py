"""`noise = "key-holder"`: the key holder of a two-server sum adds the noise once. Only it is trusted.

PROOF.md beside this file has the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import ClassVar, Final

from dp_accounting import GaussianDpEvent, NonPrivateDpEvent

from securefl.accounting.events import EXPOSED
from securefl.core.release import KEY_HOLDER, SERVER, Charge
from securefl.dp.gaussian import TAIL, Integers, rounded
from securefl.dp.noise import Source
from securefl.mechanisms.base import BaseMechanism, Headroom


class KeyHolder(BaseMechanism):
    """Rounded Gaussian noise by the key holder, on the sum of pads that it sends to the server."""

    word: Final = "key-holder"
    legend: ClassVar[str] = "noise by the key holder"
    exposed: ClassVar[Charge] = EXPOSED
    trusts: ClassVar[str] = (
        "for the key holder, which draws that noise and could subtract it from a published total"
    )
    total_by: ClassVar[str | None] = KEY_HOLDER

    def charge(self) -> Charge | None:
        if KEY_HOLDER in self.plan.adversaries:
            return None
        event = GaussianDpEvent(self.plan.noise_multiplier)
        # The key holder sees no total. But it knows the noise and can subtract it from a published total.
        return Charge(server=event, key_holder=NonPrivateDpEvent(), others=event)

    def headroom(self) -> Headroom:
        # Multiply from left to right: another order could round up to one unit more, and so give another
        # modulus than a peer's.
        return Headroom(total=ceil(TAIL * self.plan.noise_multiplier * self.sensitivity_on_grid) + 1)

    def total_noise(self, party: str, size: int, rows: Sequence[Source]) -> Integers | None:
        return rounded(size, self.sigma, rows[0]) if party == KEY_HOLDER else None

    def learns(self, party: str) -> str:
        if party == KEY_HOLDER:
            return "the noise that it draws, which it could subtract from a published total"
        return ", with the key holder's noise" if party == SERVER else ""
