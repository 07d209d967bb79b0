"""Noise mechanisms: the place that noise is drawn at, its charge, and the parties that are trusted with it.

local         each client noises its own value
distributed   clients add shares, which add up to enough in the sum
central       the server that sums adds the noise
key_holder    the key holder of a two-server sum adds the noise

`mechanism_of` is the one path to a mechanism. No other room knows the words. PROOF.md says of each what is
bounded, against which party, and why.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.core.release import Charge
    from securefl.mechanisms.charges import charge_of
    from securefl.mechanisms.mechanism import Headroom, Mechanism
    from securefl.mechanisms.protecting import protect
    from securefl.mechanisms.registry import mechanism_of, names

__all__ = [
    "Charge",
    "Headroom",
    "Mechanism",
    "charge_of",
    "mechanism_of",
    "names",
    "protect",
]
_HOMES = {
    "Charge": "securefl.core.release",
    "Headroom": "securefl.mechanisms.mechanism",
    "Mechanism": "securefl.mechanisms.mechanism",
    "charge_of": "securefl.mechanisms.charges",
    "mechanism_of": "securefl.mechanisms.registry",
    "names": "securefl.mechanisms.registry",
    "protect": "securefl.mechanisms.protecting",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
