"""Privacy events: their stored form, and the epsilon of their composition.

The events are those of dp-accounting. Understood so far: nothing (`NoOpDpEvent`), an unprotected
release (`NonPrivateDpEvent`) and the Gaussian mechanism (`GaussianDpEvent`, deviation over
sensitivity). Anything else is an `UnsupportedEvent`: never a guess.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent, get_epsilon_gaussian

from securefl.errors import UnsupportedEvent
from securefl.release import Charge

_LARGEST_MU = 1e6


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
        case {"event": "none", **rest} if not rest:
            return NoOpDpEvent()
        case {"event": "non_private", **rest} if not rest:
            return NonPrivateDpEvent()
        case {"event": "gaussian", "noise_multiplier": float(z), **rest} if (
            math.isfinite(z) and z > 0 and not rest
        ):
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
    Corollary 3.3); one unprotected release makes epsilon infinite. So does mu above 10^6, where the
    exact formula loses its digits: no epsilon of that size protects anything.
    """
    mu_squared = 0.0
    for event, count in events.items():
        dump_event(event)
        match event:
            case NonPrivateDpEvent() if count > 0:
                mu_squared = math.inf
            case GaussianDpEvent(noise_multiplier=z):
                mu_squared += count * (1 / z) * (1 / z)
    if mu_squared > _LARGEST_MU**2:
        return math.inf
    if mu_squared == 0:
        return 0.0
    with np.errstate(divide="ignore"):  # log 0 on the way is a delta of 0, as meant
        return float(get_epsilon_gaussian(1 / math.sqrt(mu_squared), delta))
