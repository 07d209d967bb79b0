"""Noise and sensitivity: clipping on an integer grid, Gaussian noise on integers, and calibration.

clipping     non-finite records are rejected, then norms are bounded, on an integer grid
noise        randomness for privacy, from the operating system
gaussian     the rounded and the discrete Gaussian on integers, with their events
calibration  the noise that an epsilon needs, of Gaussians and of DP-SGD, and back
moments      a profile (means, variances, count) and a loss as one noised release each
auditing     attacks on every mechanism
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.dp.auditing import audit
    from securefl.dp.calibration import epsilon_of, sensitivity, sigma, training_epsilon, training_noise
    from securefl.dp.clipping import clip_l2, to_grid
    from securefl.dp.gaussian import discrete, discrete_event, rounded
    from securefl.dp.moments import Losses, MeanVariance, Moments
    from securefl.dp.noise import Source

__all__ = [
    "Losses",
    "MeanVariance",
    "Moments",
    "Source",
    "audit",
    "clip_l2",
    "discrete",
    "discrete_event",
    "epsilon_of",
    "rounded",
    "sensitivity",
    "sigma",
    "to_grid",
    "training_epsilon",
    "training_noise",
]
_HOMES = {
    "Losses": "securefl.dp.moments",
    "MeanVariance": "securefl.dp.moments",
    "Moments": "securefl.dp.moments",
    "Source": "securefl.dp.noise",
    "audit": "securefl.dp.auditing",
    "clip_l2": "securefl.dp.clipping",
    "discrete": "securefl.dp.gaussian",
    "discrete_event": "securefl.dp.gaussian",
    "epsilon_of": "securefl.dp.calibration",
    "rounded": "securefl.dp.gaussian",
    "sensitivity": "securefl.dp.calibration",
    "sigma": "securefl.dp.calibration",
    "to_grid": "securefl.dp.clipping",
    "training_epsilon": "securefl.dp.calibration",
    "training_noise": "securefl.dp.calibration",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
