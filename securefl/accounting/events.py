"""Privacy events: their stored form, and the history that a set of events adds up to.

The events are those of dp-accounting. This module supports

- a release without a cost (`NoOpDpEvent`), and a non-private one (`NonPrivateDpEvent`);
- the Gaussian mechanism (`GaussianDpEvent`, standard deviation over sensitivity);
- steps of the Poisson-sampled Gaussian mechanism, alone or repeated;
- several of these together (`ComposedDpEvent`).

A discrete Gaussian is stored as the Gaussian that bounds it (`securefl.dp.gaussian`). Any other event raises
`UnsupportedEvent`, because its cost would be a guess.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from securefl.core.errors import DataError, UnsupportedEvent
from securefl.core.release import Charge

NO_COST: Final = Charge(server=NoOpDpEvent(), key_holder=NoOpDpEvent(), others=NoOpDpEvent())
"""The charge of a release that does not depend on records."""
NON_PRIVATE: Final = Charge(server=NonPrivateDpEvent(), key_holder=NoOpDpEvent(), others=NonPrivateDpEvent())
"""The charge of a release without noise: epsilon is infinite against the server and the others."""
EXPOSED: Final = Charge(
    server=NonPrivateDpEvent(), key_holder=NonPrivateDpEvent(), others=NonPrivateDpEvent()
)
"""The charge of a value under the key holder's noise alone, which the key holder can subtract again."""
Stored = dict[str, Any]


def steps_event(rate: float, noise_multiplier: float, count: int) -> DpEvent:
    """Return the event of `count` steps of DP-SGD.

    Args:
        rate: the Poisson sampling rate q of each step, in (0, 1].
        noise_multiplier: z, the standard deviation of the noise over the clipping norm.
        count: the number of steps.

    Raises nothing.

    >>> from securefl.accounting import compose, steps_event
    >>> round(compose({steps_event(0.01, 1.0, 100): 1}, delta=1e-5), 1)
    0.7
    """
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise_multiplier)), count)


def dump_event(event: DpEvent) -> Stored:
    """Return the event as a JSON object. Raises UnsupportedEvent for an event that is not supported."""
    match event:
        case NoOpDpEvent():
            return {"event": "none"}
        case NonPrivateDpEvent():
            return {"event": "non_private"}
        case GaussianDpEvent(noise_multiplier=z) if _positive(z):
            return {"event": "gaussian", "noise_multiplier": float(z)}
        case PoissonSampledDpEvent():
            # one stored form for one meaning: equal histories must have equal text
            return dump_event(SelfComposedDpEvent(event, 1))
        case ComposedDpEvent(events=events) if events:
            return {"event": "composed", "events": [dump_event(part) for part in events]}
        case SelfComposedDpEvent(
            event=PoissonSampledDpEvent(sampling_probability=q, event=GaussianDpEvent(noise_multiplier=z)),
            count=count,
        ) if 0 < q <= 1 and _positive(z) and count >= 1:
            return {
                "event": "poisson_gaussian",
                "sampling_probability": float(q),
                "noise_multiplier": float(z),
                "count": int(count),
            }
    raise UnsupportedEvent(
        "Expected a Gaussian (multiplier > 0), Poisson-sampled Gaussian steps, a non-private or an empty "
        f"event, got {event}."
    )


_LOADED: Final[Mapping[str, Callable[[Stored], DpEvent]]] = {
    "none": lambda stored: NoOpDpEvent(),
    "non_private": lambda stored: NonPrivateDpEvent(),
    "gaussian": lambda stored: GaussianDpEvent(stored["noise_multiplier"]),
    "poisson_gaussian": lambda stored: steps_event(
        stored["sampling_probability"], stored["noise_multiplier"], stored["count"]
    ),
    # a tuple: events are counted by equality, and so must hash
    "composed": lambda stored: ComposedDpEvent(tuple(map(load_event, stored["events"]))),
}


def load_event(stored: Stored) -> DpEvent:
    """Return the event that `dump_event` stored. Raises UnsupportedEvent for an unknown event or field."""
    try:
        event = _LOADED[stored["event"]](stored)
        # An unknown field may change the event's cost. Texts tell 1, 1.0 and True apart.
        if json.dumps(dump_event(event), sort_keys=True) == json.dumps(stored, sort_keys=True):
            return event
    except (KeyError, TypeError, ValueError, OverflowError, UnsupportedEvent):
        pass
    raise UnsupportedEvent(
        f"Expected a stored event that this version knows, got {stored}. Read it with the version that wrote "
        "it."
    )


def _flat(stored: Stored) -> Iterator[Stored]:
    if stored["event"] != "composed":
        yield stored
        return
    for part in stored["events"]:
        yield from _flat(part)


def _positive(z: float) -> bool:
    return math.isfinite(z) and z > 0


@lru_cache(maxsize=1024)  # as `load_charge`
def dump_charge(charge: Charge) -> str:
    """Return the charge as JSON text. Equal charges have equal text."""
    return json.dumps({party: dump_event(e) for party, e in charge.by_party().items()}, sort_keys=True)


@lru_cache(maxsize=1024)  # a study has few charges, and every round needs each
def load_charge(stored: str) -> Charge:
    """Return the charge that `dump_charge` stored. Raises DataError for a damaged text."""
    try:
        by_party = {party: load_event(event) for party, event in json.loads(stored).items()}
        return Charge(server=by_party["server"], key_holder=by_party["key-holder"], others=by_party["others"])
    except (ValueError, KeyError, AttributeError, RecursionError):
        raise DataError(
            f"Expected a stored charge with an event for each party, got {len(stored)} characters that are "
            "none. Restore the ledger from a backup."
        ) from None


@dataclass(frozen=True)
class History:
    """The sum of a set of events. Their order does not matter.

    Attributes:
        endless: whether a release was non-private, so that epsilon is infinite.
        mu_squared: the sum of 1 / z^2 over the Gaussians, which compose to one Gaussian exactly (Dong, Roth
            and Su 2019, Corollary 3.3). A step on all records (q = 1) is one of them.
        steps: the number of Poisson-sampled Gaussian steps with q < 1, by (q, z).
    """

    endless: bool = False
    mu_squared: float = 0.0
    steps: Mapping[tuple[float, float], int] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Mapping[DpEvent, int]) -> History:
        """Return the history of counted events. Raises UnsupportedEvent for an unknown event."""
        endless, gaussians, steps = False, [], dict[tuple[float, float], int]()
        for event, times in events.items():
            for part in _flat(dump_event(event)):
                z, q = part.get("noise_multiplier", math.inf), part.get("sampling_probability", 1.0)
                count = times * part.get("count", 1)
                if part["event"] == "non_private":
                    endless = endless or times > 0
                elif q == 1:  # a step on all records is a Gaussian, whose composition is exact
                    # two divisions, because z**2 of a tiny z is 0 and would raise ZeroDivisionError
                    gaussians.append(count * (1 / z) * (1 / z))
                else:
                    steps[q, z] = steps.get((q, z), 0) + count
        # fsum is exact, and steps are sorted, so the same events in another order give the same number.
        return cls(endless, math.fsum(gaussians), {key: n for key, n in sorted(steps.items()) if n})

    def __hash__(self) -> int:
        return hash((self.endless, self.mu_squared, frozenset(self.steps.items())))

    def events(self) -> Iterator[tuple[DpEvent, int]]:
        """Yield the one Gaussian of all Gaussians, and each kind of sampled steps, with their counts."""
        if self.mu_squared > 0:
            yield GaussianDpEvent(1 / math.sqrt(self.mu_squared)), 1
        for (q, z), count in self.steps.items():
            yield PoissonSampledDpEvent(q, GaussianDpEvent(z)), count

    def scaled(self, noise: float) -> History:
        """Return this history with all noise multiplied by `noise`."""
        steps = {(q, z * noise): count for (q, z), count in self.steps.items()}
        return History(self.endless, self.mu_squared / noise / noise, steps)
