"""Privacy events: their stored form, and the epsilon of their composition.

The events are those of dp-accounting. Understood so far: nothing (`NoOpDpEvent`), an unprotected
release (`NonPrivateDpEvent`) and the Gaussian mechanism (`GaussianDpEvent`, deviation over
sensitivity). Anything else is an `UnsupportedEvent`: never a guess.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent, get_epsilon_gaussian

from securefl.errors import UnsupportedEvent
from securefl.release import Charge


def dump_event(event: DpEvent) -> dict[str, str | float]:
    """The event as a JSON object."""
    match event:
        case NoOpDpEvent():
            return {"event": "none"}
        case NonPrivateDpEvent():
            return {"event": "non_private"}
        case GaussianDpEvent(noise_multiplier=z) if math.isfinite(z) and z > 0:
            return {"event": "gaussian", "noise_multiplier": float(z)}
    raise UnsupportedEvent(f"Expected a Gaussian (multiplier > 0), non-private or empty event, got {event}.")


def load_event(stored: Mapping[str, object]) -> DpEvent:
    """The inverse of `dump_event`."""
    match dict(stored):
        case {"event": "none"}:
            return NoOpDpEvent()
        case {"event": "non_private"}:
            return NonPrivateDpEvent()
        case {"event": "gaussian", "noise_multiplier": float(z)} if math.isfinite(z) and z > 0:
            return GaussianDpEvent(z)
    raise UnsupportedEvent(f"The ledger holds an event this version does not know: {stored}.")


def dump_charge(charge: Charge) -> str:
    """The charge as JSON text, equal for equal charges."""
    return json.dumps({party: dump_event(e) for party, e in charge.by_party().items()}, sort_keys=True)


def load_charge(stored: str) -> Charge:
    """The inverse of `dump_charge`."""
    by_party = {party: load_event(event) for party, event in json.loads(stored).items()}
    return Charge(server=by_party["server"], key_holder=by_party["key-holder"], others=by_party["others"])


def compose(events: Mapping[DpEvent, int], delta: float) -> float:
    """Epsilon at `delta` of all events together, each as often as counted.

    Gaussians compose exactly to one Gaussian with mu^2 = sum 1 / z^2 (Dong, Roth and Su 2019,
    Corollary 3.3); one unprotected release makes epsilon infinite.
    """
    mu_squared = 0.0
    for event, count in events.items():
        match event:
            case NoOpDpEvent():
                continue
            case NonPrivateDpEvent() if count > 0:
                return math.inf
            case GaussianDpEvent(noise_multiplier=z):
                mu_squared += count / z**2
            case _:
                dump_event(event)
    return float(get_epsilon_gaussian(1 / math.sqrt(mu_squared), delta)) if mu_squared > 0 else 0.0
