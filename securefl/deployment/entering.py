"""The request to enter a session: the server's plan, the digest of its roster, and a fresh nonce.

A party trusts none of it. It compares the plan with its own copy field by field and the roster with its
pinned one, and computes the session itself. Only the nonce comes from the request, and the party takes it
only if the pinned server signed the request.
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
from securefl.deployment.frames import is_of, other, packed, parts_of
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.transport import SendAndReceive

_ENTER, _ENTERED = b"E", b"A"
_LARGEST = 2**16
"""The limit of a plan's text and of a study's name, in bytes."""
ENTERED = packed(_ENTERED, [])
"""A party's reply after it has entered."""


@dataclass(frozen=True, kw_only=True)
class Enter:
    """The server's request that parties enter a session.

    Attributes:
        plan: the server's plan, as `written`.
        study: the server's name of the study, for people.
        work: digest of the parties' computation, such as a study's text with its arm and seed, 32 bytes.
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

    def require_signed(self, server: PublicKey) -> None:
        """Raise CryptoError unless the owner of this key signed the request."""
        verify(server, Signature(self.signature), self.text())

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
            raise other(sender)
        return found


def pack_enter(enter: Enter) -> bytes:
    """Encode the request."""
    texts = [enter.plan.encode(), enter.study.encode()]
    return packed(_ENTER, [*texts, enter.work, enter.roster, enter.nonce, enter.signature])


def is_enter(data: bytes) -> bool:
    """Whether a frame's head has the kind of such a request."""
    return is_of(_ENTER, data)


def unpack_enter(data: bytes, *, sender: str) -> Enter:
    """Decode the request. Raises RemoteProtocolError for any other bytes."""
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
    """Ask parties to enter. Returns those that entered, and for each invalid reply the reason.

    A restarted party gets the same request, and takes part from the next round on. A party that is in the
    session already replies that it has entered, and nothing changes for it.
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
