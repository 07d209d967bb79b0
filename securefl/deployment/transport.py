"""The server's transport to remote parties: frames go out in waves, and replies come in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from securefl.core.errors import RemoteProtocolError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment.frames import REFUSED
from securefl.deployment.turns import Turn, TurnReply, grouped, pack, unpack_sent
from securefl.engine.attendance import Absence
from securefl.engine.drive import Driver, Packet, Traffic

SendAndReceive = Callable[[Mapping[str, bytes]], Mapping[str, bytes]]
"""Sends each party its request, and returns the replies that came in time, by party. It sets the deadline."""


class RemoteTransport:
    """The server's transport over `exchange`.

    If a party is silent once, or sends an invalid frame, it is left out until the next call: its machine has
    missed a wave, and waiting for it a second time would be in vain.

    Attributes:
        traffic: bytes of messages by sender and by receiver, and the senders of invalid frames.
        silent: the parties that left a request without a reply.
        refused: the parties that replied with the constant refusal.
    """

    def __init__(self, exchange: SendAndReceive) -> None:
        self.traffic = Traffic()
        self.silent: set[str] = set()
        self.refused: set[str] = set()
        self._called: set[str] = set()
        self._exchange = exchange
        self._calls: dict[str, bytes] = {}
        self._here: set[str] = set()
        self._begun: list[Packet] = []

    def call(self, to: Sequence[str], data: bytes) -> Mapping[str, bytes]:
        """Call the key holder for its key. The clients' call has no reply and travels with the next wave."""
        self._calls = {name: data for name in to if name != KEY_HOLDER}
        self._called |= set(self._calls)
        if KEY_HOLDER not in to:
            return {}
        self._begun = []
        said, out = self._wave({KEY_HOLDER: Turn(call=data)})
        self._begun = out
        return said

    @property
    def absent(self) -> Mapping[str, Absence]:
        """What the wire showed of each called party, if that party gave no value."""
        return {
            **dict.fromkeys(self._called, Absence.NO_VALUE),
            **dict.fromkeys(self.traffic.rejected_from, Absence.INVALID),
            **dict.fromkeys(self.refused, Absence.REFUSED),
            **dict.fromkeys(self.silent, Absence.SILENT),
        }

    def run(self, drive: Driver) -> None:
        """Run the current exchange to its end, a wave at a time."""
        turns = {name: Turn(call=call) for name, call in self._calls.items()}
        self._calls = {}
        self._here = {KEY_HOLDER} & self._here
        waiting = [*self._begun, *drive.begin()]
        self._begun = []
        while drive.unfinished:
            waiting = self._delivered(drive, waiting)
            if drive.working:
                waiting += drive.work()
                continue
            own = grouped(waiting)
            posted = {
                name: Turn(call=turns[name].call if name in turns else None, parcels=tuple(own.get(name, ())))
                for name in sorted({*turns, *(own.keys() & self._here)})
            }
            turns, waiting = {}, []
            if posted:
                _, waiting = self._wave(posted)
                continue
            moved, waiting = drive.deadline()
            if not moved:
                break

    def _delivered(self, drive: Driver, parcels: Sequence[Packet]) -> list[Packet]:
        """Deliver the server's packets. Returns the remaining ones, and those that the server sends then."""
        left: list[Packet] = []
        for parcel in parcels:
            if parcel.to == SERVER:
                left += drive.deliver(parcel)
            else:
                left.append(parcel)
        return left

    def _wave(self, turns: Mapping[str, Turn]) -> tuple[dict[str, bytes], list[Packet]]:
        """Run one wave. Returns each party's reply on its key, and the packets that all parties sent."""
        replies = self._exchange({name: pack(turn) for name, turn in turns.items()})
        said: dict[str, bytes] = {}
        out: list[Packet] = []
        for name in turns:
            self._here.discard(name)
            if name not in replies:
                self.silent.add(name)
                continue
            try:
                sent = unpack_sent(replies[name], sender=name)
            except RemoteProtocolError as error:
                self.traffic.rejected_from[name] = str(error)
                if replies[name] == REFUSED:
                    self.refused.add(name)
                continue
            self._here.add(name)
            self._count(name, turns[name], sent)
            said[name] = sent.key
            # The sender is the party whose reply carried the packet, not a field that the packet states.
            out += [Packet(name, to, data) for to, data in sent.parcels]
        return said, out

    def _count(self, name: str, turn: Turn, sent: TurnReply) -> None:
        for counts, parcels in ((self.traffic.received, turn.parcels), (self.traffic.sent, sent.parcels)):
            counts[name] = counts.get(name, 0) + sum(len(data) for _, data in parcels)
