"""The messages between a server, its parties on other machines, and the relays that carry them.

    server  --Enter------->  party       a session: plan, roster and nonce, signed by the server
            <--Entered-----              the party's visit, and the number of the next turn
    server  --SignedTurn-->  party       one wave: a `Turn`, signed for one party, visit and number
            <--TurnReply---
    party   --Compute----->  relay       train or evaluate; the reply is on the same connection
            <--Computed----
    anyone  --Refused----->              the constant reply to a request that is refused or fails

All are envelopes: messages in the coding of `core.wire`, at one constant place. What clients, server and key
holder say to each other travels inside as bytes, and has its own kinds, sessions and signatures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.plan import Plan
from securefl.core.agreement import Identity, tagged
from securefl.core.agreement import fields as lengthened
from securefl.core.errors import RemoteProtocolError
from securefl.core.signing import SIGNATURE_BYTES
from securefl.core.wire import Header, Limit, decode, encode, message
from securefl.deployment.roster import PinnedRoster

VISIT_BYTES: Final = 16
_PLACE: Final = Header(session=bytes(32), round=0, attempt=0, stage=0)
"""The place of every envelope. Sessions and rounds stand in the content, where they are signed."""
_DIGEST: Final = 32
_LONG: Final = 2**32
_LAST: Final = 2**62
"""No number of a turn is larger. A relay that lies about one cannot make the server run out of them."""
_MOST_PACKETS: Final = 2**20
_MOST_METRICS: Final = 2**10
T = TypeVar("T")
U = TypeVar("U")


# Entering ---------------------------------------------------------------------------------------------


@message("enter", sender="envelope")
@dataclass(frozen=True, kw_only=True)
class Enter:
    """The server's request that parties enter a session.

    A party trusts none of it. It compares the plan with its own copy field by field and the roster with its
    pinned one, and computes the session itself. Only the nonce comes from the request, and the party takes it
    only if the pinned server signed the request.

    Attributes:
        plan: the server's plan, as `Plan.text`.
        study: the server's name of the study, for people.
        work: digest of the parties' computation, such as a study's text with arm, seed and start, 32 bytes.
        roster: digest of the server's roster, 32 bytes.
        nonce: 32 bytes that no session had before.
        signature: of the server over the others.
    """

    plan: str
    study: str
    work: bytes
    roster: bytes
    nonce: bytes
    signature: bytes = field(repr=False)

    @classmethod
    def of(
        cls, plan: Plan, study: str, work: bytes, pinned: PinnedRoster, nonce: bytes, server: Identity
    ) -> Enter:
        """The request, signed with the server's lasting key."""
        unsigned = cls(
            plan=plan.text(), study=study, work=work, roster=pinned.digest, nonce=nonce, signature=b""
        )
        return replace(unsigned, signature=server.signing.sign(unsigned.text()).raw)

    def text(self) -> bytes:
        """The bytes that are signed."""
        parts = (self.plan.encode(), self.study.encode(), self.work, self.roster, self.nonce)
        return tagged(b"enter", b"", lengthened(*parts))

    def table(self, *, sender: str) -> Mapping[str, Any]:
        """The fields of the plan. Raises RemoteProtocolError if the text is no table."""
        try:
            found = json.loads(self.plan)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise RemoteProtocolError(
                f"Expected a plan as a table in JSON, got {len(self.plan)} characters that are none. Run "
                "one release "
                "of securefl at all parties.",
                sender=sender,
            )
        return found

    def fits(self) -> bool:
        sizes = tuple(map(len, (self.work, self.roster, self.nonce, self.signature)))
        return sizes == (_DIGEST, _DIGEST, _DIGEST, SIGNATURE_BYTES)


@message("entered", sender="envelope")
@dataclass(frozen=True, kw_only=True)
class Entered:
    """The party's reply after it has entered.

    Attributes:
        visit: 16 bytes that the party drew as it entered. A restarted party has another visit.
        number: of the next turn that the party takes in this visit.
    """

    visit: bytes
    number: int

    def fits(self) -> bool:
        return len(self.visit) == VISIT_BYTES and 0 <= self.number <= _LAST


# A wave -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parcel:
    """A message inside an envelope, and the name of its sender in a turn, of its receiver in a reply."""

    name: str
    data: bytes = field(repr=False)


@message("turn", sender="envelope", version=2)
@dataclass(frozen=True, kw_only=True)
class Turn:
    """The server's request to a party in one wave. It travels in a `SignedTurn`.

    Attributes:
        call: the call to a new place, handled first; empty if the party stays at its place.
        packets: the messages to this party, in the order of delivery.
        deadline: 1 if the current phase has ended, so that no more messages of it come; else 0.
    """

    call: bytes = field(default=b"", repr=False)
    packets: tuple[Parcel, ...] = ()
    deadline: int = 0

    def fits(self) -> bool:
        return self.deadline in (0, 1)


@message("signed-turn", sender="envelope")
@dataclass(frozen=True, kw_only=True)
class SignedTurn:
    """A turn that the server of a session signed for one party.

    The signature covers session, party, visit, number and the digest of the turn. So a turn has an effect at
    one party, in one visit, at most once.

    Attributes:
        visit: the party's, from its `Entered`.
        number: of the turn in this visit. Numbers go up.
        signature: of the server.
        turn: the encoded `Turn`.
    """

    visit: bytes
    number: int
    signature: bytes = field(repr=False)
    turn: bytes = field(repr=False)

    @classmethod
    def of(
        cls, turn: Turn, *, session: bytes, party: str, visit: bytes, number: int, server: Identity
    ) -> SignedTurn:
        """The turn, signed with the server's lasting key."""
        unsigned = cls(visit=visit, number=number, signature=b"", turn=encode_envelope(turn))
        return replace(unsigned, signature=server.signing.sign(unsigned.text(session, party)).raw)

    def text(self, session: bytes, party: str) -> bytes:
        """The bytes that are signed."""
        number = self.number.to_bytes(8, "little")
        parts = (party.encode(), self.visit, number, hashlib.sha256(self.turn).digest())
        return tagged(b"turn", session, lengthened(*parts))

    def fits(self) -> bool:
        sizes = (len(self.visit), len(self.signature))
        return sizes == (VISIT_BYTES, SIGNATURE_BYTES) and self.number >= 0


@message("turn-reply", sender="envelope", version=2)
@dataclass(frozen=True, kw_only=True)
class TurnReply:
    """The party's reply: its own key or nothing, and its messages, each for one receiver."""

    key: bytes = field(default=b"", repr=False)
    packets: tuple[Parcel, ...] = ()

    def fits(self) -> bool:
        return True


# Computing beside a party -----------------------------------------------------------------------------


@message("compute", sender="envelope")
@dataclass(frozen=True, kw_only=True)
class Compute:
    """A party's order to the relay beside it: train or evaluate.

    Attributes:
        kind: "train" from the broadcast, or "evaluate" it.
        round: of the session, from 1.
        metrics: names of the metrics to return.
        task: the server's text on the broadcast's layout and on training, the same for the whole cohort.
        broadcast: float32 (d,).
    """

    kind: str
    round: int
    metrics: tuple[str, ...]
    task: bytes = field(repr=False)
    broadcast: NDArray[np.float32] = field(repr=False)

    def fits(self) -> bool:
        return self.kind in ("train", "evaluate") and self.broadcast.ndim == 1


@message("computed", sender="envelope")
@dataclass(frozen=True, kw_only=True)
class Computed:
    """The result: trained values float64 (d,), or none after an evaluation; metrics float64 (m,)."""

    values: NDArray[np.float64] = field(repr=False)
    metrics: NDArray[np.float64] = field(repr=False)
    examples: float = field(repr=False)

    def fits(self) -> bool:
        return self.values.ndim == 1 and self.metrics.ndim == 1


@message("refused", sender="envelope")
@dataclass(frozen=True, kw_only=True)
class Refused:
    """The reply to every request that is refused or fails. It has no field: a reason could reveal records."""

    def fits(self) -> bool:
        return True


# The envelope -----------------------------------------------------------------------------------------

Envelope = Enter | Entered | Turn | SignedTurn | TurnReply | Compute | Computed | Refused
_LIMITS: Final[Mapping[type[Any], Limit]] = {
    Enter: Limit(2**18, 0),
    Entered: Limit(2**8, 0),
    Turn: Limit(_LONG, _MOST_PACKETS),
    SignedTurn: Limit(_LONG, 0),
    TurnReply: Limit(_LONG, _MOST_PACKETS),
    Compute: Limit(_LONG, _MOST_METRICS),
    Computed: Limit(_LONG, 0),
    Refused: Limit(2**8, 0),
}


def encode_envelope(body: Envelope) -> bytes:
    """The bytes of an envelope. Raises LocalProtocolError for a field that the coding cannot hold."""
    return encode(_PLACE, body)


@overload
def decode_envelope(data: bytes, kind: type[T], /, *, sender: str) -> T: ...
@overload
def decode_envelope(data: bytes, kind: type[T], other: type[U], /, *, sender: str) -> T | U: ...
def decode_envelope(data: bytes, /, *kinds: type[Any], sender: str) -> Any:
    """Decode an envelope of one of these kinds. Raises RemoteProtocolError for any other bytes.

    sender: the name of the peer in the error.
    """
    if data == REFUSED and Refused not in kinds:
        raise RemoteProtocolError("It refused, and tells the reason to its owner alone.", sender=sender)
    found = decode(data, _PLACE, {kind: _LIMITS[kind] for kind in kinds}, sender)
    if not found.fits():
        kind = type(found).__name__
        raise RemoteProtocolError(
            f"Expected a well-formed {kind}, got fields that do not fit.", sender=sender
        )
    return found


REFUSED: Final = encode_envelope(Refused())
"""The bytes of every refusal."""
