"""The cap on a party's sessions without noise: its owner agrees to a number, and the party counts.

Within one session, any combination of hidden sums keeps enough honest contributors (`core.acts`). Sums of two
sessions over the same records have no such bound: the sum of six clients in one and of five in another differ
by one client's value, as far as its training draws are alike. A server begins sessions as it likes, so it is
the owner who says how many there may be, over all studies. A session counts once a hidden sum without noise
is ordered in it: never if all its sums are noised or in the clear, and only once if it is resumed.

The count is in the diary, and the number of it in the party's counter (`storage.counter`). So it outlives
restarts, rotations of keys and new plans, and a folder from a backup is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefl.deployment.plan_file import require_sessions
from securefl.deployment.session_store import SessionStore


def advice(allowed: int, how: str) -> str:
    """What the owner can do whose party used up its sessions without noise.

    how: the words by which the owner agrees to one more.
    """
    return (
        f"A counted session goes on. To take part in another one, {how}; the server can then compare the "
        f"sums of {allowed + 1} sessions over your records. Or agree to a study with noise: its sessions do "
        "not count."
    )


def by_command(folder: object, allowed: int) -> str:
    """The words by which the owner of a folder agrees to one more session than these."""
    return f"stop the party and agree: securefl party allow {folder} --sessions {allowed + 1}"


def by_keyword(allowed: int) -> str:
    """The same for a party of an app (`UpdateParty`)."""
    return f"start its party with sessions={allowed + 1}"


@dataclass(frozen=True)
class SessionCap:
    """A client's count of sessions without noise, and the number to which its owner agreed.

    Attributes:
        diary: where they are counted.
        allowed: the number of sessions.
        how: the words by which the owner agrees to one more.
        bare: whether a session has hidden sums without noise at all.

    Raises ConfigError for a number below 1.
    """

    diary: SessionStore
    allowed: int
    how: str
    bare: bool

    def __post_init__(self) -> None:
        require_sessions(self.allowed)
        self.diary.note_allowed(self.allowed)

    def refusal(self, session: bytes) -> str:
        """Why the party does not enter this session; empty if it does."""
        if not self.bare:
            return ""
        used = self.diary.bare()
        if session in used or len(used) < self.allowed:
            return ""
        return (
            f"Expected no more sessions without noise than the {self.allowed} that the owner of this party "
            f"agreed to, got one more, after {used[-1].hex()[:16]}. {advice(self.allowed, self.how)}"
        )

    def count(self, session: bytes) -> str:
        """Count this session, durably, unless it is counted. Returns the same as `refusal`."""
        why = self.refusal(session)
        if not why and session not in self.diary.bare():
            self.diary.count(session)
        return why
