"""The registry of privacy mechanisms by the words of `[privacy] noise`, other distributions' too.

Another distribution adds a mechanism under the entry-point group `securefl.mechanisms`. The entry's name is
the word, and its object is a `Kind`. A plan's digest binds only the word, so all parties must install the
same distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final

from securefl.algorithm.plan import CLEAR, NO_NOISE, Plan
from securefl.core.errors import ConfigError
from securefl.core.installed import entry_points
from securefl.core.reading import near
from securefl.core.release import KEY_HOLDER, OTHERS
from securefl.mechanisms.distributed import Distributed
from securefl.mechanisms.mechanism import (
    KEY_HOLDER_ADDS,
    Central,
    KeyHolder,
    Kind,
    Local,
)
from securefl.mechanisms.outside import require_kind

GROUP: Final = "securefl.mechanisms"
OURS: Final[Mapping[str, Kind]] = {own.word: own for own in (Local, Distributed, Central, KeyHolder)}


def names() -> tuple[str, ...]:
    """The words that `[privacy] noise` accepts: "none", ours, and those of installed distributions.

        >>> from securefl.mechanisms import names
        >>> names()[:5]
        ('none', 'local', 'distributed', 'central', 'key-holder')

    Raises nothing.
    """
    others = (point.name for point in entry_points(group=GROUP))
    return tuple(dict.fromkeys((NO_NOISE, *OURS, *others)))


def legend(word: str) -> str:
    """The word's description in figure legends. Raises ConfigError as `kind_of` does."""
    return "no noise" if word == NO_NOISE else kind_of(word).legend


def kind_of(word: str) -> Kind:
    """The factory of this word's mechanisms. Raises ConfigError for an unknown or ambiguous word."""
    # Our words come first, so that no other distribution can replace one of our mechanisms.
    return OURS[word] if word in OURS else _from_outside(word)


@cache
def _from_outside(word: str) -> Kind:
    # Cached: entry points are read from disk, and every release computes a charge.
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
    """The factory of the mechanisms of a plan's word. None for no noise.

    Every party calls it before it opens a ledger, and `Protection` calls it before anything is charged or
    released.

    Raises:
        ConfigError: an unknown word, or a plan without a parameter that its mechanism needs.
    """
    if not plan.noisy:
        return None
    kind = kind_of(plan.noise)
    if kind.mutual and plan.corrupt is None:
        raise ConfigError(
            "Expected `corrupt`, the largest share of a cohort that may collude with the server, got none, "
            "though clients add noise in shares. State it; 0 says that none may collude."
        )
    if len(plan.coefficients) > 1 and (kind.total_by is None or plan.noise not in OURS):
        raise ConfigError(
            f'Expected independent noise with noise = "{plan.noise}", got noise correlated over rounds: the '
            "noise of a round needs that of earlier rounds, which one party must draw again, and clients of "
            "earlier cohorts drew theirs. Take bands = 1 (in a plan: coefficients = (1.0,)), or noise = "
            '"central" or "key-holder".'
        )
    if plan.sampling_rate < 1:
        _require_amplifying(plan)
    if kind.total_by == KEY_HOLDER and plan.sum != KEY_HOLDER_ADDS:
        raise ConfigError(
            f'Expected sum = "{KEY_HOLDER_ADDS}" with noise = "{plan.noise}", got {plan.sum!r}: only in that '
            "sum does the key holder compute a number that it can add noise to."
        )
    return kind


def _require_amplifying(plan: Plan) -> None:
    """Raises ConfigError for draws of clients that hide nothing from an adversary, or without a proven event.

    PROOF.md has the reasons in full.
    """
    for holds, expected, got, why in (
        (
            plan.noise == Central.word,
            f'noise = "{Central.word}"',
            plan.noise,
            "the server must be trusted with the draws, since it sees who trains and who sends zeros",
        ),
        (
            plan.adversaries == (OTHERS,),
            f'adversaries = ["{OTHERS}"]',
            list(plan.adversaries),
            "the draws are secret from others alone",
        ),
        (
            plan.sum == CLEAR,
            f'sum = "{CLEAR}"',
            plan.sum,
            "a hidden sum hides a client among contributions, most of which would be zeros",
        ),
        (
            (plan.unit, plan.adjacency) == ("client", "zero-out"),
            'unit = "client" and adjacency = "zero-out"',
            f"{plan.unit} and {plan.adjacency}",
            "zeros stand for the value of a client that does not take part, and no other neighbour is zeros",
        ),
        (
            len(plan.coefficients) == 1,
            "bands = 1 (in a plan: coefficients = (1.0,))",
            f"noise of {len(plan.coefficients)} coefficients",
            "correlated noise has no event that composes draw by draw",
        ),
    ):
        if not holds:
            raise ConfigError(
                f"Expected {expected} with a `sampling_rate` of {plan.sampling_rate:g}, got {got}: {why}. "
                "Set that, or leave `sampling_rate` out."
            )
