"""The server's machine of one encrypted sum: it adds ciphertexts and has the total opened under a pad."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from securefl.core.agreement import Agreement
from securefl.core.append_map import AppendMap
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import Commitment, Signature
from securefl.core.machine import Expects, Need, Outgoing, Step
from securefl.core.messages import OVERHEAD, REFUSED, OpenReply
from securefl.core.release import KEY_HOLDER, Delivered
from securefl.core.wire import Limit
from securefl.sums.encrypted.client import input_digest, signed_input
from securefl.sums.encrypted.messages import EncryptedInput, SumRequest
from securefl.sums.scheme import Opened, Unopened


class Arithmetic(Protocol):
    """The server's arithmetic under encryption (`scheme.ServerPart`)."""

    def add(self, name: str, total: Any, message: bytes, sender: str) -> Any:
        """The total (or None) with one more message.

        It checks the message before any native library reads it, and leaves `total` as it was.
        """
        ...

    def blind(self, totals: Mapping[str, Any], request: SumRequest) -> tuple[Any, SumRequest]:
        """The pads, and the recorded request with items in the order of the names.

        If a request of this agreement is on record already, it returns that one: after a restart the server
        sends the same request.
        """
        ...

    def take(self, blinded: Any, replies: tuple[bytes, ...]) -> Mapping[str, NDArray[np.int64]] | None:
        """The integers by name. None if a reply cannot be read, or a total is impossible."""
        ...


@dataclass(frozen=True)
class Blind:
    """A work order of the server: blind the totals. `request` has no items yet."""

    part: Arithmetic
    totals: Mapping[str, Any]
    request: SumRequest

    def run(self) -> tuple[Any, SumRequest]:
        return self.part.blind(self.totals, self.request)


@dataclass(frozen=True)
class Take:
    """A work order of the server: subtract the pads."""

    part: Arithmetic
    blinded: Any
    replies: tuple[bytes, ...]

    def run(self) -> Mapping[str, NDArray[np.int64]] | None:
        return self.part.take(self.blinded, self.replies)


@dataclass(frozen=True)
class Adding:
    """The totals so far by name, and each member's digest and signature."""

    totals: Mapping[str, Any]
    inputs: AppendMap[int, tuple[bytes, Signature]] = field(repr=False)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self.inputs))


@dataclass(frozen=True)
class Blinding:
    pass


@dataclass(frozen=True)
class Asking:
    """`again` is how many more times the server sends the same request if the reply is late."""

    blinded: Any
    request: SumRequest
    again: int = 2


@dataclass(frozen=True)
class Taking:
    members: tuple[int, ...]


@dataclass(frozen=True)
class Ended:
    pass


SumState = Adding | Blinding | Asking | Taking | Ended


@dataclass(frozen=True, kw_only=True)
class SumServer:
    """The server's machine of one encrypted sum.

    least: the least number of contributions in a total that is opened. message_bytes, reply_bytes: the
    largest size of one contribution, and of the reply.
    """

    agreement: Agreement
    least: int
    message_bytes: int
    reply_bytes: int
    part: Arithmetic

    def begin(self) -> Step[SumState]:
        return Step(Adding({}, AppendMap()))

    def expects(self, state: SumState) -> Expects:
        vectors = len(self.agreement.vectors)
        limits = {
            EncryptedInput: Limit(self.message_bytes + OVERHEAD, vectors),
            OpenReply: Limit(self.reply_bytes + OVERHEAD, vectors),
        }
        return Expects(self.agreement.header, limits)

    def receive(self, state: SumState, sender: str, message: Any) -> Step[SumState]:
        if isinstance(message, OpenReply):
            return self._replied(state, sender, message)
        number = self.agreement.roster.numbers.get(sender)
        if number is None:
            raise RemoteProtocolError(
                "Expected a client of the cohort, got another.", sender=sender, phase="contribution"
            )
        # Late and repeated inputs are ignored, not refused: honest clients and networks cause them too.
        if not isinstance(state, Adding) or number in state.inputs:
            return Step(state)
        state = self._added(state, number, sender, message)
        everybody = len(state.inputs) == len(self.agreement.roster.members)
        return self._collected(state) if everybody else Step(state)

    def _added(self, state: Adding, number: int, sender: str, said: EncryptedInput) -> Adding:
        came: tuple[Any, ...] = said.releases
        delivered: tuple[Delivered, ...] = came
        names = [vector.name for vector in self.agreement.vectors]
        if [(one.name, one.form, one.numbers.size) for one in delivered] != [
            (name, "encrypted", 0) for name in names
        ]:
            raise RemoteProtocolError(
                f"Expected an encrypted vector for each of {names}, got others.",
                sender=sender,
                phase="contribution",
            )
        digest = input_digest([one.sealed for one in delivered])
        try:
            self.agreement.check(number, said.signature, signed_input(self.agreement, number, digest))
        except CryptoError:
            raise RemoteProtocolError(
                "Expected a signature on these ciphertexts and this agreement, but it did not sign them.",
                sender=sender,
                phase="contribution",
            ) from None
        # After the signature check: an input that no member signed costs no arithmetic.
        totals = {
            one.name: self.part.add(one.name, state.totals.get(one.name), one.sealed, sender)
            for one in delivered
        }
        return Adding(totals, state.inputs.having(number, (digest, said.signature)))

    def _collected(self, state: Adding) -> Step[SumState]:
        if len(state.inputs) < self.least:
            return _closed(f"Expected at least {self.least} contributions, got {len(state.inputs)}.")
        request = SumRequest(
            items=(),
            task=self.agreement.task,
            members=state.members,
            inputs=tuple(Commitment(state.inputs[member][0]) for member in state.members),
            signatures=tuple(state.inputs[member][1] for member in state.members),
        )
        return Step(Blinding(), need=Need(Blind(self.part, state.totals, request)))

    def provide(self, state: SumState, answer: Any) -> Step[SumState]:
        match state:
            case Blinding():
                blinded, request = answer
                return Step(Asking(blinded, request), out=(Outgoing((KEY_HOLDER,), request),))
            case Taking() if answer is None:
                return _closed("Expected a sum of vectors within the bounds, got another total.", asked=True)
            case Taking(members=members):
                survivors = self.agreement.roster.names(members)
                return Step(Ended(), result=Opened(totals=answer, survivors=survivors))
        return Step(state)

    def _replied(self, state: SumState, sender: str, reply: OpenReply) -> Step[SumState]:
        if sender != KEY_HOLDER:
            raise RemoteProtocolError(
                f"Expected a reply of the key holder, got one of {sender}.", sender=sender, phase="opening"
            )
        if not isinstance(state, Asking):
            return Step(state)
        if len(reply.items) != len(state.request.items):
            raise RemoteProtocolError(
                f"Expected {len(state.request.items)} items, one a vector, got {len(reply.items)}.",
                sender=sender,
                phase="opening",
            )
        # One refusal is enough: a part of the totals is no answer to the query.
        if REFUSED in reply.items:
            return _closed(
                "Expected the key holder to open, got a refusal: it opened another total of this sum.",
                asked=True,
            )
        return Step(Taking(state.request.members), need=Need(Take(self.part, state.blinded, reply.items)))

    def deadline(self, state: SumState) -> Step[SumState]:
        """Go on with the received inputs, send the same request again, or end without a sum."""
        match state:
            case Adding():
                return self._collected(state)
            case Asking(again=again) if again:
                return Step(replace(state, again=again - 1), out=(Outgoing((KEY_HOLDER,), state.request),))
            case Ended():
                return Step(state)
            case _:
                return _closed("Expected a reply of the key holder, got none.", asked=True)


def _closed(reason: str, *, asked: bool = False) -> Step[SumState]:
    # After the request this set may be on the key holder's record, which then refuses every other set.
    return Step(Ended(), result=Unopened(reason=f"No sum: {reason}", final=asked))
