"""The key holder of one exchange of scores: one request a turn, and one reply to it.

Who could lie: the server can ask for openings of its own making; what they tell, and what limits them, says
`evaluator`. Twice: the same request again gets the same reply, another one at its turn is refused. Early: so
is a turn before its predecessor is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from securefl.errors import RemoteProtocolError
from securefl.machine import Envelope, Expects, Need, Step
from securefl.messages import REFUSED, OpenReply, OpenRequest
from securefl.release import SERVER
from securefl.wire import Header, Limit


class Opens(Protocol):
    """What the key holder does with its key."""

    def open(self, turn: int, items: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """One reply per item; an item that it refuses is `messages.REFUSED`."""
        ...


def opened_by(
    open_: Callable[[bytes], bytes], items: tuple[bytes, ...], tell: Callable[[str, str], None]
) -> tuple[bytes, ...]:
    """What each item opens to, or `REFUSED`; `tell` is told why."""
    replies = [REFUSED] * len(items)
    for i, item in enumerate(items):
        try:
            replies[i] = open_(item)
        except RemoteProtocolError as error:
            tell(error.sender, str(error))
    return tuple(replies)


@dataclass(frozen=True)
class OpenItems:
    """Slow work of the key holder: open the items of one turn."""

    part: Opens
    turn: int
    items: tuple[bytes, ...]

    def run(self) -> tuple[bytes, ...]:
        return self.part.open(self.turn, self.items)


@dataclass(frozen=True)
class Ready:
    """The requests that came, one a turn, and their replies; the last request may be at work."""

    requests: tuple[OpenRequest, ...] = ()
    replies: tuple[OpenReply, ...] = ()


@dataclass(frozen=True, kw_only=True)
class KeyHolder:
    """The key holder of one exchange, in so many turns. most: of one request."""

    header: Header
    most: Limit
    turns: int
    part: Opens

    def begin(self) -> Step[Ready]:
        return Step(Ready())

    def expects(self, state: Ready) -> Expects:
        return Expects(self.header, {OpenRequest: self.most})

    def receive(self, state: Ready, sender: str, message: OpenRequest) -> Step[Ready]:
        if sender != SERVER:
            raise RemoteProtocolError("Only the server asks to open.", sender=sender, phase="opening")
        turn, next_turn = message.turn, len(state.requests)
        if 0 <= turn < next_turn:
            return self._again(state, message)
        if turn != next_turn or turn >= self.turns or len(state.replies) < next_turn:
            raise RemoteProtocolError(
                f"Expected turn {len(state.replies)} of {self.turns}, got turn {turn}.",
                sender=sender,
                phase="opening",
            )
        order = OpenItems(self.part, turn, message.items)
        return Step(replace(state, requests=(*state.requests, message)), need=Need(order))

    @staticmethod
    def _again(state: Ready, message: OpenRequest) -> Step[Ready]:
        if message != state.requests[message.turn]:
            raise RemoteProtocolError(
                f"Another request came at turn {message.turn} before; one of a turn is opened.",
                sender=SERVER,
                phase="opening",
            )
        if message.turn == len(state.replies):  # still at work
            return Step(state)
        return Step(state, out=(Envelope((SERVER,), state.replies[message.turn]),))

    def provide(self, state: Ready, answer: tuple[bytes, ...]) -> Step[Ready]:
        reply = OpenReply(turn=len(state.replies), items=tuple(answer))
        done = replace(state, replies=(*state.replies, reply))
        return Step(done, out=(Envelope((SERVER,), reply),), result="opened")

    def deadline(self, state: Ready) -> Step[Ready]:
        return Step(state, result="unused")
