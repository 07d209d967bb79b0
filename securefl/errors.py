"""The errors that this package raises: one tree, each with what it means."""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
