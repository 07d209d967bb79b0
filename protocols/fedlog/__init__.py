"""FedLog (Yu, Zhang and Poupart): a Bayesian head from one small sufficient statistic per client.

`statistic` and `solve` are functions on arrays, for any training loop. `FedLog` is the options of an arm.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
