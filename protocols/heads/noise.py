"""How much noise the total of a sum carries, from public inputs alone."""

from __future__ import annotations

from math import sqrt

from securefl.charges import noised, own_sigma, placement
from securefl.plan import Plan
from securefl.rounds import Sends


def deviation(plan: Plan, sends: Sends, survivors: int) -> float:
    """Deviation of the noise in an entry of a total over so many clients. 0 if the plan adds none.

    Shares of distributed noise are sized for the fewest honest survivors, so the others' come on top.
    """
    if not noised(plan, sends):
        return 0.0
    one = plan.noise_multiplier * sends.sensitivity[plan.unit, plan.adjacency]
    match placement(plan, sends):
        case "local":
            return one * sqrt(survivors)
        case "distributed":
            return own_sigma(plan, sends) * sends.grid.step * sqrt(survivors)
        case _:
            return one
