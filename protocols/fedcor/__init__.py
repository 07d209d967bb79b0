"""FedCor: selection by the correlation of loss changes (Tang et al., CVPR 2022).

`fit`, `covariance` and `most_informative` are functions on arrays, for any training loop. `FedCor` is the
options of an arm.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from securefl.protocols.fedcor.options import FedCor
    from securefl.protocols.fedcor.process import covariance, fit, most_informative

__all__ = [
    "FedCor",
    "covariance",
    "fit",
    "most_informative",
]
_HOMES = {
    "FedCor": "securefl.protocols.fedcor.options",
    "covariance": "securefl.protocols.fedcor.process",
    "fit": "securefl.protocols.fedcor.process",
    "most_informative": "securefl.protocols.fedcor.process",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
