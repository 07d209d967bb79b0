"""The check of every key holder before it opens anything: a quorum of members signed what is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Protocol

from securefl.core.agreement import Agreement
from securefl.core.errors import CryptoError, RemoteProtocolError
from securefl.core.keys import Commitment, Signature
from securefl.core.release import SERVER


class Signed(Protocol):
    """A server's request, with what shows that a cohort stands behind it.

    Attributes:
        task: digest of what the cohort was told.
        members: numbers in the pinned roster, ascending.
        inputs: digest of what each member sent.
        signatures: each member's, over the agreement and that digest.
    """

    @property
    def task(self) -> bytes: ...

    @property
    def members(self) -> tuple[int, ...]: ...

    @property
    def inputs(self) -> Sequence[Commitment]: ...

    @property
    def signatures(self) -> Sequence[Signature]: ...


Text = Callable[[Agreement, int], bytes]
"""What the member at a place of the request signed under the agreement."""


def require_quorum(agreement: Agreement, request: Signed, texts: Text, least: int, *, phase: str) -> None:
    """Require distinct members of the roster, enough of them, each of whom signed its own text.

    Args:
        agreement: from the key holder's own plan and the pinned keys; the task is the request's.
        least: the fewest members.
        phase: of the key holder, for the refusal.

    Raises:
        RemoteProtocolError: the request is another one. It is the server's fault.
    """
    members = request.members
    if len({len(members), len(request.inputs), len(request.signatures)}) > 1 or len(request.task) != 32:
        raise refused(
            "Expected a digest and a signature for each member, a task of 32 bytes, got others.", phase
        )
    # Ascending numbers are distinct: a member that counts twice would stand for two.
    if any(low >= high for low, high in pairwise(members)) or len(members) < least:
        raise refused(f"Expected at least {least} ascending members, got {members}.", phase)
    if members[0] < 0 or members[-1] >= len(agreement.roster.members):
        raise refused(f"Expected members of the pinned roster, got {members}.", phase)
    # Counts came first: a request that is too small is refused before a signature costs time. The task is the
    # server's word. All members must have signed the same one, or a signature fails.
    agreed = replace(agreement, task=request.task)
    for place, member in enumerate(members):
        try:
            agreed.check(member, request.signatures[place], texts(agreed, place))
        except CryptoError:
            raise refused(
                f"Expected signatures on agreement and inputs, but member {member} did not sign these.", phase
            ) from None


def refused(reason: str, phase: str) -> RemoteProtocolError:
    """The server's fault, in this phase of a key holder."""
    return RemoteProtocolError(reason, sender=SERVER, phase=phase)
