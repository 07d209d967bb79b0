"""The nouns of a federated algorithm: queries to a cohort, contributions of its clients, and the plan.

An algorithm states the values that clients contribute, and runs its rounds as queries (`Algorithm`). The plan
says what a run promises. Neither says how sums are hidden or noised.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
