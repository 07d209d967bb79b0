"""The quorum check of a key holder before it opens a sum: enough members signed the request."""

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
    """A server's request, with the evidence that a cohort contributed to it.

    Attributes:
        task: digest of the task that the server told the cohort.
        members: numbers in the pinned roster, ascending.
        inputs: digest of each member's input.
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
"""Maps the agreement and a place of the request to the text that its member signed."""


def require_quorum(agreement: Agreement, request: Signed, texts: Text, least: int, *, phase: str) -> None:
    """Require enough distinct members of the roster, each with a valid signature on its own text.

    Args:
        agreement: from the key holder's own plan and the pinned keys. The task is the request's.
        request: the server's request.
        texts: the text that each member signed.
        least: the least number of members.
        phase: the key holder's phase, for the refusal.

    Raises:
        RemoteProtocolError: a check failed. It names the server.
    """
    members = request.members
    if len({len(members), len(request.inputs), len(request.signatures)}) > 1 or len(request.task) != 32:
        raise refused(
            "Expected a digest and a signature for each member, and a task of 32 bytes, got others.", phase
        )
    # Ascending numbers are distinct, so no member counts twice.
    if any(low >= high for low, high in pairwise(members)) or len(members) < least:
        raise refused(f"Expected at least {least} ascending members, got {members}.", phase)
    if members[0] < 0 or members[-1] >= len(agreement.roster.members):
        raise refused(f"Expected members of the pinned roster, got {members}.", phase)
    # Counts were checked first: a request that is too small costs no signature check. The server states the
    # task. If a member signed another task, its signature fails.
    agreed = replace(agreement, task=request.task)
    for place, member in enumerate(members):
        try:
            agreed.check(member, request.signatures[place], texts(agreed, place))
        except CryptoError:
            raise refused(
                f"Expected signatures on agreement and inputs, but member {member} did not sign these.", phase
            ) from None


def refused(reason: str, phase: str) -> RemoteProtocolError:
    """The error that names the server, in this phase of a key holder."""
    return RemoteProtocolError(reason, sender=SERVER, phase=phase)
