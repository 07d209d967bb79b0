"""Ways of summing, each in one module or folder behind one interface (`way`).

clear        the server of an exchange adds open integers
masked       clients mask each other's integers (`secagg`)
encrypted    clients encrypt, the key holder opens the total under a pad
two_server   clients split integers between server and key holder

Whatever the way, the same integers of one public grid are added, so the same totals come out, bit for bit.
"""

from __future__ import annotations

from securefl.errors import ConfigError
from securefl.journal import Journal
from securefl.plan import Plan
from securefl.sums.encrypted import Encrypted
from securefl.sums.masked import Masked
from securefl.sums.way import Attempt, Opened, Unopened, Way

__all__ = ["Attempt", "Encrypted", "Masked", "Opened", "Unopened", "Way", "way_of"]

_HIDDEN: tuple[type[Masked] | type[Encrypted], ...] = (Masked, Encrypted)


def way_of(plan: Plan, journal: Journal) -> Way | None:
    """The plan's way of summing; None where it sums in the clear, which needs no attempt."""
    if not plan.hidden:
        return None
    for way in _HIDDEN:
        if way.word == plan.sum:
            return way(plan, journal)
    raise ConfigError(f"Expected a way of summing that is known here, or one of yours, got {plan.sum!r}.")
