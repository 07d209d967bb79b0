"""The protocol machines of one cohort query: the server collects, and each client answers once.

The key holder's machine for scores is in `securefl.linear`.

A client can lie: it can send any value within the grid, or a false number of its own. This costs other
clients nothing, since sums are bounded and scores opened singly. If a client answers twice, the first answer
counts. If it answers late, its message has another stage's header and is refused. If it never answers, the
deadline ends the collecting without it.
"""

from securefl.engine.exchange.client import MOST, Client, Contribute
from securefl.engine.exchange.server import Server, limits

__all__ = ["MOST", "Client", "Contribute", "Server", "limits"]
