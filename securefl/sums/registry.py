"""The scheme that a word of `[privacy] sum` stands for: ours first, then those of other distributions.

Another distribution adds a scheme under the entry-point group `securefl.sums`: the name is the word of a
plan, and the object makes a `SumScheme` of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Final

from securefl.algorithm.plan import CLEAR, Plan
from securefl.core.errors import ConfigError
from securefl.sums.encrypted import Encrypted
from securefl.sums.masked import Masked
from securefl.sums.scheme import SumScheme
from securefl.sums.two_server import TwoServer

_OURS: Final[Mapping[str, Callable[[Plan], SumScheme]]] = {
    "masked": Masked,
    "ckks": Encrypted,
    "two-server": TwoServer,
}


def names() -> tuple[str, ...]:
    """All that `[privacy] sum` may say."""
    return (CLEAR, *_OURS, *(point.name for point in entry_points(group="securefl.sums")))


def scheme_of(plan: Plan) -> SumScheme | None:
    """The plan's way of summing; None where it sums in the clear, which needs no attempt.

    ConfigError for a word that neither this package nor another one knows.
    """
    if not plan.hidden:
        return None
    # Our own words come first: no other distribution can put a way in the place of one.
    if plan.sum in _OURS:
        return _OURS[plan.sum](plan)
    for point in entry_points(group="securefl.sums"):
        if point.name == plan.sum:
            scheme: SumScheme = point.load()(plan)
            return scheme
    raise ConfigError(f"Expected sum among {', '.join(names())}, got {plan.sum!r}.")
