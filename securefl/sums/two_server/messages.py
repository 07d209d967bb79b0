"""The messages of a two-server sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from securefl.core.keys import Commitment, Share, Signature
from securefl.core.release import Release
from securefl.core.wire import message


@message("padded-input", sender="client")
@dataclass(frozen=True, kw_only=True)
class PaddedInput:
    """One padded release per vector, the box with its seed for each, and a signature over all of them.

    Vector and box travel in one message, so no client is in only one half of the sum.
    """

    releases: tuple[Release, ...]
    boxes: tuple[Share, ...]
    signature: Signature


@message("pad-request", sender="server")
@dataclass(frozen=True, kw_only=True)
class PadRequest:
    """The boxes whose pads are to be summed, and the evidence for the key holder that a cohort contributed.

    Attributes:
        task: digest of the task that the server told the cohort.
        members: numbers in the pinned roster, ascending.
        boxes: of each member, one per vector.
        inputs: digest of each member's padded vectors.
        signatures: each member's, over the agreement, that digest and the digest of its boxes.
    """

    task: bytes
    members: tuple[int, ...]
    boxes: tuple[Share, ...]
    inputs: tuple[Commitment, ...]
    signatures: tuple[Signature, ...]

    def of(self, place: int) -> tuple[Share, ...]:
        """The boxes of the member at this place."""
        each = len(self.boxes) // len(self.members)
        return self.boxes[each * place : each * (place + 1)]

    def without(self, bad: Sequence[int]) -> PadRequest:
        """The same request for the remaining members."""
        left = [place for place, member in enumerate(self.members) if member not in bad]
        return replace(
            self,
            members=tuple(self.members[place] for place in left),
            boxes=tuple(box for place in left for box in self.of(place)),
            inputs=tuple(self.inputs[place] for place in left),
            signatures=tuple(self.signatures[place] for place in left),
        )


@message("pad-reply", sender="key-holder")
@dataclass(frozen=True, kw_only=True)
class PadReply:
    """The key holder's answer to one request.

    Attributes:
        request: digest of the request that it answers.
        bad: members of it whose boxes do not open. If there are any, nothing was recorded and there are no
            pads.
        pads: the sums of the pads, packed and sealed to the server; `REFUSED` if the key holder opened
            another total of a sum before.
    """

    request: bytes
    bad: tuple[int, ...]
    pads: bytes
