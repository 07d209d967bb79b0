"""FedCor: selection by the correlation of loss changes (Tang et al., CVPR 2022).

`fit`, `covariance` and `most_informative` are functions on arrays, for any training loop. `FedCor` is the
options of an arm.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
