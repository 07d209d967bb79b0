"""What a simulation does once for all its parties: read the same bytes, and check the same signature.

Each party of a simulation stands for a machine of its own, on which it would do both itself. Here one result
serves them all, because it cannot differ: it follows from the arguments alone, and it is remembered by all of
them. So a receiver with other limits, at another place or with another message in mind has its own result.

Formal guarantees:
- What fails is not remembered. It fails again, for each party.
- A message that is shared has nothing that a party could change. One with arrays is read for each receiver.
- Nothing is kept beyond an exchange.

Only `inprocess.simulated` makes one. A party on its own reads and checks all that it acts on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, TypeVar

from securefl.core import signing, wire
from securefl.core.keys import PublicKey, Signature
from securefl.core.wire import Header, Limit
from securefl.core.wire.kinds import KEYS, element

T = TypeVar("T")
MOST_MESSAGES: Final = 32
"""Messages that are remembered at a time. Few go to more than one receiver, and memory must not grow."""
_UNCHANGING: Final = (int, float, str, bytes, *KEYS)


class Once:
    """The results of one exchange."""

    def __init__(self) -> None:
        self._messages: dict[tuple[Any, ...], Any] = {}
        self._signed: set[tuple[bytes, bytes, bytes]] = set()

    def __len__(self) -> int:
        return len(self._messages) + len(self._signed)

    def decode(self, data: bytes, header: Header, kinds: Mapping[type[T], Limit], sender: str) -> T:
        """As `wire.decode`. The sender is not remembered: only an error names it."""
        key = (data, header, *kinds.items())
        found: T | None = self._messages.get(key)
        if found is None:
            found = wire.decode(data, header, kinds, sender)
            if _unchanging(type(found)):  # type: ignore[arg-type]  # a class is hashable
                if len(self._messages) >= MOST_MESSAGES:
                    del self._messages[next(iter(self._messages))]  # the oldest
                self._messages[key] = found
        return found

    def verify(self, public: PublicKey, signature: Signature, message: bytes) -> None:
        """As `signing.verify`."""
        key = (public.raw, signature.raw, hashlib.sha256(message).digest())
        if key not in self._signed:
            signing.verify(public, signature, message)
            self._signed.add(key)

    def forget(self) -> None:
        """The exchange is over."""
        self._messages.clear()
        self._signed.clear()


@cache
def _unchanging(cls: Any) -> bool:
    """Whether all fields of a message class are values that nobody can change."""
    return all(element(hint) in _UNCHANGING for _, hint in cls.__wire__.fields)
