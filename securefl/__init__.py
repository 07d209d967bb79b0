"""Privacy-hardened secure aggregation for federated learning.

    run, forecast, run_sweep     a study, what it would cost, and a grid of studies
    load, figure                 a model that was exported from a run, and the figure of a paper
    masked_sum, select_by_profile, SecureAggregator, Plan, Ledger, calibrate     for a training loop of your
    own Profile, KeyHolder, Evaluator     encrypted matching of profiles between three parties

Each is imported when it is first used. The other faces: `algorithm`, `mechanisms`, `sums`, `linear`,
`accounting`, `dp`, `secagg`, `matching`, `training`, `data`, `published`, `deployment`, `flower`, `errors`.
All else is private.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
__version__ = "0.2.0"
