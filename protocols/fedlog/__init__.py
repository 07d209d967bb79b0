"""FedLog (Yu, Zhang and Poupart): a Bayesian head from one small sufficient statistic per client.

`statistic` and `solve` are functions on arrays, for any training loop. `FedLog` is the options of an arm.
"""

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from securefl.protocols.fedlog.contribution import Clipping, sensitivities, statistic
    from securefl.protocols.fedlog.head import Prior, gradient, objective, probabilities, solve
    from securefl.protocols.fedlog.options import FedLog

__all__ = [
    "Clipping",
    "FedLog",
    "Prior",
    "gradient",
    "objective",
    "probabilities",
    "sensitivities",
    "solve",
    "statistic",
]
_HOMES = {
    "Clipping": "contribution",
    "FedLog": "options",
    "Prior": "head",
    "gradient": "head",
    "objective": "head",
    "probabilities": "head",
    "sensitivities": "contribution",
    "solve": "head",
    "statistic": "contribution",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'securefl.protocols.fedlog' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"securefl.protocols.fedlog.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
