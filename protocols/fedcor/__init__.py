"""FedCor: selection by the correlation of loss changes (Tang et al., CVPR 2022).

`fit`, `covariance` and `most_informative` are functions on arrays, for any training loop. `FedCor` is the
options of an arm.
"""

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from securefl.protocols.fedcor.options import FedCor
    from securefl.protocols.fedcor.process import covariance, fit, most_informative

__all__ = [
    "FedCor",
    "covariance",
    "fit",
    "most_informative",
]
_HOMES = {
    "FedCor": "options",
    "covariance": "process",
    "fit": "process",
    "most_informative": "process",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'securefl.protocols.fedcor' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"securefl.protocols.fedcor.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
