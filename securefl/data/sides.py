"""Content-based splits: a keyed hash of a record and its number among equal ones decides its side.

If a split drew by position, removing one record would move the records after it. Here a record's side depends
on its own bytes, the key, and its number i among the m identical records of its client: 0, ..., m - 1. If a
table has few distinct records, hashes of the content alone would put all copies on one side, and a share of
30 % might be 49 % of the records.

One record more or less still moves one record. Identical records are exchangeable: without one of m copies
the rest are numbered 0, ..., m - 2, whichever copy it was. So each side loses what it loses if the last copy
goes, and no record of other content and no record of another client moves. Number 0 hashes the content alone.

The client of a record is the one that its data names, or the one that it is dealt to. A hold-out is split
after records are dealt, so its numbers are always those of one client. A test part is split off before. If
the data names clients, copies are numbered by client. If it does not, the table is one party's: its copies
are numbered together, the rest is dealt by place, and epsilon covers a record as it was dealt.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.entropy import derived
from securefl.core.formats import prefix
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


@dataclass(frozen=True, eq=False)
class Sides:
    """The splits of one party's records, under its secret key or a public seed.

    Guarantee: a split sets each record apart with probability `share`, and splits of different purposes are
    independent. Both hold if SHA-256 under an unknown key is pseudorandom. One record more or less of a
    client changes the number of records on one side, by one.
    """

    _key: SecretKey | int

    @classmethod
    def fresh(cls) -> Sides:
        """Splits under a fresh random key that is not stored."""
        return cls(SecretKey(os.urandom(KEY_BYTES)))

    def apart(
        self,
        x: NDArray[Any],
        y: NDArray[Any],
        share: float,
        purpose: str,
        clients: NDArray[np.int64] | None = None,
    ) -> NDArray[np.bool_]:
        """A mask of the records that the split sets apart, bool of shape (n,).

        Args:
            x: The records, shape (n, ...), of any byte order and any strides.
            y: Their targets, shape (n, ...).
            share: The probability with which a record is set apart.
            purpose: TEST, HOLDOUT or VALIDATION. The splits of two purposes are independent.
            clients: The client of each record, shape (n,). None if all records are of one party.

        Returns:
            A mask of the records that are set apart, bool of shape (n,).
        """
        key = self._for(purpose)
        rows, targets = _canonical(x), _canonical(y)
        owners = [0] * len(rows) if clients is None else clients.tolist()

        def word(place: int, suffix: bytes = b"") -> bytes:
            content = rows[place].tobytes() + targets[place].tobytes()
            return hashlib.sha256(key + content + suffix).digest()[:8]

        # All records of a data set have the same length. So a length extension of SHA-256 gives no other
        # record, and a suffix no other record's content.
        words = [word(place) for place in range(len(rows))]
        alike = Counter(zip(owners, words, strict=True))
        seen: Counter[tuple[int, bytes, bytes]] = Counter()
        for place, owner in enumerate(owners):
            if alike[owner, words[place]] == 1:
                continue
            # Bit by bit: a copy that differs in the sign of a zero is not exchangeable with the others.
            copy = owner, x[place].tobytes(), y[place].tobytes()
            if number := seen[copy]:
                words[place] = word(place, number.to_bytes(8, "little"))
            seen[copy] += 1
        drawn: NDArray[np.uint64] = np.frombuffer(b"".join(words), dtype="<u8")
        return drawn / 2.0**64 < share

    def _for(self, purpose: str) -> bytes:
        if isinstance(self._key, int):
            return public_seed(self._key, purpose).to_bytes(8, "little")
        return derived(self._key, prefix(f"split/{purpose}")).reveal()


def parted(whole: Dataset, share: float, sides: Sides) -> Split:
    """Split the records into a training and a test part, copies numbered by client (`groups`)."""
    test = sides.apart(whole.x, whole.y, share, TEST, whole.groups)
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
