"""The messages of an encrypted sum. The key holder's reply is a `core.messages.OpenReply`."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.core.keys import Commitment, Signature
from securefl.core.release import Release
from securefl.core.wire import message


@message("encrypted-input", sender="client")
@dataclass(frozen=True, kw_only=True)
class EncryptedInput:
    """One encrypted release per vector, and a signature over the agreement and the ciphertexts."""

    releases: tuple[Release, ...]
    signature: Signature


@message("sum-request", sender="server")
@dataclass(frozen=True, kw_only=True)
class SumRequest:
    """Blinded totals to open, and the evidence for the key holder that a cohort contributed to them.

    Attributes:
        items: one blinded total per vector.
        task: digest of the task that the server told the cohort.
        members: numbers in the pinned roster of the clients whose inputs the server says are in the totals,
            ascending.
        inputs: digest of each member's ciphertexts.
        signatures: each member's, over the agreement and that digest.
    """

    items: tuple[bytes, ...]
    task: bytes
    members: tuple[int, ...]
    inputs: tuple[Commitment, ...]
    signatures: tuple[Signature, ...]
