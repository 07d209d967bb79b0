"""ADDS: adaptive differentiable sampling of subnets (Gong, Gao, Wu and Qin).

`gates` and `bilevel` are functions on arrays, for any training loop. `Adds` and `FedDrop` are the options of
arms.

supernet        hidden units, groups of entries, parameters and MACs
importance      how much a unit matters to a client's records
subnet_search   gates (rates, probabilities, masks, gradients), the skew of labels, and a client's search
contributions   the map of a subnet, and its update
part            two sums, divided entry by entry
options         the keys of an arm
feddrop         federated dropout: one random subnet a round
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from securefl.protocols.adds.feddrop import FedDrop
    from securefl.protocols.adds.options import Adds
    from securefl.protocols.adds.subnet_search import Gate, Search, Subnet, bilevel, gates
    from securefl.protocols.adds.supernet import Supernet

__all__ = [
    "Adds",
    "FedDrop",
    "Gate",
    "Search",
    "Subnet",
    "Supernet",
    "bilevel",
    "gates",
]
_HOMES = {
    "Adds": "securefl.protocols.adds.options",
    "FedDrop": "securefl.protocols.adds.feddrop",
    "Gate": "securefl.protocols.adds.subnet_search",
    "Search": "securefl.protocols.adds.subnet_search",
    "Subnet": "securefl.protocols.adds.subnet_search",
    "Supernet": "securefl.protocols.adds.supernet",
    "bilevel": "securefl.protocols.adds.subnet_search",
    "gates": "securefl.protocols.adds.subnet_search",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
