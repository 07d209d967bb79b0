"""The server's transport to remote parties: turns go out in waves, and replies come in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from securefl.core.errors import RemoteProtocolError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment.messages import REFUSED, Turn, TurnReply, decode_envelope
from securefl.deployment.visits import SendAndReceive, Visits
from securefl.engine.attendance import Absence
from securefl.engine.drive import Driver, Packet, Traffic


class RemoteTransport:
    """The server's transport over `exchange`, to the parties that have entered.

    If a party is silent once, or sends an invalid reply, it is left out until the next call: its machine has
    missed a wave, and waiting for it a second time would be in vain. A party that has not entered gets
    nothing, since it would cost each wave its deadline.

    Attributes:
        traffic: bytes of messages by sender and by receiver, and the senders of invalid replies.
        silent: the parties that left a turn without a reply, or have not entered.
        refused: the parties that replied with the constant refusal.
    """

    def __init__(self, exchange: SendAndReceive, visits: Visits) -> None:
        self.traffic = Traffic()
        self.silent: set[str] = set()
        self.refused: set[str] = set()
        self._called: set[str] = set()
        self._exchange, self._visits = exchange, visits
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
        said, out = self._wave({KEY_HOLDER: Turn.of(call=data)})
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
        calls, self._calls = self._calls, {}
        self._here = {KEY_HOLDER} & self._here
        waiting = [*self._begun, *drive.begin()]
        self._begun = []
        while drive.unfinished:
            waiting = self._delivered(drive, waiting)
            if drive.working:
                waiting += drive.work()
                continue
            own = _grouped(waiting)
            posted = {
                name: Turn.of(own.get(name, ()), call=calls.get(name))
                for name in sorted({*calls, *(own.keys() & self._here)})
            }
            calls, waiting = {}, []
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
        asked = {
            name: self._visits.signed(name, turn) for name, turn in turns.items() if name in self._visits
        }
        replies = self._exchange(asked) if asked else {}
        said: dict[str, bytes] = {}
        out: list[Packet] = []
        for name in turns:
            self._here.discard(name)
            if name not in replies:
                self.silent.add(name)
                continue
            try:
                reply = decode_envelope(replies[name], TurnReply, sender=name)
            except RemoteProtocolError as error:
                self.traffic.rejected_from[name] = str(error)
                if replies[name] == REFUSED:
                    self.refused.add(name)
                continue
            self._here.add(name)
            self._count(name, turns[name], reply)
            said[name] = reply.key
            # The sender is the party whose reply carried the packet, not a field that the packet states.
            out += [Packet(name, to, data) for to, data in reply.packets]
        return said, out

    def _count(self, name: str, turn: Turn, reply: TurnReply) -> None:
        for counts, contents in ((self.traffic.received, turn.contents), (self.traffic.sent, reply.contents)):
            counts[name] = counts.get(name, 0) + sum(map(len, contents))


def _grouped(packets: Sequence[Packet]) -> dict[str, list[tuple[str, bytes]]]:
    """Packets by their receiver, each as its sender and its bytes."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for packet in packets:
        found.setdefault(packet.to, []).append((packet.sender, packet.data))
    return found
