"""Deployment: parties in processes of their own, and the server's session with them.

A wave is one request and one reply of bytes for each party.

frames            binary frames: a kind, and parts with their lengths
turns             the frames of a wave: a server's request to a party, and the party's reply
entering          the first request of a session: plan, roster and nonce, signed by the server
roster            the parties and their public keys, in a file that is made out of band
host              a party's side of one session: a request in, a reply out
party             a long-running party, which joins one session after the other
session_store     a party's store of sessions, refusals, fingerprints of records, and client state
computing         training or evaluation in another process, by the app that carries a party's frames
updates           model updates of a caller's own app, and the mean of their sum
local             the party of such updates, and a local deployment of all parties for simulations
server_session    a server's session with parties that share no study with it
connection        the connection over a Unix socket between a party and the carrier of its frames
limits            a party's limits: connections, and memory for their frames
server            a party's side of its socket: access by user, and one request at a time
files             a party's files on disk, which one process holds
engine            the engine that runs a server's queries over waves
transport         the server's transport over `exchange({party: bytes}) -> {party: bytes}`

A party of a study has a folder:

plan_file         the file `party.toml`: name, arm, seed, ledger terms, plan and pinned roster
keys              a party's long-term keys, and their rotation
folder            creates a party's folder, gives it another plan, and opens it
pinning           pins the roster that a party agreed to, and replaces its keys
party_setup       builds the study's algorithm, plan and records for one party, and the party itself
folder_party      the process of a folder's party, which answers requests on a socket
gathering         lets the parties of a round enter, and waits until there are enough
sockets           an exchange over the parties' sockets on the server's machine
coordinator       runs the study on the server, over any transport that reaches the parties
spending          what a run asked of each client's ledger, beside what the server counts
status            a summary of one party's folder for its owner
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.deployment.connection import send
    from securefl.deployment.coordinator import run_deployed
    from securefl.deployment.engine import RemoteEngine
    from securefl.deployment.gathering import TooFewParties
    from securefl.deployment.local import LocalDeployment
    from securefl.deployment.party import PartySession
    from securefl.deployment.roster import PinnedRoster
    from securefl.deployment.server import serve
    from securefl.deployment.sockets import SocketExchange
    from securefl.deployment.transport import SendAndReceive
    from securefl.deployment.updates import Updates

__all__ = [
    "LocalDeployment",
    "PartySession",
    "PinnedRoster",
    "RemoteEngine",
    "SendAndReceive",
    "SocketExchange",
    "TooFewParties",
    "Updates",
    "run_deployed",
    "send",
    "serve",
]
_HOMES = {
    "LocalDeployment": "securefl.deployment.local",
    "PartySession": "securefl.deployment.party",
    "PinnedRoster": "securefl.deployment.roster",
    "RemoteEngine": "securefl.deployment.engine",
    "SendAndReceive": "securefl.deployment.transport",
    "SocketExchange": "securefl.deployment.sockets",
    "TooFewParties": "securefl.deployment.gathering",
    "Updates": "securefl.deployment.updates",
    "run_deployed": "securefl.deployment.coordinator",
    "send": "securefl.deployment.connection",
    "serve": "securefl.deployment.server",
}
_RENAMED = {
    "Apart": "RemoteEngine",
    "Exchange": "SendAndReceive",
    "House": "LocalDeployment",
    "Resident": "PartySession",
    "run_apart": "run_deployed",
}
__getattr__, __dir__ = lazy(__name__, _HOMES, _RENAMED)
