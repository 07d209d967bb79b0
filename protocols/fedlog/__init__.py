"""FedLog (Yu, Zhang and Poupart): a Bayesian head from one small sufficient statistic per client.

`statistic` and `solve` are functions on arrays, for any training loop. `FedLog` is the options of an arm.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from securefl.protocols.class_sums import Clipping, sensitivities, statistic
    from securefl.protocols.fedlog.head import Prior, gradient, objective, probabilities, solve
    from securefl.protocols.fedlog.options import FedLog

__all__ = [
    "Clipping",
    "FedLog",
    "Prior",
    "gradient",
    "objective",
    "probabilities",
    "sensitivities",
    "solve",
    "statistic",
]
_HOMES = {
    "Clipping": "securefl.protocols.class_sums",
    "FedLog": "securefl.protocols.fedlog.options",
    "Prior": "securefl.protocols.fedlog.head",
    "gradient": "securefl.protocols.fedlog.head",
    "objective": "securefl.protocols.fedlog.head",
    "probabilities": "securefl.protocols.fedlog.head",
    "sensitivities": "securefl.protocols.class_sums",
    "solve": "securefl.protocols.fedlog.head",
    "statistic": "securefl.protocols.class_sums",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
