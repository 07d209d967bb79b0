"""One Ask as machines: the server collects, a client answers; the key holder of scores stands in `scores`.

Who could lie: a client can send any value within the grid, or a false number of its own (it costs
others nothing: sums are bounded, and what scores of one batch cost each other says `scores`). Twice: the
first counts. Late: another stage's header, refused. Never: the deadline goes on without it.
"""

from securefl.engine.exchange.client import Client, Contribute
from securefl.engine.exchange.server import Server
from securefl.engine.exchange.sizes import limits

__all__ = ["Client", "Contribute", "Server", "limits"]
