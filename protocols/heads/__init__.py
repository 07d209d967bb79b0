"""Heads in closed form on frozen features: one exchange of sums gives a linear classifier.

`statistic`, `choose` and `solve` are functions on arrays, for any training loop. `Heads` is the options of an
arm.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
