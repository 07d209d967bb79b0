from securefl.accounting.ledger import Ledger as Ledger
from securefl.algorithm.plan import Plan as Plan
from securefl.api.calibration import calibrate as calibrate
from securefl.api.figures import figure as figure
from securefl.api.forecasting import forecast as forecast
from securefl.api.running import run as run
from securefl.api.selecting import select_by_profile as select_by_profile
from securefl.api.summing import masked_sum as masked_sum
from securefl.api.sweeping import run_sweep as run_sweep
from securefl.core.errors import SecureFLError as SecureFLError
from securefl.engine.aggregator import SecureAggregator as SecureAggregator
from securefl.matching.evaluator import Evaluator as Evaluator
from securefl.matching.key_holder import KeyHolder as KeyHolder
from securefl.matching.sealed import Profile as Profile
from securefl.training.trained import load as load

__version__: str
