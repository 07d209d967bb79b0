"""FedLog (Yu, Zhang and Poupart): a Bayesian head from one small sufficient statistic per client.

`statistic_spec` gives the statistic's specification and the function that computes it from arrays. `solve`
makes the head of a total. `FedLog` is the options of an arm.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from securefl.protocols.class_sums import Clipping, statistic_spec
    from securefl.protocols.fedlog.head import Prior, gradient, objective, probabilities, solve
    from securefl.protocols.fedlog.options import FedLog

__all__ = [
    "Clipping",
    "FedLog",
    "Prior",
    "gradient",
    "objective",
    "probabilities",
    "solve",
    "statistic_spec",
]
_HOMES = {
    "Clipping": "securefl.protocols.class_sums",
    "FedLog": "securefl.protocols.fedlog.options",
    "Prior": "securefl.protocols.fedlog.head",
    "gradient": "securefl.protocols.fedlog.head",
    "objective": "securefl.protocols.fedlog.head",
    "probabilities": "securefl.protocols.fedlog.head",
    "solve": "securefl.protocols.fedlog.head",
    "statistic_spec": "securefl.protocols.class_sums",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
