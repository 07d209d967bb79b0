"""Sums under encryption as three machines: clients encrypt, the server adds, the key holder opens the total.

client      --Contribution-->  server         (encrypted releases alone, one for each vector)
server      --OpenRequest-->   key holder     (blinded totals)
key holder  --OpenReply-->     server

A client begins by itself, with the order it had before. Twice: the first counts. Late or never: the
deadline goes on without it, and below the least number of contributions nothing is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.errors import RemoteProtocolError
from securefl.exchange.sizes import OVERHEAD
from securefl.machine import Envelope, Expects, Need, Step
from securefl.messages import Contribution, OpenReply, OpenRequest
from securefl.release import KEY_HOLDER, SERVER, Delivered, Release
from securefl.wire import Header


@dataclass(frozen=True, kw_only=True)
class Encrypt:
    """Slow work of a client: compute, charge and encrypt one release for each name; None abstains."""

    client: str
    header: Header
    names: tuple[str, ...]


@dataclass(frozen=True)
class Blind:
    """Slow work of the server: blind the totals. The answer: what stays here, and the request's items."""

    totals: Mapping[str, Any]


@dataclass(frozen=True)
class Take:
    """Slow work of the server: take the blinding off. The answer: integers by name, or None."""

    blinded: Any
    replies: tuple[bytes, ...]


@dataclass(frozen=True)
class Opened:
    """The exact sums over the survivors, int64."""

    totals: Mapping[str, NDArray[np.int64]]
    survivors: tuple[str, ...]


@dataclass(frozen=True)
class Unopened:
    """Nothing was opened, and why."""

    reason: str


@dataclass(frozen=True)
class Encrypting:
    sent: bool = False


@dataclass(frozen=True, kw_only=True)
class SumClient:
    """A client of one encrypted sum."""

    name: str
    header: Header
    names: tuple[str, ...]

    def begin(self) -> Step[Encrypting]:
        return Step(Encrypting(), need=Need(Encrypt(client=self.name, header=self.header, names=self.names)))

    def expects(self, state: Encrypting) -> Expects:
        return Expects(self.header, {})

    def receive(self, state: Encrypting, sender: str, message: Any) -> Step[Encrypting]:
        raise RemoteProtocolError("Nothing is sent to a client here.", sender=sender, phase="encrypting")

    def provide(self, state: Encrypting, answer: tuple[Release, ...] | None) -> Step[Encrypting]:
        if answer is None:
            return Step(Encrypting(sent=True), result="abstained")
        out = (Envelope((SERVER,), Contribution(releases=answer)),)
        return Step(Encrypting(sent=True), out=out, result="answered")

    def deadline(self, state: Encrypting) -> Step[Encrypting]:
        return Step(state) if state.sent else Step(Encrypting(sent=True), result="missed")


@dataclass(frozen=True)
class Adding:
    """The totals so far by name, and whose contributions are in them."""

    totals: Mapping[str, Any]
    senders: tuple[str, ...]


@dataclass(frozen=True)
class Blinding:
    added: Adding


@dataclass(frozen=True)
class Asking:
    """`again` is how often the request goes out once more when the reply is late: it is the same request."""

    added: Adding
    blinded: Any
    request: OpenRequest
    again: int = 2


@dataclass(frozen=True)
class Taking:
    added: Adding


@dataclass(frozen=True)
class Closed:
    pass


SumState = Adding | Blinding | Asking | Taking | Closed


@dataclass(frozen=True, kw_only=True)
class SumServer:
    """The server of one encrypted sum.

    add: the total with one message more, from (name, total or None, message, sender); checks the message
    before any native library sees it, and leaves `total` as it was. least: contributions, below which nothing
    is opened. message_bytes, reply_bytes: the most of one contribution, and of the reply.
    """

    header: Header
    cohort: tuple[str, ...]
    names: tuple[str, ...]
    least: int
    message_bytes: int
    reply_bytes: int
    add: Callable[[str, Any, bytes, str], Any]

    def begin(self) -> Step[SumState]:
        return Step(Adding({}, ()))

    def expects(self, state: SumState) -> Expects:
        limits = {Contribution: self.message_bytes + OVERHEAD, OpenReply: self.reply_bytes + OVERHEAD}
        return Expects(self.header, limits)

    def receive(self, state: SumState, sender: str, message: Any) -> Step[SumState]:
        if isinstance(message, OpenReply):
            return self._replied(state, sender, message)
        if sender not in self.cohort:
            raise RemoteProtocolError("It is not in the cohort.", sender=sender, phase="contribution")
        if not isinstance(state, Adding) or sender in state.senders:
            return Step(state)
        came: tuple[Any, ...] = message.releases
        state = Adding(self._added(state, sender, came), (*state.senders, sender))
        return self._collected(state) if len(state.senders) == len(self.cohort) else Step(state)

    def _added(self, state: Adding, sender: str, came: tuple[Delivered, ...]) -> dict[str, Any]:
        wanted = [(name, "encrypted", 0) for name in self.names]
        if [(one.name, one.form, one.numbers.size) for one in came] != wanted:
            raise RemoteProtocolError(
                f"Expected an encrypted vector for each of {self.names}.", sender=sender, phase="contribution"
            )
        return {one.name: self.add(one.name, state.totals.get(one.name), one.sealed, sender) for one in came}

    def _collected(self, state: Adding) -> Step[SumState]:
        if len(state.senders) < self.least:
            return _closed(f"Expected at least {self.least} contributions, {len(state.senders)} came.")
        return Step(Blinding(state), need=Need(Blind(state.totals)))

    def provide(self, state: SumState, answer: Any) -> Step[SumState]:
        match state:
            case Blinding():
                blinded, items = answer
                request = OpenRequest(items=items)
                out = (Envelope((KEY_HOLDER,), request),)
                return Step(Asking(state.added, blinded, request), out=out)
            case Taking() if answer is None:
                return _closed("The opened total is no sum of vectors within the bounds.")
            case Taking():
                return Step(Closed(), result=Opened(answer, state.added.senders))
        return Step(state)

    def _replied(self, state: SumState, sender: str, reply: OpenReply) -> Step[SumState]:
        if sender != KEY_HOLDER:
            raise RemoteProtocolError("Only the key holder opens.", sender=sender, phase="opening")
        if not isinstance(state, Asking):
            return Step(state)
        if len(reply.items) != len(state.request.items):
            raise RemoteProtocolError("Expected one item a vector.", sender=sender, phase="opening")
        return Step(Taking(state.added), need=Need(Take(state.blinded, reply.items)))

    def deadline(self, state: SumState) -> Step[SumState]:
        """Go on with what came; ask the key holder again, which costs nothing; end without a sum."""
        match state:
            case Adding():
                return self._collected(state)
            case Asking(again=again) if again:
                return Step(replace(state, again=again - 1), out=(Envelope((KEY_HOLDER,), state.request),))
            case Closed():
                return Step(state)
            case _:
                return _closed("The key holder did not answer.")


def _closed(reason: str) -> Step[SumState]:
    return Step(Closed(), result=Unopened(reason))
