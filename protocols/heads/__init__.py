"""Heads in closed form on frozen features: one exchange of sums gives a linear classifier.

`statistic_spec` gives the statistic's specification and the function that computes it from arrays. `choose`
and `solve` are functions on arrays too. `Heads` is the options of an arm.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from securefl.protocols.heads.blocks import Blocks, Parts, grid_of
    from securefl.protocols.heads.contribution import Bounding, statistic_spec
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
    "solve",
    "statistic_spec",
]
_HOMES = {
    "Blocks": "securefl.protocols.heads.blocks",
    "Bounding": "securefl.protocols.heads.contribution",
    "Choice": "securefl.protocols.heads.options",
    "Heads": "securefl.protocols.heads.options",
    "Parts": "securefl.protocols.heads.blocks",
    "choose": "securefl.protocols.heads.options",
    "grid_of": "securefl.protocols.heads.blocks",
    "lda": "securefl.protocols.heads.solvers",
    "prototypes": "securefl.protocols.heads.solvers",
    "ridge": "securefl.protocols.heads.solvers",
    "solve": "securefl.protocols.heads.solvers",
    "statistic_spec": "securefl.protocols.heads.contribution",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
