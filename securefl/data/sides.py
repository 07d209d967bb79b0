"""Which side of a split a record falls on: by the record and a key, and by nothing else.

A draw by place would move every record behind one that is gone. Here a record's side follows from its own
bytes: if one record of a data set is added or removed, that record alone moves. Equal records fall on one
side, in whatever order, number or file they come.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.entropy import derived
from securefl.core.keys import SecretKey
from securefl.core.streams import public_seed
from securefl.data.dataset import Dataset, Split

TEST: Final = "test"
"""The records that become the server's."""
HOLDOUT: Final = "holdout"
"""The records that a client tests on and never trains on."""
KEY_BYTES: Final = 32
_LABEL: Final = b"securefl split v1|"


@dataclass(frozen=True, eq=False)
class Sides:
    """The splits of one holder's records, under its key or a public seed.

    Guarantee: each record is on the other side of a split with probability `share`, and splits of different
    purposes are independent, as far as SHA-256 under an unknown key looks random. No record moves another.
    """

    _key: SecretKey | int

    @classmethod
    def fresh(cls) -> Sides:
        """Under a key that nobody keeps."""
        return cls(SecretKey(os.urandom(KEY_BYTES)))

    def apart(self, x: NDArray[Any], y: NDArray[Any], share: float, purpose: str) -> NDArray[np.bool_]:
        """Which of the records (n, ...) with targets (n, ...) are set apart, (n,).

        Args:
            x: the records, of any byte order and any strides.
            y: their targets, one for each record.
            share: the probability with which a record is set apart.
            purpose: TEST or HOLDOUT. Records that one purpose sets apart tell nothing of another's.
        """
        key = self._for(purpose)
        rows, targets = _canonical(x), _canonical(y)
        # All records of a data set have one length, so nothing can be appended to a hashed one.
        words = [
            hashlib.sha256(key + row.tobytes() + target.tobytes()).digest()[:8]
            for row, target in zip(rows, targets, strict=True)
        ]
        drawn: NDArray[np.uint64] = np.frombuffer(b"".join(words), dtype="<u8")
        return drawn / 2.0**64 < share

    def _for(self, purpose: str) -> bytes:
        if isinstance(self._key, int):
            return public_seed(self._key, purpose).to_bytes(8, "little")
        return derived(self._key, _LABEL + purpose.encode()).reveal()


def parted(whole: Dataset, share: float, sides: Sides) -> Split:
    """The records as training and test part, each by its own content."""
    test = sides.apart(whole.x, whole.y, share, TEST)
    return Split(train=whole.take(np.flatnonzero(~test)), test=whole.take(np.flatnonzero(test)))


def _canonical(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of each of n records, (n, bytes): float32 or int64, little-endian. Equal values, equal bytes.

    -0.0 counts as 0.0, and each nan as the same one.
    """
    n, width = len(values), prod(values.shape[1:])
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            found = values.astype("<f4") + np.float32(0)  # -0.0 + 0.0 is 0.0
        found[np.isnan(found)] = np.nan
        found = found.astype("<f4", copy=False)
    else:
        found = values.astype("<i8")
    flat = np.ascontiguousarray(found.reshape(n, width))
    return flat.view(np.uint8).reshape(n, width * flat.itemsize)
