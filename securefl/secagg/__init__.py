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

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
