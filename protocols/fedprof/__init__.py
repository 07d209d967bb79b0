"""FedProf: selection by representation profiles (Wu, He, Lin and Maple, v1 2021, v2 2022).

`profile_spec` gives the specification of a client's profile and the function that makes it from arrays.
`FedProf` is the options of an arm.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from securefl.protocols.fedprof.options import ByProfile, FedProf, log_weights
    from securefl.protocols.fedprof.statistic import Clip, profile_spec

__all__ = [
    "ByProfile",
    "Clip",
    "FedProf",
    "log_weights",
    "profile_spec",
]
_HOMES = {
    "ByProfile": "securefl.protocols.fedprof.options",
    "Clip": "securefl.protocols.fedprof.statistic",
    "FedProf": "securefl.protocols.fedprof.options",
    "log_weights": "securefl.protocols.fedprof.options",
    "profile_spec": "securefl.protocols.fedprof.statistic",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
