"""The key holder of one exchange: one request, one reply."""

from __future__ import annotations

from dataclasses import dataclass

from securefl.errors import RemoteProtocolError
from securefl.machine import Envelope, Expects, Need, Step
from securefl.messages import OpenReply, OpenRequest
from securefl.release import SERVER
from securefl.wire import Header


@dataclass(frozen=True)
class Open:
    """Slow work of the key holder: decrypt the constant coefficient, flood, reply."""

    items: tuple[bytes, ...]


@dataclass(frozen=True)
class Ready:
    busy: bool = False


@dataclass(frozen=True, kw_only=True)
class KeyHolder:
    """The key holder of one exchange: one request from the server, one reply."""

    header: Header
    most_bytes: int

    def begin(self) -> Step[Ready]:
        return Step(Ready())

    def expects(self, state: Ready) -> Expects:
        return Expects(self.header, {OpenRequest: self.most_bytes})

    def receive(self, state: Ready, sender: str, message: OpenRequest) -> Step[Ready]:
        if sender != SERVER:
            raise RemoteProtocolError("Only the server asks to open.", sender=sender, phase="opening")
        return Step(state) if state.busy else Step(Ready(busy=True), need=Need(Open(message.items)))

    def provide(self, state: Ready, answer: tuple[bytes, ...]) -> Step[Ready]:
        return Step(state, out=(Envelope((SERVER,), OpenReply(items=answer)),), result="opened")

    def deadline(self, state: Ready) -> Step[Ready]:
        return Step(state, result="unused")
