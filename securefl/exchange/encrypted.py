"""Sums under encryption as three machines: clients encrypt, the server adds, the key holder opens the total.

client      --EncryptedInput-->  server         (encrypted releases, and a signature over the agreement and
them) server      --SumRequest----->   key holder     (blinded totals, and the signatures of whose inputs are
in them) key holder  --OpenReply------>   server

A client begins by itself, with the order it had before. Twice: the first counts. Late or never: the deadline
goes on without it, and below the least number of contributions nothing is opened. The key holder opens one
total of a question, whatever attempt asks for it, and the same request gets the same reply.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefl.acts import entering
from securefl.agreement import Agreement, Identity, fields, tagged, u32
from securefl.errors import CryptoError, RemoteProtocolError
from securefl.exchange.sizes import OVERHEAD
from securefl.hiding import Concealed, Hide
from securefl.keys import Commitment, SecretKey, Signature
from securefl.machine import Envelope, Expects, Need, Step
from securefl.messages import REFUSED, EncryptedInput, OpenReply, SumRequest
from securefl.release import KEY_HOLDER, SERVER, Delivered, Release
from securefl.wire import Limit


@dataclass(frozen=True)
class Blind:
    """Slow work of the server: blind the totals, and put the request on record before it is sent.

    The answer: what stays here, and the request, with items in the order of the names. Where one stands on
    record of this agreement already, it is that one: after a restart the server asks for the same again.

    Attributes:
        agreement: whose context names the request.
        request: with no items yet.
    """

    agreement: Agreement
    totals: Mapping[str, Any]
    request: SumRequest


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
    """Nothing was opened, and why. `asked`: the key holder was; it opens nothing else of the question."""

    reason: str
    asked: bool


def signed_input(agreement: Agreement, member: int, digest: bytes) -> bytes:
    """What a client signs with its ciphertexts, whose digest this is."""
    return tagged(b"encrypted", agreement.context, fields(u32(member), digest))


def input_digest(sealed: Sequence[bytes]) -> bytes:
    """SHA-256 over a client's ciphertexts, one per vector."""
    return hashlib.sha256(fields(*sealed)).digest()


# The client -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encrypting:
    entered: bool = False
    sent: bool = False


@dataclass(frozen=True, kw_only=True)
class SumClient:
    """A client of one encrypted sum.

    signers: the fewest clients that the key holder opens a total for. encrypt: by the name of each vector.
    """

    identity: Identity
    agreement: Agreement
    signers: int
    encrypt: Mapping[str, Callable[[NDArray[np.int64]], bytes]]

    def begin(self) -> Step[Encrypting]:
        return Step(Encrypting(), need=Need(entering(self.identity.name, self.agreement, self.signers)))

    def expects(self, state: Encrypting) -> Expects:
        return Expects(self.agreement.header, {})

    def receive(self, state: Encrypting, sender: str, message: Any) -> Step[Encrypting]:
        raise RemoteProtocolError("Nothing is sent to a client here.", sender=sender, phase="encrypting")

    def provide(self, state: Encrypting, answer: SecretKey | tuple[Release, ...] | None) -> Step[Encrypting]:
        done = replace(state, entered=True, sent=True)
        if state.sent:
            return Step(state)
        if answer is None:
            return Step(done, result="abstained" if state.entered else "refused")
        if isinstance(answer, SecretKey):
            conceal = {v.name: partial(_encrypted, self.encrypt[v.name]) for v in self.agreement.vectors}
            order = Hide(client=self.identity.name, header=self.agreement.header, conceal=conceal)
            return Step(replace(state, entered=True), need=Need(order))
        member = self.agreement.roster.numbers[self.identity.name]
        text = signed_input(self.agreement, member, input_digest([release._sealed for release in answer]))
        said = EncryptedInput(releases=answer, signature=self.identity.signing.sign(text))
        return Step(done, out=(Envelope((SERVER,), said),), result="answered")

    def deadline(self, state: Encrypting) -> Step[Encrypting]:
        return Step(state) if state.sent else Step(replace(state, sent=True), result="missed")


def _encrypted(encrypt: Callable[[NDArray[np.int64]], bytes], integers: NDArray[Any]) -> Concealed:
    return Concealed("encrypted", sealed=encrypt(integers))


# The server -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Adding:
    """The totals so far by name, and of whose contributions: digest and signature by member."""

    totals: Mapping[str, Any]
    inputs: Mapping[int, tuple[bytes, Signature]] = field(repr=False)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self.inputs))


@dataclass(frozen=True)
class Blinding:
    pass


@dataclass(frozen=True)
class Asking:
    """`again` is how often the request goes out once more when the reply is late: it is the same request."""

    blinded: Any
    request: SumRequest
    again: int = 2


@dataclass(frozen=True)
class Taking:
    members: tuple[int, ...]


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

    agreement: Agreement
    least: int
    message_bytes: int
    reply_bytes: int
    add: Callable[[str, Any, bytes, str], Any]

    def begin(self) -> Step[SumState]:
        return Step(Adding({}, {}))

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
            raise RemoteProtocolError("It is not in the cohort.", sender=sender, phase="contribution")
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
                f"Expected an encrypted vector for each of {names}.", sender=sender, phase="contribution"
            )
        digest = input_digest([one.sealed for one in delivered])
        try:
            self.agreement.check(number, said.signature, signed_input(self.agreement, number, digest))
        except CryptoError:
            raise RemoteProtocolError(
                "It did not sign these ciphertexts under this agreement.", sender=sender, phase="contribution"
            ) from None
        totals = {
            one.name: self.add(one.name, state.totals.get(one.name), one.sealed, sender) for one in delivered
        }
        return Adding(totals, {**state.inputs, number: (digest, said.signature)})

    def _collected(self, state: Adding) -> Step[SumState]:
        if len(state.inputs) < self.least:
            return _closed(f"Expected at least {self.least} contributions, {len(state.inputs)} came.")
        request = SumRequest(
            items=(),
            task=self.agreement.task,
            members=state.members,
            inputs=tuple(Commitment(state.inputs[member][0]) for member in state.members),
            signatures=tuple(state.inputs[member][1] for member in state.members),
        )
        return Step(Blinding(), need=Need(Blind(self.agreement, state.totals, request)))

    def provide(self, state: SumState, answer: Any) -> Step[SumState]:
        match state:
            case Blinding():
                blinded, request = answer
                return Step(Asking(blinded, request), out=(Envelope((KEY_HOLDER,), request),))
            case Taking() if answer is None:
                return _closed("The opened total is no sum of vectors within the bounds.", asked=True)
            case Taking(members=members):
                survivors = self.agreement.roster.names(members)
                return Step(Closed(), result=Opened(answer, survivors))
        return Step(state)

    def _replied(self, state: SumState, sender: str, reply: OpenReply) -> Step[SumState]:
        if sender != KEY_HOLDER:
            raise RemoteProtocolError("Only the key holder opens.", sender=sender, phase="opening")
        if not isinstance(state, Asking):
            return Step(state)
        if len(reply.items) != len(state.request.items):
            raise RemoteProtocolError("Expected one item a vector.", sender=sender, phase="opening")
        if REFUSED in reply.items:
            return _closed(
                "The key holder refused: it has opened another total of this question.", asked=True
            )
        return Step(Taking(state.request.members), need=Need(Take(state.blinded, reply.items)))

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
                return _closed("The key holder did not answer.", asked=True)


def _closed(reason: str, *, asked: bool = False) -> Step[SumState]:
    return Step(Closed(), result=Unopened(reason, asked))
