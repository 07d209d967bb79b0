"""The server's machine of one two-server sum: it adds padded vectors and subtracts the sum of their pads.

It keeps each member's vector until the end, 4 bytes a value up to 32 bits and 8 above. The key holder may
name a member whose box does not open, and the sum then goes on without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.core.append_map import AppendMap
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import Commitment, Share, Signature
from securefl.core.machine import Expects, Need, Outgoing, Step
from securefl.core.messages import OVERHEAD, REFUSED
from securefl.core.release import KEY_HOLDER, Delivered
from securefl.core.signing import AgreementKey, unseal
from securefl.core.wire import Limit
from securefl.secagg.masks import Words
from securefl.secagg.packing import unpack
from securefl.sums.scheme import Opened, Unopened
from securefl.sums.two_server.agreement import (
    Agreement,
    boxes_digest,
    request_digest,
    signed_input,
    vectors_digest,
)
from securefl.sums.two_server.messages import PaddedInput, PadReply, PadRequest
from securefl.sums.two_server.pads import BOX_BYTES, SEALING_BYTES, pads_bytes, pads_of, unpadded

NOT_OPENED = "Its box does not open at the key holder, so its pad cannot be subtracted."


@dataclass(frozen=True)
class Input:
    """One member's input: a word for each value, and the parts that the key holder checks."""

    vectors: tuple[Words, ...] = field(repr=False)
    digest: bytes
    boxes: tuple[Share, ...]
    signature: Signature


Inputs = AppendMap[int, Input]
"""By member."""


@dataclass(frozen=True)
class TakePads:
    """A work order of the server: add the vectors and subtract the sum of their pads."""

    agreement: Agreement
    inputs: tuple[Input, ...] = field(repr=False)
    pads: tuple[Words, ...] = field(repr=False)

    def run(self) -> Mapping[str, NDArray[np.int64]]:
        return {
            vector.name: unpadded([one.vectors[i] for one in self.inputs], self.pads[i], vector.bits)
            for i, vector in enumerate(self.agreement.vectors)
        }


@dataclass(frozen=True)
class Adding:
    inputs: Inputs = field(repr=False)


@dataclass(frozen=True)
class Asking:
    """`first` is the digest of the request in which members were named as `bad`. It is empty before that.

    `again` is how many more times the server sends the same request if the reply is late.
    """

    inputs: Inputs = field(repr=False)
    request: PadRequest
    first: bytes = b""
    bad: tuple[int, ...] = ()
    again: int = 2


@dataclass(frozen=True)
class Taking:
    members: tuple[int, ...]
    bad: tuple[int, ...]


@dataclass(frozen=True)
class Ended:
    pass


PadState = Adding | Asking | Taking | Ended


@dataclass(frozen=True, kw_only=True)
class PadServer:
    """The server's machine of one two-server sum.

    least: the least number of contributions with which it sends a request. key: the key that the reply is
    sealed to.
    """

    agreement: Agreement
    least: int
    key: AgreementKey

    def begin(self) -> Step[PadState]:
        return Step(Adding(AppendMap()))

    def expects(self, state: PadState) -> Expects:
        vectors, size = len(self.agreement.vectors), pads_bytes(self.agreement)
        members = len(self.agreement.roster.members)
        limits = {
            PaddedInput: Limit(size + BOX_BYTES * vectors + OVERHEAD, 2 * vectors),
            # Pads or names: if vectors are short, the names of bad members are longer.
            PadReply: Limit(max(size + SEALING_BYTES, 8 * members) + OVERHEAD, members),
        }
        return Expects(self.agreement.header, limits)

    def receive(self, state: PadState, sender: str, message: Any) -> Step[PadState]:
        if isinstance(message, PadReply):
            return self._replied(state, sender, message)
        number = self.agreement.roster.numbers.get(sender)
        if number is None:
            raise RemoteProtocolError(
                "Expected a client of the cohort, got another.", sender=sender, phase="contribution"
            )
        # Late and repeated inputs are ignored, not refused: honest clients and networks cause them too.
        if not isinstance(state, Adding) or number in state.inputs:
            return Step(state)
        try:
            own = self._read(number, message)
        except CryptoError as error:
            raise RemoteProtocolError(str(error), sender=sender, phase="contribution") from None
        state = Adding(state.inputs.having(number, own))
        everybody = len(state.inputs) == len(self.agreement.roster.members)
        return self._collected(state) if everybody else Step(state)

    def _read(self, number: int, said: PaddedInput) -> Input:
        """A member's input. Raises CryptoError if it differs from the agreement or the signed text."""
        came: tuple[Any, ...] = said.releases
        delivered: tuple[Delivered, ...] = came
        vectors = self.agreement.vectors
        if [(one.name, one.form, one.sealed) for one in delivered] != [
            (v.name, "masked", b"") for v in vectors
        ]:
            raise CryptoError(
                f"Expected a padded vector for each of {[v.name for v in vectors]}, got others."
            )
        if [len(one.raw) for one in said.boxes] != [BOX_BYTES] * len(vectors):
            raise CryptoError(f"Expected {len(vectors)} boxes of {BOX_BYTES} bytes each, got others.")
        packed: list[NDArray[Any]] = [one.numbers for one in delivered]
        read = tuple(unpack(one, v.length, v.bits) for one, v in zip(packed, vectors, strict=True))
        digest = vectors_digest(packed)
        text = signed_input(self.agreement, number, digest, boxes_digest([one.raw for one in said.boxes]))
        try:
            self.agreement.check(number, said.signature, text)
        except CryptoError:
            raise CryptoError(
                "Expected a signature on these vectors, boxes and agreement, but it did not sign them."
            ) from None
        return Input(read, digest, said.boxes, said.signature)

    def _collected(self, state: Adding) -> Step[PadState]:
        if len(state.inputs) < self.least:
            return _closed(f"Expected at least {self.least} contributions, got {len(state.inputs)}.")
        members = tuple(sorted(state.inputs))
        inputs = [state.inputs[member] for member in members]
        request = PadRequest(
            task=self.agreement.task,
            members=members,
            boxes=tuple(box for own in inputs for box in own.boxes),
            inputs=tuple(Commitment(own.digest) for own in inputs),
            signatures=tuple(own.signature for own in inputs),
        )
        return Step(Asking(state.inputs, request), out=(Outgoing((KEY_HOLDER,), request),))

    def _replied(self, state: PadState, sender: str, reply: PadReply) -> Step[PadState]:
        if sender != KEY_HOLDER:
            raise RemoteProtocolError(
                f"Expected a reply of the key holder, got one of {sender}.", sender=sender, phase="pads"
            )
        # A second copy of the reply that named members answers the earlier request. It is harmless.
        if not isinstance(state, Asking) or (state.first and reply.request == state.first):
            return Step(state)
        asked = request_digest(self.agreement, state.request)
        if reply.request != asked:
            raise _refusal("Expected a reply to our request, got one to another.")
        if reply.bad:
            return self._without(state, asked, reply)
        if reply.pads == REFUSED:
            return _closed(
                "Expected the key holder to open, got a refusal: it opened another total of this sum.",
                self._named(state.bad),
                asked=True,
            )
        try:
            pads = pads_of(self.agreement, unseal(self.key, reply.pads, asked))
        except CryptoError:
            raise _refusal("Expected sums of pads, sealed to us for our request, got others.") from None
        members = state.request.members
        work = TakePads(self.agreement, tuple(state.inputs[member] for member in members), tuple(pads))
        return Step(Taking(members, state.bad), need=Need(work))

    def _without(self, state: Asking, asked: bytes, reply: PadReply) -> Step[PadState]:
        """Send a second request without the members whose boxes do not open. The first was not recorded."""
        known = tuple(member for member in state.request.members if member in reply.bad)
        # Only once: a key holder that names members repeatedly would choose the set.
        if state.first or reply.pads or reply.bad != known:
            raise _refusal("Expected members of our request, ascending, once, without pads, got others.")
        left = len(state.request.members) - len(known)
        if left < self.least:
            return _closed(
                f"Expected at least {self.least} contributions, got {left} that open.", self._named(known)
            )
        request = state.request.without(known)
        again = Asking(state.inputs, request, first=asked, bad=known)
        return Step(again, out=(Outgoing((KEY_HOLDER,), request),))

    def provide(self, state: PadState, answer: Any) -> Step[PadState]:
        if not isinstance(state, Taking):
            return Step(state)
        survivors = self.agreement.roster.names(state.members)
        result = Opened(totals=answer, survivors=survivors, proven_cheaters=self._named(state.bad))
        return Step(Ended(), result=result)

    def deadline(self, state: PadState) -> Step[PadState]:
        """Go on with the received inputs, send the same request again, or end without a sum."""
        match state:
            case Adding():
                return self._collected(state)
            case Asking(again=again) if again:
                return Step(replace(state, again=again - 1), out=(Outgoing((KEY_HOLDER,), state.request),))
            case Asking(bad=bad):
                return _closed("Expected a reply of the key holder, got none.", self._named(bad), asked=True)
            case Taking():
                return _closed(
                    "Expected the pads to be subtracted in time, got a deadline first.", asked=True
                )
            case Ended():
                return Step(state)

    def _named(self, bad: tuple[int, ...]) -> dict[str, str]:
        return dict.fromkeys(self.agreement.roster.names(bad), NOT_OPENED)


def _closed(
    reason: str, proven_cheaters: Mapping[str, str] | None = None, *, asked: bool = False
) -> Step[PadState]:
    # After the request this set may be on the key holder's record, which then refuses every other set.
    return Step(
        Ended(),
        result=Unopened(reason=f"No sum: {reason}", final=asked, proven_cheaters=proven_cheaters or {}),
    )


def _refusal(reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(reason, sender=KEY_HOLDER, phase="pads")
