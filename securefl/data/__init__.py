"""Data sets by name, their partition over clients, and the corruption of some clients' data.

This room supplies the records of studies and has no privacy protection of its own. `sources` finds, checks
and splits data sets. `partitions` divides their records between clients. `corruptions` corrupts them on
purpose.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
