"""One Ask as three machines: the server collects, a client answers, the key holder opens blindly.

Who could lie: a client can send any value within the grid, or a false number of its own (it costs
others nothing: sums are bounded, numbers are opened one ciphertext a client). Twice: the first
counts. Late: another stage's header, refused. Never: the deadline goes on without it.
"""

from securefl.exchange.client import Client, Contribute
from securefl.exchange.key_holder import KeyHolder, Open
from securefl.exchange.server import Match, Server, Unblind
from securefl.exchange.sizes import limits

__all__ = ["Client", "Contribute", "KeyHolder", "Match", "Open", "Server", "Unblind", "limits"]
