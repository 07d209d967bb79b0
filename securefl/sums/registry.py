"""The scheme that a word of `[privacy] sum` stands for: ours first, then those of other distributions.

Another distribution adds a scheme under the entry-point group `securefl.sums`: the name is the word of a
plan, and the object makes a `SumScheme` of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from securefl.algorithm.plan import CLEAR, Plan
from securefl.core.errors import ConfigError
from securefl.core.installed import entry_points
from securefl.sums.scheme import SumScheme

# Each scheme is imported where a plan has it: the others' libraries take longer to load than a small study.


def _masked(plan: Plan) -> SumScheme:
    from securefl.sums.masked import Masked

    return Masked(plan)


def _encrypted(plan: Plan) -> SumScheme:
    from securefl.sums.encrypted import Encrypted

    return Encrypted(plan)


def _two_server(plan: Plan) -> SumScheme:
    from securefl.sums.two_server import TwoServer

    return TwoServer(plan)


_OURS: Final[Mapping[str, Callable[[Plan], SumScheme]]] = {
    "masked": _masked,
    "ckks": _encrypted,
    "two-server": _two_server,
}


def names() -> tuple[str, ...]:
    """The words that `[privacy] sum` accepts: "clear", ours, and those of installed distributions.

        >>> from securefl.sums import names
        >>> names()[:4]
        ('clear', 'masked', 'ckks', 'two-server')

    Raises nothing.
    """
    return (CLEAR, *_OURS, *(point.name for point in entry_points(group="securefl.sums")))


def scheme_of(plan: Plan) -> SumScheme | None:
    """The plan's sum scheme. None if the plan sums in the clear, which needs no attempt.

        >>> from securefl.algorithm import Plan
        >>> from securefl.sums import scheme_of
        >>> sizes = dict(min_cohort_size=20, max_cohort_size=20, min_honest=10, max_client_weight=0.1)
        >>> hidden = Plan(sum="two-server", corrupt=0.2, dropout=0.1, delta=1e-5, max_rounds=10, **sizes)
        >>> scheme_of(Plan(delta=1e-5, max_rounds=10)) is None, scheme_of(hidden).key_holder_learns
        (True, 'seeds of pads, drawn without regard to any record')

    Raises:
        ConfigError: neither this package nor an installed distribution knows the word.
    """
    if not plan.hidden:
        return None
    # Our words come first, so that no other distribution can replace one of our schemes.
    if plan.sum in _OURS:
        return _OURS[plan.sum](plan)
    for point in entry_points(group="securefl.sums"):
        if point.name == plan.sum:
            scheme: SumScheme = point.load()(plan)
            return scheme
    raise ConfigError(f"Expected sum among {', '.join(names())}, got {plan.sum!r}. Choose one of them.")


def has_key_holder(plan: Plan) -> bool:
    """Whether a key holder opens the plan's sums."""
    scheme = scheme_of(plan)
    return scheme is not None and bool(scheme.key_holder_learns)
