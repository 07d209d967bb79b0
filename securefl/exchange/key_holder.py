"""The key holder of one exchange: one request, one reply, however often the request comes."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.errors import RemoteProtocolError
from securefl.machine import Envelope, Expects, Need, Step
from securefl.messages import OpenReply, OpenRequest
from securefl.release import SERVER
from securefl.wire import Header, Limit


@dataclass(frozen=True)
class Open:
    """Slow work of the key holder: decrypt the constant coefficient, flood, reply."""

    items: tuple[bytes, ...]


@dataclass(frozen=True)
class Ready:
    busy: bool = False
    reply: OpenReply | None = None


@dataclass(frozen=True, kw_only=True)
class KeyHolder:
    """The key holder of one exchange: one request from the server, one reply, sent again when asked again."""

    header: Header
    most: Limit

    def begin(self) -> Step[Ready]:
        return Step(Ready())

    def expects(self, state: Ready) -> Expects:
        return Expects(self.header, {OpenRequest: self.most})

    def receive(self, state: Ready, sender: str, message: OpenRequest) -> Step[Ready]:
        if sender != SERVER:
            raise RemoteProtocolError("Only the server asks to open.", sender=sender, phase="opening")
        if state.reply is not None:
            return Step(state, out=(Envelope((SERVER,), state.reply),))
        return Step(state) if state.busy else Step(Ready(busy=True), need=Need(Open(message.items)))

    def provide(self, state: Ready, answer: tuple[bytes, ...]) -> Step[Ready]:
        reply = OpenReply(items=answer)
        return Step(Ready(busy=True, reply=reply), out=(Envelope((SERVER,), reply),), result="opened")

    def deadline(self, state: Ready) -> Step[Ready]:
        return Step(state, result="unused")
