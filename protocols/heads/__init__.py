"""Heads in closed form on frozen features: one exchange of sums gives a linear classifier.

`statistic`, `choose` and `solve` are functions on arrays, for any training loop. `Heads` is the options of an
arm.
"""

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
    "Blocks": "blocks",
    "Bounding": "contribution",
    "Choice": "options",
    "Heads": "options",
    "Parts": "blocks",
    "choose": "options",
    "grid_of": "blocks",
    "lda": "solvers",
    "prototypes": "solvers",
    "ridge": "solvers",
    "sensitivities": "contribution",
    "solve": "solvers",
    "statistic": "contribution",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'securefl.protocols.heads' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"securefl.protocols.heads.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
