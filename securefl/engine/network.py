"""A simulated network with faults: messages come late, twice, out of order or never.

Faults follow from a seeded stream, so a run with faults can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from securefl.core.errors import ConfigError
from securefl.core.ranges import Count, Probability, Ranged
from securefl.engine.drive import Driver, Packet


@dataclass(frozen=True, kw_only=True)
class Faults(Ranged):
    """The faults of a simulated network.

    Attributes:
        reorder: deliver in random order.
        delay: probability that a message takes extra ticks, up to twice `patience`.
        duplicate: probability that a message arrives twice.
        dropout: probability that a message never arrives.
        patience: ticks until the deadline of an exchange.
    """

    reorder: bool = False
    delay: Probability = 0.0
    duplicate: Probability = 0.0
    dropout: Probability = 0.0
    patience: Count = 8


@dataclass(frozen=True)
class _Posted:
    packet: Packet
    due: int


class Network:
    """Moves packets between drivers. Late packets of one exchange arrive in the next one that it runs.

    tamper: maps (sender, receiver, bytes) of each message to the bytes that arrive.
    """

    def __init__(
        self,
        faults: Faults = Faults(),
        *,
        rng: np.random.Generator | None = None,
        tamper: Callable[[str, str, bytes], bytes] | None = None,
    ) -> None:
        self._faults = faults
        self._rng = rng or np.random.default_rng(0)
        self._tamper = tamper
        self._posted: list[_Posted] = []
        self._tick = 0

    def run(self, drives: Sequence[Driver]) -> None:
        """Run one exchange to its end. Raises ConfigError if two drivers have one party."""
        names = [name for drive in drives for name in drive.machines]
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ConfigError(f"Expected each party once, got {', '.join(twice)} twice.")
        start = self._tick
        for drive in drives:
            self._post(drive.begin())
        while any(drive.unfinished for drive in drives):
            self._tick += 1
            delivered = self._deliver(drives)
            worked = self._work(drives)
            waited = self._tick - start >= self._faults.patience
            # A deadline passes when patience ends, or at once if no message is under way. Slow work holds it
            # up, because work has no duration in ticks.
            if not worked and (waited or not (delivered or self._posted)):
                start = self._tick
                # No machine moved at a deadline and no message is posted, so none would ever move.
                if not self._deadline(drives):
                    break

    def _deliver(self, drives: Sequence[Driver]) -> bool:
        due = [posted for posted in self._posted if posted.due <= self._tick]
        self._posted = [posted for posted in self._posted if posted.due > self._tick]
        if self._faults.reorder:
            due = [due[i] for i in self._rng.permutation(len(due))]
        at = {name: drive for drive in drives for name in drive.machines}
        for posted in due:
            if (drive := at.get(posted.packet.to)) is not None:
                self._post(drive.deliver(posted.packet))
        return bool(due)

    def _work(self, drives: Sequence[Driver]) -> bool:
        working = [drive for drive in drives if drive.working]
        for drive in working:
            self._post(drive.work())
        return bool(working)

    def _deadline(self, drives: Sequence[Driver]) -> bool:
        """Tell all drivers that a deadline passed. Returns whether any machine moved."""
        told = [drive.deadline() for drive in drives]
        for _, packets in told:
            self._post(packets)
        return any(moved for moved, _ in told) or bool(self._posted)

    def _post(self, packets: Sequence[Packet]) -> None:
        faults, rng = self._faults, self._rng
        for packet in packets:
            if self._tamper is not None:
                data = self._tamper(packet.sender, packet.to, packet.data)
                packet = Packet(packet.sender, packet.to, data)
            copies = 1 + (rng.random() < faults.duplicate) if faults.duplicate else 1
            # Each copy is lost or delayed independently, as on a real network.
            for _ in range(copies):
                if faults.dropout and rng.random() < faults.dropout:
                    continue
                slow = faults.delay and rng.random() < faults.delay
                # Up to twice the patience, so that some messages miss the deadline and reach the next
                # exchange.
                extra = int(rng.integers(1, 2 * faults.patience)) if slow else 0
                self._posted.append(_Posted(packet, self._tick + 1 + extra))
