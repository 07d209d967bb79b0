"""Privacy-hardened secure aggregation for federated learning.

    run, forecast, run_sweep     a study, what it would cost, and a grid of studies
    load                         a model that was exported from a run
    masked_sum, select_by_profile, SecureAggregator, Plan, Ledger, calibrate     for a training loop of your
    own Profile, KeyHolder, Evaluator     encrypted matching of profiles between three parties

Each is imported when it is first used. The other faces: `algorithm`, `mechanisms`, `sums`, `linear`,
`accounting`, `dp`, `secagg`, `matching`, `training`, `data`, `published`, `deployment`, `flower`, `errors`.
All else is private.
"""

from securefl.core.lazy import lazy

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
    from securefl.core.errors import SecureFLError
    from securefl.engine.aggregator import SecureAggregator
    from securefl.matching.evaluator import Evaluator
    from securefl.matching.key_holder import KeyHolder
    from securefl.matching.sealed import Profile
    from securefl.training.trained import load

__version__ = "0.1.0"
__all__ = [
    "Evaluator",
    "KeyHolder",
    "Ledger",
    "Plan",
    "Profile",
    "SecureAggregator",
    "SecureFLError",
    "calibrate",
    "forecast",
    "load",
    "masked_sum",
    "run",
    "run_sweep",
    "select_by_profile",
]
_HOMES = {
    "Evaluator": "securefl.matching.evaluator",
    "KeyHolder": "securefl.matching.key_holder",
    "Ledger": "securefl.accounting.ledger",
    "Plan": "securefl.algorithm.plan",
    "Profile": "securefl.matching.sealed",
    "SecureAggregator": "securefl.engine.aggregator",
    "SecureFLError": "securefl.core.errors",
    "calibrate": "securefl.api.calibration",
    "forecast": "securefl.api.forecasting",
    "load": "securefl.training.trained",
    "masked_sum": "securefl.api.summing",
    "run": "securefl.api.running",
    "run_sweep": "securefl.api.sweeping",
    "select_by_profile": "securefl.api.selecting",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
