"""Models, local and private (DP-SGD) training, evaluation and profiles in torch, on plain arrays.

Nothing here masks or encrypts a value. A client's value leaves it only through a release.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
