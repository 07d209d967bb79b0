"""ADDS: adaptive differentiable sampling of subnets (Gong, Gao, Wu and Qin).

`gates` and `bilevel` are functions on arrays, for any training loop. `Adds` and `FedDrop` are the options of
arms.

supernet        hidden units, groups of entries, parameters and MACs
importance      how much a unit matters to a client's records
subnet_search   gates (rates, probabilities, masks, gradients), the skew of labels, and a client's search
contributions   the map of a subnet, and its update
part            the keys of an arm, and two sums, divided entry by entry
feddrop         federated dropout: one random subnet a round
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
