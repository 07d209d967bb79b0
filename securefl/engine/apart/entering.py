"""The first request of a session: the server's plan, the roster it goes by, and a fresh nonce.

A party believes none of it. It compares the plan with its own copy field by field and the roster with the one
that it pinned, and works the session out by itself. What the request decides is the nonce alone, and only
under the signature of the server that is pinned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from securefl.algorithm.plan import Plan
from securefl.core.agreement import Identity, tagged
from securefl.core.agreement import fields as lengthened
from securefl.core.errors import RemoteProtocolError
from securefl.core.keys import PublicKey, Signature
from securefl.core.signing import SIGNATURE_BYTES, verify
from securefl.engine.apart.frames import is_of, other, packed, parts_of
from securefl.engine.apart.remote_transport import SendAndReceive
from securefl.engine.apart.roster import Pinned

_ENTER, _ENTERED = b"E", b"A"
_LARGEST = 2**16
"""Of a plan's text, and of a study's name, in bytes."""
ENTERED = packed(_ENTERED, [])
"""What a party says once it has entered."""


@dataclass(frozen=True, kw_only=True)
class Enter:
    """The server's request that parties enter a session.

    Attributes:
        plan: the server's plan, as `written`.
        study: what the server calls the study, for people.
        work: digest of what the parties compute, such as a study's text with its arm and seed, 32 bytes.
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
    def of(cls, plan: Plan, study: str, work: bytes, pinned: Pinned, nonce: bytes, server: Identity) -> Enter:
        """The request, signed with the server's lasting key."""
        unsigned = cls(
            plan=plan.text(), study=study, work=work, roster=pinned.digest, nonce=nonce, signature=b""
        )
        return replace(unsigned, signature=server.signing.sign(unsigned.text()).raw)

    def require_signed(self, server: PublicKey) -> None:
        """Raises CryptoError unless the owner of this key signed the request."""
        verify(server, Signature(self.signature), self.text())

    def text(self) -> bytes:
        """What the signature is over."""
        parts = (self.plan.encode(), self.study.encode(), self.work, self.roster, self.nonce)
        return tagged(b"enter", b"", lengthened(*parts))

    def table(self, *, sender: str) -> Mapping[str, Any]:
        """The fields of the plan. RemoteProtocolError for a text that is no table."""
        try:
            found = json.loads(self.plan)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise other(sender)
        return found


def pack_enter(enter: Enter) -> bytes:
    """The bytes of the request."""
    texts = [enter.plan.encode(), enter.study.encode()]
    return packed(_ENTER, [*texts, enter.work, enter.roster, enter.nonce, enter.signature])


def is_enter(data: bytes) -> bool:
    """Whether a frame says that it is such a request."""
    return is_of(_ENTER, data)


def unpack_enter(data: bytes, *, sender: str) -> Enter:
    """The request of these bytes. RemoteProtocolError for any others."""
    parts = parts_of(_ENTER, data, sender=sender)
    if len(parts) != 6:
        raise other(sender)
    sizes = tuple(map(len, parts[2:]))
    fits = max(map(len, parts[:2])) <= _LARGEST and sizes == (32, 32, 32, SIGNATURE_BYTES)
    if not fits:
        raise other(sender)
    try:
        plan, study = parts[0].decode(), parts[1].decode()
    except UnicodeDecodeError:
        raise other(sender) from None
    work, roster, nonce, signature = parts[2:]
    return Enter(plan=plan, study=study, work=work, roster=roster, nonce=nonce, signature=signature)


def enter_all(
    exchange: SendAndReceive, enter: Enter, names: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Ask parties to enter. Returns who did, and of those who answered otherwise, why they do not count.

    A party that was started again is asked with the same request: it takes part from the next round on. One
    that stands in the session says that it entered, and nothing changes for it.
    """
    request = pack_enter(enter)
    replies = exchange(dict.fromkeys(names, request))
    entered, rejected_from = [], {}
    for name in names:
        if name not in replies:
            continue
        try:
            if parts_of(_ENTERED, replies[name], sender=name):
                raise other(name)
            entered.append(name)
        except RemoteProtocolError as error:
            rejected_from[name] = str(error)
    return tuple(entered), rejected_from
