"""Published tables: their figures as constants, studies that measure them, and a comparison.

A package adds a table under the entry-point group `securefl.tables`. `securefl reproduce` runs it.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
