"""Noise mechanisms: the place that noise is drawn at, its charge, and the parties that are trusted with it.

local         each client noises its own value
distributed   clients add shares, which add up to enough in the sum
central       the server that sums adds the noise
key_holder    the key holder of a two-server sum adds the noise

`Protection` is the one path to a mechanism and its charge. No other room knows the words. PROOF.md says of
each what is bounded, against which party, and why.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
