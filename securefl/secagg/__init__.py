"""Secure aggregation: the server learns the sum over the survivors and nothing else.

The protocol is that of Bonawitz et al. 2017 (active adversaries), on the sparse graphs of Bell et al. 2020.
SPEC.md defines every byte. `phases.py` lists the messages of each phase and their checks.

Possible attacks, and the checks against them:

- The server may show clients different rosters, dealers or survivors. A quorum signs one set, and a client
  opens a share only for clients that confirmed the same dealers.
- The server may forge signatures. A client's neighbours authenticate by the secrets of their channels, and
  the client draws the sample of other signatures that it verifies (`quorum`).
- The server may replay messages or ask twice. Each client keeps a record, and refuses a second answer, over
  attempts, rounds and restarts (`acts`).
- A client may deal wrong shares or open wrong shares. Published hashes show which of the two it did.
- A client may send any vector. No check sees a value out of range under masks.
"""

from securefl.core.lazy import lazy

TYPE_CHECKING = False  # type checkers take it for true; `typing` would take as long to import as all else

if TYPE_CHECKING:
    from securefl.core.agreement import Identity, Member, Question, Roster, Vector
    from securefl.secagg.agreement import Agreement, Channels
    from securefl.secagg.client import Client
    from securefl.secagg.masks import apply_masks
    from securefl.secagg.packing import centred, words
    from securefl.secagg.policy import Parameters, Policy, parameters
    from securefl.secagg.server import Server
    from securefl.secagg.unmasking import Aborted, Summed, Unmasking

__all__ = [
    "Aborted",
    "Agreement",
    "Channels",
    "Client",
    "Identity",
    "Member",
    "Parameters",
    "Policy",
    "Question",
    "Roster",
    "Server",
    "Summed",
    "Unmasking",
    "Vector",
    "apply_masks",
    "centred",
    "parameters",
    "words",
]
_HOMES = {
    "Aborted": "securefl.secagg.unmasking",
    "Agreement": "securefl.secagg.agreement",
    "Channels": "securefl.secagg.agreement",
    "Client": "securefl.secagg.client",
    "Identity": "securefl.core.agreement",
    "Member": "securefl.core.agreement",
    "Parameters": "securefl.secagg.policy",
    "Policy": "securefl.secagg.policy",
    "Question": "securefl.core.agreement",
    "Roster": "securefl.core.agreement",
    "Server": "securefl.secagg.server",
    "Summed": "securefl.secagg.unmasking",
    "Unmasking": "securefl.secagg.unmasking",
    "Vector": "securefl.core.agreement",
    "apply_masks": "securefl.secagg.masks",
    "centred": "securefl.secagg.packing",
    "parameters": "securefl.secagg.policy",
    "words": "securefl.secagg.packing",
}
__getattr__, __dir__ = lazy(__name__, _HOMES)
