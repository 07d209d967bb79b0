"""FedProf: selection by representation profiles (Wu, He, Lin and Maple, v1 2021, v2 2022).

`profile_spec` gives the specification of a client's profile and the function that makes it from arrays.
`FedProf` is the options of an arm.
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
