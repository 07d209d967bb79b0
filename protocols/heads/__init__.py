"""Heads in closed form on frozen features: one exchange of sums gives a linear classifier.

`statistic`, `choose` and `solve` are functions on arrays, for any training loop. `Heads` is the options of an
arm.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from securefl.protocols.heads.blocks import Blocks, Parts, grid_of
    from securefl.protocols.heads.contribution import Bounding, sensitivities, statistic
    from securefl.protocols.heads.options import Choice, Heads, choose
    from securefl.protocols.heads.solvers import lda, prototypes, ridge, solve

__all__ = [
    "Blocks",
    "Bounding",
    "Choice",
    "Heads",
    "Parts",
    "choose",
    "grid_of",
    "lda",
    "prototypes",
    "ridge",
    "sensitivities",
    "solve",
    "statistic",
]
_HOMES = {
    "Blocks": "protocols.heads.blocks",
    "Bounding": "protocols.heads.contribution",
    "Choice": "protocols.heads.options",
    "Heads": "protocols.heads.options",
    "Parts": "protocols.heads.blocks",
    "choose": "protocols.heads.options",
    "grid_of": "protocols.heads.blocks",
    "lda": "protocols.heads.solvers",
    "prototypes": "protocols.heads.solvers",
    "ridge": "protocols.heads.solvers",
    "sensitivities": "protocols.heads.contribution",
    "solve": "protocols.heads.solvers",
    "statistic": "protocols.heads.contribution",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
