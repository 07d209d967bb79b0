"""The key holder's key of the sum at hand."""

from __future__ import annotations

from securefl.core.wire import Header
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.he.parameters import STRONG
from securefl.storage.own_record import OwnRecord

MOST_INTEGERS = 2**28
"""tau: how many integers one key opens at most, over all its sums; the flooding is sized for it."""


class SumKeys:
    """The key holder's key of the sum at hand. It serves until the next sum could use its openings up.

    Each key opens few enough integers for its flooding, and no key tells anything of another. A key is on
    record, with how much it had opened before, for every place of the round at hand.
    """

    def __init__(self, record: OwnRecord) -> None:
        self._record = record
        self.pair = KeyPair.generate(STRONG)
        self.openings = Openings()
        self._before = 0

    @property
    def opened(self) -> int:
        """The most integers that the key has opened so far."""
        return self._before + self.openings.opened

    def enter(self, header: Header, integers: int) -> None:
        """Take the key that is on record for the sum of so many integers at this place, or put one there."""
        # Before the sum begins: one that went beyond the count would be opened with too little flooding.
        if self.opened + integers > MOST_INTEGERS:
            self.pair, self.openings, self._before = KeyPair.generate(STRONG), Openings(), 0
        # The key once in a round and its name at every place: a server calls to as many places as it likes.
        self._record.said(header, _name(self.pair.public.session), self.pair.stored)
        own = self.opened.to_bytes(8, "little") + self.pair.public.session
        stored = self._record.said(header, f"sum {header.stage} {header.attempt}", lambda: own)
        if stored != own:  # of this place, before a restart: the sum may have been opened, so it counts
            self.pair, self.openings = self._restored(header, stored[8:]), Openings()
            self._before = int.from_bytes(stored[:8], "little") + integers

    def _restored(self, header: Header, session: bytes) -> KeyPair:
        return KeyPair.restored(self._record.said(header, _name(session), self.pair.stored), STRONG)


def _name(session: bytes) -> str:
    return f"key {session.hex()}"
