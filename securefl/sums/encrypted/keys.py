"""The key holder's key of the round at hand."""

from __future__ import annotations

from securefl.core.wire import Header
from securefl.he.keys import KeyPair
from securefl.he.openings import Openings
from securefl.he.parameters import STRONG
from securefl.storage.own_record import OwnRecord

MOST_INTEGERS = 2**28
"""tau: how many integers one key opens at most, over all its sums; the flooding is sized for it."""


class SumKeys:
    """The key holder's key of the round at hand. It serves until the next sum could use its openings up.

    Each key opens few enough integers for its flooding, and no key tells anything of another. A key is on
    record, with how much it had opened before, for the rounds in which it is used.
    """

    def __init__(self, record: OwnRecord) -> None:
        self._record = record
        self.pair = KeyPair.generate(STRONG)
        self.openings = Openings()
        self._before, self._round, self._renewed = 0, 0, 0

    def enter(self, header: Header, integers: int) -> None:
        """Have a key for a sum of this many integers: the one on record for the round, or a new one."""
        if header.round != self._round:
            self._round, self._renewed = header.round, 0
            self._take(header)
        # Before the sum begins: one that went beyond the count would be opened with too little flooding.
        if self._before + self.openings.opened + integers > MOST_INTEGERS:
            self._renewed += 1
            self.pair, self.openings, self._before = KeyPair.generate(STRONG), Openings(), 0
            self._take(header)

    def _take(self, header: Header) -> None:
        opened = self._before + self.openings.opened
        own = opened.to_bytes(8, "little") + self.pair.stored()
        stored = self._record.said(header, f"key {self._renewed}", lambda: own)
        if stored != own:  # of this round, before it was cut off
            self.pair, self.openings = KeyPair.restored(stored[8:], STRONG), Openings()
            self._before = int.from_bytes(stored[:8], "little")
