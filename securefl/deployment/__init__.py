"""Deployment: parties in processes of their own, and the server's session with them.

A wave is one request and one reply of bytes for each party. Each is an envelope.

messages          the envelopes: entering a session, signed turns, orders to compute, refusals
roster            the parties and their public keys, in a file that is made out of band
party             a long-running party, which joins one session after the other
session_store     a party's store of sessions, refusals, fingerprints of records, and client state
computing         training or evaluation in another process, by the app that carries a party's envelopes
updates           model updates of a caller's own app, and the mean of their sum
local             the party of such updates, and a local deployment of all parties for simulations
framing           a length and an envelope on a Unix socket, and either end of a connection
peers             who is at the other end of a socket, and who could have put a socket at a path
connection        a relay's side of a party's socket: it checks who listens, and sends a request
server            a party's side of its socket: access by user, limits, one request at a time in one thread
files             a party's files on disk, which one process holds
engine            the engine that runs a server's queries over waves: a study's, and an app's updates
transport         the server's transport over `exchange({party: bytes}) -> {party: bytes}`: it asks parties to
                  enter, and signs each turn for one visit

A party of a study has a folder:

plan_file         the file `party.toml`: name, arm, seed, ledger terms, plan and pinned roster
keys              a party's long-term keys, and their rotation
folder            creates a party's folder, gives it another plan, opens it, and serves it
pinning           pins the roster that a party agreed to, and replaces its keys
party_setup       builds the study's algorithm, plan and records for one party, and the party itself
gathering         lets the parties of a round enter, and waits until there are enough
sockets           an exchange over the parties' sockets on the server's machine
coordinator       runs the study on the server, over any transport that reaches the parties
spending          what a run asked of each client's ledger, beside what the server counts
status            a summary of one party's folder for its owner
"""

from securefl.core.lazy import lazy

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
