"""FedLog (Yu, Zhang and Poupart): a Bayesian head from one small sufficient statistic per client.

`statistic_spec` gives the statistic's specification and the function that computes it from arrays. `solve`
makes the head of a total. `FedLog` is the options of an arm.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
