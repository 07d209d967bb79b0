"""The evaluator's requests for one match: of each sealed profile an item for the key holder.

Files take dealt pads unless the evaluator declared its baseline. The evaluator gets no score back, so weights
that are bound to a digest keep nothing from the evaluator alone. They keep it from having the key holder read
something else than a score, which counts if the key holder tells scores. The price: clients wait for the
declaration, and the key holder learns the baseline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from securefl.core.linear import Floats
from securefl.core.signing import seal
from securefl.linear.addressed import PadFiles
from securefl.linear.encrypted import EncryptedFiles
from securefl.linear.pad_terms import KEY, PLACE
from securefl.linear.turn import refusal
from securefl.matching.document import Document
from securefl.matching.keys import PublicKeys
from securefl.matching.matched import Matched
from securefl.matching.options import Files

Header = Mapping[str, Any]


class Matcher:
    """Makes the requests of one match.

    Args:
        files: the cipher, for this session, evaluator and options.
        item: makes an item of a client's message, its plaintext values and its label.
        head: what the key holder gets before the items.
        messages: those of all profiles. If two under pads have one fresh key, neither is scored: one of them
            copied it, and nobody can tell which.
        matched: the record of dealt pads, of which there is one item for each profile, ever.
    """

    def __init__(
        self,
        files: Files,
        item: Callable[[bytes, Floats, str], bytes],
        head: bytes,
        messages: Iterable[bytes],
        matched: Matched,
    ) -> None:
        self._files, self._item, self._head, self._matched = files, item, head, matched
        padded = isinstance(files, PadFiles)
        self._uses = Counter(map(_fresh_key, messages) if padded else ())

    def request(self, message: bytes, label: str) -> bytes:
        """The request for one score. Raises RemoteProtocolError(label) for a message that does not pass."""
        files = self._files
        clear = _clear_values(message[files.message_bytes :], files.terms.bounds.clear_length, label)
        item = self._item(message[: files.message_bytes], clear, label)
        if isinstance(files, PadFiles):
            fresh = _fresh_key(message)
            if self._uses[fresh] > 1:
                raise refusal(
                    "Expected a fresh key of its own, got one that another profile has too. Encrypt it "
                    "again.",
                    label,
                    "pads",
                )
            if files.terms.dealt:
                # Also over the terms: under others the client's share would be another part of one stream.
                self._matched.once(fresh, files.digest(item, label, b""), sender=label)
        return item

    def body(self, requests: Iterable[bytes], header: Header, public: PublicKeys) -> bytes:
        """The requests as the body of a file with this header, before it is signed."""
        whole = self._head + b"".join(requests)
        if isinstance(self._files, EncryptedFiles):
            return whole
        # Sealed: weights, and shares of them together with a client, are for the key holder alone.
        return seal(public.agreement, whole, requests_context(header))


def _fresh_key(message: bytes) -> bytes:
    return message[PLACE : PLACE + KEY]


def _clear_values(raw: bytes, count: int, label: str) -> Floats:
    if len(raw) != 8 * count:
        raise refusal(
            f"Expected {8 * count} bytes in the clear, got {len(raw)}. Encrypt it again.", label, "gate"
        )
    return np.frombuffer(raw, dtype="<f8").astype(np.float64)


def requests_context(header: Header) -> bytes:
    """The bytes that the seal of requests binds: kind and header of their file."""
    return Document("encrypted-scores", header, b"").signed_part()
