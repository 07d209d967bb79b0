"""The agreement of a two-server sum: the public parameters that all parties sign or pin."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from securefl.core import agreement
from securefl.core.agreement import fields, tagged, u32
from securefl.core.errors import ConfigError
from securefl.core.keys import PublicKey
from securefl.sums.opened import OrderedAgreement
from securefl.sums.two_server.messages import PadRequest


@dataclass(frozen=True, kw_only=True)
class Agreement(OrderedAgreement):
    """The agreement of one two-server sum.

    Attributes:
        holder: the key holder's key (X25519), for which clients box the seeds of their pads.
        server: the server's key (X25519), for which the key holder seals its sum of pads.

    Both keys are pinned: they are part of the context, and so of every signature and every box. A box for
    another key holder belongs to another agreement.

    Raises:
        ConfigError: one key for both parties, a key of another length, a sum that could wrap, or fewer
            ordered clients than called ones.
    """

    holder: PublicKey
    server: PublicKey
    scheme: ClassVar[bytes] = b"two-server"

    def __post_init__(self) -> None:
        super().__post_init__()
        if {len(self.holder.raw), len(self.server.raw)} != {32} or self.holder == self.server:
            raise ConfigError("Expected two different keys of 32 bytes: each party holds its own.")
        clients = len(self.roster.members)
        if not clients <= self.ordered < 2**32:
            raise ConfigError(f"Expected at least the {clients} clients called, got {self.ordered} ordered.")
        for vector in self.vectors:
            vector.require_room(clients)

    @property
    def pinned(self) -> tuple[bytes, ...]:
        return self.holder.raw, self.server.raw


def signed_input(agreed: agreement.Agreement, member: int, vectors: bytes, boxes: bytes) -> bytes:
    """The bytes that a client signs: digests of its padded vectors and its boxes, under one agreement."""
    return tagged(b"two-server", agreed.context, fields(u32(member), vectors, boxes))


def vectors_digest(packed: Sequence[NDArray[Any]]) -> bytes:
    """SHA-256 over a client's padded vectors, each preceded by its length."""
    whole = hashlib.sha256()
    for one in packed:
        whole.update(u32(one.nbytes))
        whole.update(one.data)  # in place: a copy of every vector would cost more than the hash's start
    return whole.digest()


def boxes_digest(boxes: Sequence[bytes]) -> bytes:
    """SHA-256 over a client's boxes, one per vector."""
    return hashlib.sha256(fields(*boxes)).digest()


def request_digest(agreed: agreement.Agreement, request: PadRequest) -> bytes:
    """The digest that the key holder records, of agreement, members, their vectors and boxes."""
    inputs, boxes = (one.raw for one in request.inputs), (box.raw for box in request.boxes)
    parts = (agreed.context, u32(*request.members), fields(*inputs), fields(*boxes))
    return agreement.digest(b"two-server request", b"", fields(*parts))
