"""Deployment: parties in processes of their own. A wave is one request and one reply of bytes for each party.

frames            binary frames: a kind, and parts with their lengths
turns             the frames of a wave: a server's request to a party, and the party's reply
entering          the first request of a session: plan, roster and nonce, signed by the server
roster            the parties and their public keys, in a file that is made out of band
host              a party's side of one session: a request in, a reply out
party_session     a long-running party, which joins one session after the other
session_store     a party's store of sessions, refusals, fingerprints of records, and client state
computing         training or evaluation in another process, by the app that carries a party's frames
updates           model updates of a caller's own app, and the mean of their sum
local_deployment  the party of such updates, and a local deployment of all parties for simulations
asking            a server's session with parties that share no study with it
connection        the connection over a Unix socket between a party and the carrier of its frames
limits            a party's limits: connections, and memory for their frames
serving           a party's side of its socket: access by user, and one request at a time
files             a party's files on disk, which one process holds
engine            the engine that runs a server's queries over waves
remote_transport  the server's transport over `exchange({party: bytes}) -> {party: bytes}`
"""

from __future__ import annotations
