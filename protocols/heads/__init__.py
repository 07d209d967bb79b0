"""Heads in closed form on frozen features: one exchange of sums gives a linear classifier.

`statistic_spec` gives the statistic's specification and the function that computes it from arrays. `choose`
and `solve` are functions on arrays too. `Heads` is the options of an arm.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
