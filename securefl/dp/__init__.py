"""Noise and sensitivity: clipping on an integer grid, Gaussian noise on integers, and calibration.

clipping     non-finite records are rejected, then norms are bounded, on an integer grid
noise        randomness for privacy, from the operating system
gaussian     the rounded and the discrete Gaussian on integers, with their events
correlated   Gaussian noise that is correlated over rounds
calibration  the noise that an epsilon needs, of Gaussians and of DP-SGD, and back
moments      a profile (means, variances, count) and a loss as one noised release each
auditing     attacks on every mechanism
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
