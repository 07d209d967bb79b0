"""Which of a client's records it tests on and never trains on."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def held_out(x: NDArray[Any], y: NDArray[Any], share: float, seed: int) -> NDArray[np.bool_]:
    """Whether each of the records (n, ...) is held out, (n,).

    Each is with probability `share`, so small clients may have no such record, or no other.

    Guarantee: it follows from the record and the public seed alone. If one record of a client is added,
    removed or replaced, all others stay on their side, and only one of the two sides changes for each record.
    """
    # A draw by place would move the records behind the one that is gone.
    salt = seed.to_bytes(8, "little")
    rows, targets = np.ascontiguousarray(x), np.ascontiguousarray(y)
    words = [
        hashlib.sha256(salt + row.tobytes() + target.tobytes()).digest()[:8]
        for row, target in zip(rows, targets, strict=True)
    ]
    drawn: NDArray[np.uint64] = np.frombuffer(b"".join(words), dtype="<u8")
    return drawn / 2.0**64 < share
