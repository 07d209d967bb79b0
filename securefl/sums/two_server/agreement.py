"""What server, key holder and clients of one two-server sum agree on, and what a client signs of its part."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from securefl.core import agreement
from securefl.core.agreement import fields, tagged, u32
from securefl.core.errors import ConfigError
from securefl.core.keys import PublicKey
from securefl.sums.two_server.messages import PadRequest


@dataclass(frozen=True, kw_only=True)
class Agreement(agreement.Agreement):
    """The agreement of one two-server sum.

    Attributes:
        holder: the key holder's key (X25519), for which clients box the seeds of their pads.
        server: the server's key (X25519), for which the key holder seals its sum of pads.
        ordered: how many clients the order was given to. The fewest that are opened follow from it.
        weights: what the order said of their weights, encoded. The key holder hears both from the server
            alone, but no client signs others than it was ordered.

    Both keys are pinned: they stand in the context, and so under every signature and in every box. A box for
    another key holder belongs to another agreement.

    Raises:
        ConfigError: one key for both, a key of another length, a sum that could wrap, or fewer clients
            that were ordered than are called.
    """

    holder: PublicKey
    server: PublicKey
    ordered: int
    weights: bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        if {len(self.holder.raw), len(self.server.raw)} != {32} or self.holder == self.server:
            raise ConfigError("Expected two keys of 32 bytes, got one twice or others: each party holds one.")
        clients = len(self.roster.members)
        if not clients <= self.ordered < 2**32:
            raise ConfigError(f"Expected at least the {clients} clients called, got {self.ordered} ordered.")
        for vector in self.vectors:
            # Half of the residues stand for negative sums, so the largest must stay below the other half.
            if clients * vector.bound >= 1 << (vector.bits - 1):
                raise ConfigError(
                    f"Expected room for {clients} clients of at most {vector.bound} each, got {vector.bits} "
                    f"bits for {vector.name!r}: widen it or tighten the bound."
                )

    # `ordered` follows from `weights` in every attempt. An agreement that is made otherwise binds both.
    @property
    def rules(self) -> bytes:
        return agreement.digest(
            b"two-server rules 2",
            b"",
            fields(self.holder.raw, self.server.raw, u32(self.ordered), self.weights),
        )


def signed_input(agreed: agreement.Agreement, member: int, vectors: bytes, boxes: bytes) -> bytes:
    """What a client signs: its padded vectors and its boxes, by their digests, under one agreement."""
    return tagged(b"two-server", agreed.context, fields(u32(member), vectors, boxes))


def vectors_digest(packed: Sequence[NDArray[Any]]) -> bytes:
    """SHA-256 over a client's padded vectors, each with its length in front."""
    whole = hashlib.sha256()
    for one in packed:
        whole.update(u32(one.nbytes))
        whole.update(one.data)  # in place: a copy of every vector would cost more than the hash's start
    return whole.digest()


def boxes_digest(boxes: Sequence[bytes]) -> bytes:
    """SHA-256 over a client's boxes, one per vector."""
    return hashlib.sha256(fields(*boxes)).digest()


def request_digest(agreed: agreement.Agreement, request: PadRequest) -> bytes:
    """What the key holder records: the agreement, the set, its vectors and all its boxes."""
    inputs, boxes = (one.raw for one in request.inputs), (box.raw for box in request.boxes)
    parts = (agreed.context, u32(*request.members), fields(*inputs), fields(*boxes))
    return agreement.digest(b"two-server request", b"", fields(*parts))
