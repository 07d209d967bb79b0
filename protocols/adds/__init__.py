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
    "Adds": "options",
    "FedDrop": "feddrop",
    "Gate": "subnet_search",
    "Search": "subnet_search",
    "Subnet": "subnet_search",
    "Supernet": "supernet",
    "bilevel": "subnet_search",
    "gates": "subnet_search",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'securefl.protocols.adds' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"securefl.protocols.adds.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
