"""Content-based splits: a keyed hash of a record decides its side, and nothing else does.

If a split drew by position, removing one record would move the records after it. Here a record's side depends
on its own bytes and the key: if one record is added or removed, no other record moves. Equal records fall on
the same side, independent of their order, number and file.
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
"""The purpose of a split that sets the server's test records apart."""
HOLDOUT: Final = "holdout"
"""The purpose of a split that sets a client's own test records apart. The client does not train on them."""
VALIDATION: Final = "validation"
"""The purpose of a split that sets apart those test records that choose a setting."""
KEY_BYTES: Final = 32
_LABEL: Final = b"securefl split v1|"


@dataclass(frozen=True, eq=False)
class Sides:
    """The splits of one party's records, under its secret key or a public seed.

    Guarantee: a split sets each record apart with probability `share`, and splits of different purposes are
    independent. Both hold if SHA-256 under an unknown key is pseudorandom. No record changes another's side.
    """

    _key: SecretKey | int

    @classmethod
    def fresh(cls) -> Sides:
        """Splits under a fresh random key that is not stored."""
        return cls(SecretKey(os.urandom(KEY_BYTES)))

    def apart(self, x: NDArray[Any], y: NDArray[Any], share: float, purpose: str) -> NDArray[np.bool_]:
        """A mask of the records that the split sets apart, bool of shape (n,).

        Args:
            x: The records, shape (n, ...), of any byte order and any strides.
            y: Their targets, shape (n, ...).
            share: The probability with which a record is set apart.
            purpose: TEST, HOLDOUT or VALIDATION. The splits of two purposes are independent.
        """
        key = self._for(purpose)
        rows, targets = _canonical(x), _canonical(y)
        # All records of a data set have the same length. So a length extension of SHA-256 gives no other
        # record.
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
    """Split the records into a training and a test part, each record by its own content."""
    test = sides.apart(whole.x, whole.y, share, TEST)
    return Split(train=whole.take(np.flatnonzero(~test)), test=whole.take(np.flatnonzero(test)))


def _canonical(values: NDArray[Any]) -> NDArray[np.uint8]:
    """The canonical bytes of each of n records, (n, bytes): float32 or int64, little-endian.

    Equal values have equal bytes. -0.0 counts as 0.0, and all NaN are equal.
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
