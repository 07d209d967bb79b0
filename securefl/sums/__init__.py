"""Hidden sums: schemes by which the server learns the sum of clients' integers and nothing else.

clear        the server of an exchange adds open integers
masked       clients mask each other's integers (`secagg`)
encrypted    clients encrypt, and the key holder opens the total under a pad
two_server   clients send padded integers to the server, and the seeds of the pads to the key holder

Under every scheme the same integers of one public grid are added, so the totals are the same, bit for bit.
Another distribution adds a scheme under the entry-point group `securefl.sums` (`registry`).
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
