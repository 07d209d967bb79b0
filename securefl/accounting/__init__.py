"""Privacy accounting: ledgers of releases, composition of privacy events, budgets and statements."""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
