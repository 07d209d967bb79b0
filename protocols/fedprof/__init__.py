"""FedProf: selection by representation profiles (Wu, He, Lin and Maple, v1 2021, v2 2022).

`profile_value` makes a client's profile from arrays and `profile_spec` describes it, for any training loop.
`FedProf` is the options of an arm.
"""

TYPE_CHECKING = False  # type checkers take it for true

if TYPE_CHECKING:
    from securefl.protocols.fedprof.options import ByProfile, FedProf, log_weights
    from securefl.protocols.fedprof.statistic import Clip, profile_spec, profile_value

__all__ = [
    "ByProfile",
    "Clip",
    "FedProf",
    "log_weights",
    "profile_spec",
    "profile_value",
]
_HOMES = {
    "ByProfile": "options",
    "Clip": "statistic",
    "FedProf": "options",
    "log_weights": "options",
    "profile_spec": "statistic",
    "profile_value": "statistic",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'securefl.protocols.fedprof' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"securefl.protocols.fedprof.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
