"""Which mechanism a word of `[privacy] noise` stands for: ours first, then those of other distributions.

Another distribution adds a mechanism under the entry-point group `securefl.mechanisms`: the name is the word,
and the object is its `Kind`. A plan's digest binds the word, so all parties install the same distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Final

from securefl.algorithm.plan import NO_NOISE, Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError
from securefl.core.reading import near
from securefl.core.release import KEY_HOLDER
from securefl.mechanisms.base import KEY_HOLDER_ADDS, Kind, Mechanism, NoNoise
from securefl.mechanisms.central import Central
from securefl.mechanisms.distributed import Distributed
from securefl.mechanisms.key_holder import KeyHolder
from securefl.mechanisms.local import Local
from securefl.mechanisms.outside import Outside, require_kind

GROUP: Final = "securefl.mechanisms"
OURS: Final[Mapping[str, Kind]] = {own.word: own for own in (Local, Distributed, Central, KeyHolder)}


def names() -> tuple[str, ...]:
    """All that `[privacy] noise` may say."""
    others = (point.name for point in entry_points(group=GROUP))
    return tuple(dict.fromkeys((NO_NOISE, *OURS, *others)))


def legend(word: str) -> str:
    """How legends say this word. ConfigError as for `kind_of`."""
    return "no noise" if word == NO_NOISE else kind_of(word).legend


def kind_of(word: str) -> Kind:
    """What this word stands for. ConfigError for a word that nobody knows or two distributions offer."""
    # Our own words come first: no other distribution can put a mechanism in the place of one.
    return OURS[word] if word in OURS else _from_outside(word)


@cache
def _from_outside(word: str) -> Kind:
    # Remembered: entry points are read from disk, and a charge is asked for in every release.
    points = {point for point in entry_points(group=GROUP) if point.name == word}
    if not points:
        known = names()
        raise ConfigError(f"Expected noise among {', '.join(known)}, got {word!r}{near(str(word), known)}.")
    if len(points) > 1:
        homes = " and ".join(sorted(point.value for point in points))
        raise ConfigError(f"Expected one mechanism {word!r}, got {homes}. Uninstall one of them.")
    [point] = points
    try:
        return require_kind(word, point.load())
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"Expected the mechanism {word!r} in {point.value}, got {error}. Install it again."
        ) from None


def require_mechanism(plan: Plan) -> Kind | None:
    """What a plan's word stands for, None for no noise.

    Every party asks before it opens a ledger, and `mechanism_of` before anything is charged or released.

    Raises ConfigError for a word that nobody knows, and for a plan without what its mechanism needs.
    """
    if not plan.noisy:
        return None
    kind = kind_of(plan.noise)
    if kind.mutual and plan.corrupt is None:
        raise ConfigError(
            "Expected `corrupt`, the largest share of a cohort that may collude with the server, got none, "
            "though noise is shared among clients. State it; 0 says that none may collude."
        )
    if kind.total_by == KEY_HOLDER and plan.sum != KEY_HOLDER_ADDS:
        raise ConfigError(
            f'Expected sum = "{KEY_HOLDER_ADDS}" with noise = "{plan.noise}", got {plan.sum!r}: only there '
            "does the key holder add what it can put noise on."
        )
    return kind


def mechanism_of(plan: Plan, spec: ValueSpec) -> Mechanism:
    """The mechanism that noises these values under this plan. ConfigError as for `require_mechanism`."""
    kind = require_mechanism(plan)
    if kind is None or not spec.sensitivity.get((plan.unit, plan.adjacency), 0.0) > 0:
        return NoNoise()
    if spec.reduction == "none":  # nobody sums it, so its client noises it
        return Local(plan, spec)
    if plan.noise in OURS:
        return kind(plan, spec)
    return Outside(plan.noise, kind, plan, spec)
