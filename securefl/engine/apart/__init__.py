"""Parties that live apart: one request and one reply of bytes a wave, whatever carries them.

frames     envelopes: a kind, and parts with their lengths
turns      what a server gives a party in one wave, and what the party sends back
entering   the first request of a session: a plan, a roster and a nonce, under the server's signature
roster     who takes part, with which keys: a file made out of band
host       a party's side of a session: a request in, a reply out
resident   a party that outlives its sessions: it enters them by its own plan and roster
diary      which sessions it entered, what it refused and why, the records it had, and what it keeps
computing  what a party has computed by whoever brought it the request
updates    model updates of an app that is not ours, and what their sum says
house      parties of such updates: one in its process, or a simulation's in one
asking     a server's session with parties that it has no study with
line       the Unix socket between a party and whoever carries its frames
engine     a server's Asks over waves, as the embedded engine runs them
waves      the server's side: a transport over `exchange({party: bytes}) -> {party: bytes}`
"""

from __future__ import annotations
