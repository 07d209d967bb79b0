"""Privacy-hardened secure aggregation for federated learning.

    run, forecast, run_sweep     a study, what it would cost, and a grid of studies
    load                         a model that was exported from a run
    masked_sum, select_by_profile, Door, Plan, Ledger, calibrate     for somebody else's training loop
    Profile, KeyHolder, Evaluator     encrypted matching of profiles between three parties

Each is imported when it is first used.
"""

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.accounting.ledger import Ledger
    from securefl.algorithm.plan import Plan
    from securefl.api.calibration import calibrate
    from securefl.api.forecasting import forecast
    from securefl.api.running import run
    from securefl.api.selecting import select_by_profile
    from securefl.api.summing import masked_sum
    from securefl.api.sweeping import run_sweep
    from securefl.engine.aggregator import SecureAggregator
    from securefl.matching import Evaluator, KeyHolder, Profile
    from securefl.training.trained import load

__version__ = "0.1.0"
__all__ = [
    "Door",
    "Evaluator",
    "KeyHolder",
    "Ledger",
    "Plan",
    "Profile",
    "calibrate",
    "forecast",
    "load",
    "masked_sum",
    "run",
    "run_sweep",
    "select_by_profile",
]
_HOMES = {
    "Door": "engine.aggregator",
    "Evaluator": "matching",
    "KeyHolder": "matching",
    "Ledger": "accounting.ledger",
    "Plan": "algorithm.plan",
    "Profile": "matching",
    "calibrate": "api.calibration",
    "forecast": "api.forecasting",
    "load": "training.trained",
    "masked_sum": "api.summing",
    "run": "api.running",
    "run_sweep": "api.sweeping",
    "select_by_profile": "api.selecting",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'securefl' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"securefl.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
