"""Secure aggregation: the server learns the sum over the survivors and nothing else.

SPEC.md has every byte, `phases.py` who says what when and what is checked.

After Bonawitz et al. 2017 (active adversaries), on the sparse graphs of Bell et al. 2020.

Who could lie:

- The server may show different clients different rosters, dealers or survivors. A quorum signs one set, and
  each share is opened for a client that signed the same dealers.
- It may replay messages, or ask twice. Clients keep a record, and refuse, over attempts, rounds and restarts
  (`acts`).
- A client may deal or open wrong shares. Hashes tell which of the two it was.
- A client may send any vector. Values out of range cannot be seen under masks.
"""

from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Identity, Member, Question, Roster, Vector
from securefl.secagg.agreement import Agreement, Channels
from securefl.secagg.client import Client
from securefl.secagg.packing import centred
from securefl.secagg.parameters import Parameters, Policy, parameters
from securefl.secagg.server import Server
from securefl.secagg.unmasking import Aborted, Summed, Unmasking

__all__ = [
    "Aborted",
    "Agreement",
    "Begin",
    "Channels",
    "Client",
    "Identity",
    "Member",
    "Parameters",
    "Policy",
    "Question",
    "RecordAct",
    "Roster",
    "Server",
    "Summed",
    "Unmasking",
    "Vector",
    "centred",
    "parameters",
]
