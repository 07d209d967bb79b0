"""The key holder of a two-server sum: it sends one sum of pads for each sum, for clients that signed.

It opens the boxes of a set that signed, and names the members whose boxes do not open. It records the set
before it answers. It answers the same request with the same bytes. Its record refuses every other request for
the sum, in any attempt and after a restart. The server can lie: it may subtract the pads from other vectors
than the signed ones. It learns nothing by that, since the pads of other clients are in no sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from securefl.core import agreement as core
from securefl.core.acts import RecordAct
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import SecretKey
from securefl.core.machine import Expects, Need, Outgoing, Step
from securefl.core.messages import OVERHEAD, REFUSED
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Limit
from securefl.sums.quorum import refused, require_quorum
from securefl.sums.two_server.agreement import Agreement, boxes_digest, request_digest, signed_input
from securefl.sums.two_server.messages import PadReply, PadRequest
from securefl.sums.two_server.pads import BOX_BYTES

_PHASE = "pads"
_MEMBER_BYTES = 128
"""An upper bound for a member's number, digest and signature, with their lengths."""

Seeds = Sequence[SecretKey]
"""The seeds of one member, one per vector."""


class Holding(Protocol):
    """The key holder's use of its secrets (`scheme.KeyHolderPart`)."""

    def open(self, agreed: Agreement, request: PadRequest) -> tuple[Seeds | None, ...]:
        """The seeds of each member. None for a member whose boxes do not open."""
        ...

    def pads(self, agreed: Agreement, asked: bytes, seeds: Sequence[Seeds]) -> bytes:
        """The sums of their pads, sealed to the server for this request. The bytes are the same each time."""
        ...


@dataclass(frozen=True)
class OpenBoxes:
    """A work order of the key holder: open all boxes of a request."""

    part: Holding
    agreement: Agreement
    request: PadRequest

    def run(self) -> tuple[Seeds | None, ...]:
        return self.part.open(self.agreement, self.request)


@dataclass(frozen=True)
class AddPads:
    """A work order of the key holder: add the pads of a recorded request."""

    part: Holding
    agreement: Agreement
    asked: bytes
    seeds: tuple[Seeds, ...] = field(repr=False)

    def run(self) -> bytes:
        return self.part.pads(self.agreement, self.asked, self.seeds)


@dataclass(frozen=True)
class Ready:
    """`request` is the request in work or answered. `seeds` are its seeds once its boxes are open.

    `named` is an earlier request, and the reply that named the members whose boxes do not open.
    """

    request: PadRequest | None = None
    seeds: tuple[Seeds, ...] = field(default=(), repr=False)
    recorded: bool = False
    reply: PadReply | None = None
    named: tuple[PadRequest, PadReply] | None = None


@dataclass(frozen=True, kw_only=True)
class PadKeyHolder:
    """The key holder's machine of one two-server sum.

    It sums the pads of each sum of a query once, for at least `least` members that signed one agreement,
    their boxes and their padded vectors. It never sees a vector.

    agreement: from its own plan and the pinned keys. The task is the one that the members signed.
    Results: "opened", "refused", "unused".
    """

    agreement: Agreement
    least: int
    part: Holding

    def begin(self) -> Step[Ready]:
        return Step(Ready())

    def expects(self, state: Ready) -> Expects:
        members, vectors = len(self.agreement.roster.members), len(self.agreement.vectors)
        most = members * ((BOX_BYTES + 4) * vectors + _MEMBER_BYTES) + OVERHEAD
        return Expects(self.agreement.header, {PadRequest: Limit(most, members * (vectors + 3))})

    def receive(self, state: Ready, sender: str, message: PadRequest) -> Step[Ready]:
        """Answer the server's request. Repeated requests get the same reply, also one that named members."""
        if sender != SERVER:
            raise RemoteProtocolError(
                f"Expected a request from the server, got one from {sender}.", sender=sender, phase=_PHASE
            )
        if state.named is not None and message == state.named[0]:
            return self._say(state, state.named[1])
        if state.request is not None and message != state.request:
            raise refused(
                "Expected the same request as before, got another: only one total of a sum is opened.", _PHASE
            )
        if state.reply is not None:
            return self._say(state, state.reply)
        if state.request is not None:
            return Step(state)
        # Exactly without the named members: a server could use one bad box to leave out any client.
        if state.named is not None and message != state.named[0].without(state.named[1].bad):
            raise refused("Expected the request without the members that were named, got another.", _PHASE)
        self._check(message)
        work = OpenBoxes(self.part, self._agreed(message), message)
        return Step(replace(state, request=message), need=Need(work))

    def _agreed(self, request: PadRequest) -> Agreement:
        """The agreement with the task of the request. If the members signed another task, signatures fail."""
        return replace(self.agreement, task=request.task)

    def _check(self, request: PadRequest) -> None:
        """Require enough distinct members of the roster, each of whom signed its vectors and its boxes."""
        members, vectors = request.members, len(self.agreement.vectors)
        if len(request.boxes) != vectors * len(members):
            raise refused(
                f"Expected boxes of {len(members)} members, {vectors} of each, got {len(request.boxes)}.",
                _PHASE,
            )

        def text(agreed: core.Agreement, place: int) -> bytes:
            boxes = boxes_digest([one.raw for one in request.of(place)])
            return signed_input(agreed, members[place], request.inputs[place].raw, boxes)

        require_quorum(self.agreement, request, text, self.least, phase=_PHASE)

    def provide(self, state: Ready, answer: Any) -> Step[Ready]:
        assert state.request is not None
        agreed = self._agreed(state.request)
        asked = request_digest(agreed, state.request)
        # In reverse order: first boxes are opened, then the set is recorded, and only then are pads added.
        if state.recorded:
            return self._reply(state, PadReply(request=asked, bad=(), pads=answer), "opened")
        if not state.seeds:
            return self._opened(state, asked, tuple(answer))
        if answer is not True:
            return self._reply(state, PadReply(request=asked, bad=(), pads=REFUSED), "refused")
        work = AddPads(self.part, agreed, asked, state.seeds)
        return Step(replace(state, seeds=(), recorded=True), need=Need(work))

    def _opened(self, state: Ready, asked: bytes, seeds: tuple[Seeds | None, ...]) -> Step[Ready]:
        """Name the members whose boxes do not open, before any record. If all open, record the set."""
        assert state.request is not None
        good = tuple(own for own in seeds if own is not None)
        if len(good) < len(seeds):
            members = zip(state.request.members, seeds, strict=True)
            bad = PadReply(request=asked, bad=tuple(m for m, own in members if own is None), pads=REFUSED)
            return self._say(Ready(named=(state.request, bad)), bad)
        order = RecordAct(
            client=KEY_HOLDER,
            header=self.agreement.header,
            questions=self.agreement.openings,
            act="open",
            digest=asked,
        )
        return Step(replace(state, seeds=good), need=Need(order))

    def _reply(self, state: Ready, reply: PadReply, result: str) -> Step[Ready]:
        return replace(self._say(replace(state, reply=reply), reply), result=result)

    @staticmethod
    def _say(state: Ready, reply: PadReply) -> Step[Ready]:
        return Step(state, out=(Outgoing((SERVER,), reply),))

    def deadline(self, state: Ready) -> Step[Ready]:
        return Step(state, result="unused")
