"""Who draws noise, what it costs, and who is trusted with what: one small object for each place of noise.

local         each client noises its own value
distributed   clients add shares, which add up to enough in the sum
central       the server that sums adds the noise
key_holder    the key holder of a two-server sum adds the noise

`mechanism_of` is the one way to a mechanism. No other room knows the words. PROOF.md says of each what is
bounded, against whom, and why.
"""

from __future__ import annotations

from securefl.mechanisms.base import (
    KEY_HOLDER_ADDS,
    BaseMechanism,
    Headroom,
    Kind,
    Mechanism,
    NoNoise,
    Participation,
)
from securefl.mechanisms.registry import OURS, kind_of, legend, mechanism_of, require_mechanism, words

__all__ = [
    "KEY_HOLDER_ADDS",
    "OURS",
    "GaussianMechanism",
    "Headroom",
    "Kind",
    "Mechanism",
    "NoNoise",
    "Participation",
    "kind_of",
    "legend",
    "mechanism_of",
    "require_mechanism",
    "words",
]
