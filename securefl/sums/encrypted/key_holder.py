"""The key holder of encrypted sums: it opens one total per sum, for clients that signed one agreement.

The server can lie: it can add other ciphertexts than the signed ones, and the key holder cannot see that. The
key holder answers the same request with the same reply. Its record refuses every other request for the sum,
in any attempt and after a restart.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Protocol

from securefl.core.acts import RecordAct
from securefl.core.agreement import Agreement, fields, u32
from securefl.core.errors import RemoteProtocolError
from securefl.core.machine import Expects, Need, Outgoing, Step
from securefl.core.messages import REFUSED, OpenReply
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.core.wire import Header, Limit
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.he.parameters import STRONG
from securefl.storage.own_record import OwnRecord
from securefl.sums.encrypted.client import signed_input
from securefl.sums.encrypted.messages import SumRequest
from securefl.sums.quorum import refused, require_quorum

_PHASE = "opening"
MOST_INTEGERS = 2**28
"""tau: the most integers that one key opens over all its sums. The flooding is sized for it."""


class Opening(Protocol):
    """The key holder's use of its key (`scheme.KeyHolderPart`)."""

    def open(self, items: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """One reply per blinded total. The reply to an item that it refuses is empty."""
        ...


@dataclass(frozen=True)
class OpenTotals:
    """A work order of the key holder: decrypt the blinded totals."""

    part: Opening
    items: tuple[bytes, ...]

    def run(self) -> tuple[bytes, ...]:
        return self.part.open(self.items)


@dataclass(frozen=True)
class Ready:
    """`request` is the request in work or answered. `recorded` says whether it is on record."""

    request: SumRequest | None = None
    recorded: bool = False
    reply: OpenReply | None = None


@dataclass(frozen=True, kw_only=True)
class SumKeyHolder:
    """The key holder's machine of one encrypted sum.

    It opens one total for each sum of a query, for signatures of at least `least` members over one agreement.
    It cannot verify that the total contains exactly their inputs.

    agreement: from its own plan and the pinned keys. The task is the one that the members signed.
    """

    agreement: Agreement
    least: int
    most_bytes: int
    part: Opening

    def begin(self) -> Step[Ready]:
        return Step(Ready())

    def expects(self, state: Ready) -> Expects:
        members, items = len(self.agreement.roster.members), len(self.agreement.vectors)
        return Expects(self.agreement.header, {SumRequest: Limit(self.most_bytes, items + 3 * members)})

    def receive(self, state: Ready, sender: str, message: SumRequest) -> Step[Ready]:
        if sender != SERVER:
            raise RemoteProtocolError(
                f"Expected a request from the server, got one from {sender}.", sender=sender, phase=_PHASE
            )
        if state.request is not None and message != state.request:
            raise refused(
                "Expected the same request as before, got another: only one total of a sum is opened.", _PHASE
            )
        if state.reply is not None:
            return Step(state, out=(Outgoing((SERVER,), state.reply),))
        if state.request is not None:
            return Step(state)
        # Before the record: a refused request must not use up the sum's one opening.
        self._check(message)
        order = RecordAct(
            client=KEY_HOLDER,
            header=self.agreement.header,
            questions=self.agreement.openings,
            act="open",
            digest=self._digest(message),
        )
        return Step(Ready(request=message), need=Need(order))

    def _check(self, request: SumRequest) -> None:
        """Require enough distinct members, each of whom signed this agreement and its ciphertexts."""

        def text(agreed: Agreement, place: int) -> bytes:
            return signed_input(agreed, request.members[place], request.inputs[place].raw)

        require_quorum(self.agreement, request, text, self.least, phase=_PHASE)

    def _digest(self, request: SumRequest) -> bytes:
        inputs = (one.raw for one in request.inputs)
        agreed = replace(self.agreement, task=request.task)
        parts = (agreed.context, u32(*request.members), fields(*inputs), fields(*request.items))
        return hashlib.sha256(fields(*parts)).digest()

    def provide(self, state: Ready, answer: Any) -> Step[Ready]:
        assert state.request is not None
        if state.recorded:
            return self._reply(state, tuple(answer))
        if answer is not True:
            return self._reply(state, (REFUSED,) * len(state.request.items))
        return Step(replace(state, recorded=True), need=Need(OpenTotals(self.part, state.request.items)))

    @staticmethod
    def _reply(state: Ready, items: tuple[bytes, ...]) -> Step[Ready]:
        reply = OpenReply(items=items)
        return Step(replace(state, reply=reply), out=(Outgoing((SERVER,), reply),), result="opened")

    def deadline(self, state: Ready) -> Step[Ready]:
        return Step(state, result="unused")


# Its keys ---------------------------------------------------------------------------------------


class SumKeys:
    """The key holder's key pair of the current sums. It is replaced before its openings run out.

    Each key opens few enough integers for its flooding, and no key reveals anything of another. The record
    has each key, with the number of integers it had opened before, for every place of the current round.
    """

    def __init__(self, record: OwnRecord) -> None:
        self._record = record
        self.pair = KeyPair.generate(STRONG)
        self.openings = Openings()
        self._before = 0

    @property
    def opened(self) -> int:
        """The number of integers that the key may have opened so far, at most."""
        return self._before + self.openings.opened

    def enter(self, header: Header, integers: int) -> None:
        """Load the key on record for a sum of this many integers at this place, or record the current one."""
        # Before the sum begins: beyond the count, flooding would be too small.
        if self.opened + integers > MOST_INTEGERS:
            self.pair, self.openings, self._before = KeyPair.generate(STRONG), Openings(), 0
        # The key is stored once in a round, and its name at every place: a server may call to many places.
        self._record.said(header, _name(self.pair.public.session), self.pair.stored)
        own = self.opened.to_bytes(8, "little") + self.pair.public.session
        stored = self._record.said(header, f"sum {header.stage} {header.attempt}", lambda: own)
        if stored != own:  # from before a restart: the sum at this place may have been opened, so it counts
            self.pair, self.openings = self._restored(header, stored[8:]), Openings()
            self._before = int.from_bytes(stored[:8], "little") + integers

    def _restored(self, header: Header, session: bytes) -> KeyPair:
        return KeyPair.restored(self._record.said(header, _name(session), self.pair.stored), STRONG)


def _name(session: bytes) -> str:
    return f"key {session.hex()}"
