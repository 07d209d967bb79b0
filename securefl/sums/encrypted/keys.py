"""The key holder's keys of encrypted sums, and how many integers each has opened."""

from __future__ import annotations

from securefl.core.wire import Header
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.he.parameters import STRONG
from securefl.storage.own_record import OwnRecord

MOST_INTEGERS = 2**28
"""tau: the most integers that one key opens over all its sums. The flooding is sized for it."""


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
