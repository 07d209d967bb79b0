"""ADDS: adaptive differentiable sampling of subnets (Gong, Gao, Wu and Qin).

supernet        hidden units, groups of entries, parameters and MACs
importance      how much a unit matters to a client's records
gates           rates, probabilities, masks and their gradients
divergence      the skew of labels, which weighs small subnets
bilevel         a client's search
contributions   the map of a subnet, and its update
part            two sums, divided entry by entry
options         the keys of an arm
feddrop         federated dropout: one random subnet a round
"""

from securefl.protocols.adds.feddrop import FedDrop
from securefl.protocols.adds.options import Adds

__all__ = ["Adds", "FedDrop"]
