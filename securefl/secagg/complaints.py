"""A holder says that its shares are wrong: was it, or its dealer?

The holder shows the key of that one message. What the dealer sealed and signed can then be opened:
shares that do not match their hashes prove the dealer bad, shares that do match prove the holder a
liar. If nothing opens, either may have lied about the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from securefl.core.errors import CryptoError
from securefl.core.keys import SecretKey, Share
from securefl.secagg.agreement import ClosedRoster
from securefl.secagg.dealing import Published, check_pair, unseal


def judge(
    closed: ClosedRoster, dealt: Mapping[int, Published], holder: int, keys: Sequence[Share]
) -> Iterator[tuple[int, bool]]:
    """Yield each accused dealer, and whether it is proven bad.

    Raises:
        CryptoError: the holder accuses nobody, a stranger, or a dealer whose shares are right.
    """
    if not keys:
        raise CryptoError("Expected a dealer to be accused.")
    for shown in keys:
        dealer = int.from_bytes(shown.raw[:4], "little")
        # A dealing has no box for its own dealer, so who accuses itself would be refused below in any case.
        if len(shown.raw) != 36 or dealer not in dealt or dealer == holder:
            raise CryptoError("Expected the number of another dealer and a key of 32 bytes.")
        box = dealt[dealer].boxes.get(holder)
        if box is None:
            raise CryptoError(f"It holds no shares of {dealer}.")
        # A key that opens nothing proves nothing: the dealer may have sealed under another key, or the holder
        # may show another one.
        try:
            pair = unseal(box, SecretKey(shown.raw[4:]), closed, dealer, holder)
        except CryptoError:
            yield dealer, False
            continue
        try:
            check_pair(pair, dealt[dealer].marks(holder), closed, dealer, holder)
        except CryptoError:
            yield dealer, True
            continue
        raise CryptoError(f"The shares of {dealer} are right; it was accused falsely.")
