"""What a simulation does once for all its parties: read the same bytes, check a signature, agree on a key.

Each party of a simulation stands for a machine of its own, on which it would do both itself. Here one result
serves them all, because it cannot differ: it follows from the arguments alone, and it is remembered by all of
them. So a receiver with other limits, at another place or with another message in mind has its own result.

Two owners of keys come to one secret. The second one takes what the first one worked out.

Formal guarantees:
- What fails is not remembered. It fails again, for each party.
- A message that is shared has nothing that a party could change. One with arrays is read for each receiver.
- Nothing is kept beyond an exchange.

Only `inprocess.simulated` makes one. A party on its own reads and checks all that it acts on.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, TypeVar

from securefl.core import signing, wire
from securefl.core.keys import PublicKey, SecretKey, Signature
from securefl.core.signing import AgreementKey
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
        self._agreed: dict[tuple[frozenset[bytes], bytes], SecretKey] = {}

    def __len__(self) -> int:
        return len(self._messages) + len(self._signed) + len(self._agreed)

    def decode(self, data: bytes, header: Header, kinds: Mapping[type[T], Limit], sender: str) -> T:
        """As `wire.decode`. The sender is not remembered: only an error names it."""
        # A model's bytes are long to hash, and no message with arrays is remembered.
        if not any(_unchanging(kind) for kind in kinds):  # type: ignore[arg-type]  # a class is hashable
            return wire.decode(data, header, kinds, sender)
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
        key = (public.raw, signature.raw, message)
        if key not in self._signed:
            signing.verify(public, signature, message)
            self._signed.add(key)

    def agree(self, own: AgreementKey, other: PublicKey, purpose: bytes) -> SecretKey:
        """As `own.agree`. Both sides come to the same secret, and the second one takes the first one's."""
        key = (frozenset((own.public.raw, other.raw)), purpose)
        # Taken once, by the other side: a cohort of K has K^2 of them.
        if (found := self._agreed.pop(key, None)) is None:
            found = self._agreed[key] = own.agree(other, purpose)
        return found

    def forget(self) -> None:
        """The exchange is over."""
        self._messages.clear()
        self._signed.clear()
        self._agreed.clear()


@cache
def _unchanging(cls: Any) -> bool:
    """Whether all fields of a message class are values that nobody can change."""
    return all(element(hint) in _UNCHANGING for _, hint in cls.__wire__.fields)
