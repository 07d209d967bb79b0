"""The server's transport to remote parties: they enter its session, turns go out in waves, replies come in.

A party draws a fresh visit as it enters a session. A turn names visit and number, and the server signs both
with the party's name and the session. So a turn that was kept back, changed or meant for another party has no
effect, and a party does not lose its place to a stranger in the server's place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from securefl.core.agreement import Identity
from securefl.core.errors import RemoteProtocolError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment.messages import (
    REFUSED,
    Enter,
    Entered,
    Parcel,
    SignedTurn,
    Turn,
    TurnReply,
    decode_envelope,
    encode_envelope,
)
from securefl.engine.attendance import Absence
from securefl.engine.drive import Driver, Packet, Traffic

SendAndReceive = Callable[[Mapping[str, bytes], bool], Mapping[str, bytes]]
"""Sends each party its request, and returns the replies that came in time, by party. It sets the deadline.

The second argument says whether the requests are to enter. They order no training, so a short deadline is
enough. With that of a training, a party that takes connections and never answers would hold up each round."""


class RemoteTransport:
    """The server's transport in one session, over `exchange`, to the parties that have entered.

    If a party is silent once, or sends an invalid reply, it is left out of the rest of a query: its machine
    has missed a wave, and waiting for it a second time would be in vain. A party that has not entered gets
    nothing, since it would cost each wave its deadline.

    Args:
        enter: the request with which parties enter.
        session: 32 bytes, which follow from the request.
        server: the server's lasting keys, as the roster lists them.

    Attributes:
        traffic: bytes of messages by sender and by receiver, and the senders of invalid replies.
        silent: the parties that left a turn without a reply, or have not entered.
        refused: the parties that replied with the constant refusal. All three are of the newest query.
    """

    def __init__(self, exchange: SendAndReceive, enter: Enter, session: bytes, server: Identity) -> None:
        self._exchange = exchange
        self._request = encode_envelope(enter)
        self._session, self._server = session, server
        self._visits: dict[str, tuple[bytes, int]] = {}
        self.begin()

    def begin(self) -> None:
        """Begin a query: forget what the wire showed in the one before."""
        self.traffic = Traffic()
        self.silent: set[str] = set()
        self.refused: set[str] = set()
        self._called: set[str] = set()
        self._calls: dict[str, bytes] = {}
        self._here: set[str] = set()
        self._begun: list[Packet] = []

    # Visits -------------------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        """Whether this party has entered, as far as the server knows."""
        return name in self._visits

    def enter(self, names: Sequence[str]) -> dict[str, str]:
        """Ask parties to enter. Returns for each invalid reply the reason.

        A restarted party gets the same request, and takes part from the next round on. For a party that is in
        the session already nothing changes: it tells its visit and its number again.
        """
        replies = self._exchange(dict.fromkeys(names, self._request), True)
        rejected_from = {}
        for name in filter(replies.__contains__, names):
            try:
                found = decode_envelope(replies[name], Entered, sender=name)
            except RemoteProtocolError as error:
                rejected_from[name] = str(error)
            else:
                self._visits[name] = (found.visit, found.number)
        return rejected_from

    def leave(self, names: Iterable[str]) -> None:
        """Forget the visits of these parties. They get no turn until they have entered again."""
        for name in names:
            self._visits.pop(name, None)

    def signed(self, name: str, turn: Turn) -> bytes:
        """The bytes of a turn for a party that has entered. Its next turn gets the next number."""
        visit, number = self._visits[name]
        self._visits[name] = (visit, number + 1)
        own = SignedTurn.of(
            turn, session=self._session, party=name, visit=visit, number=number, server=self._server
        )
        return encode_envelope(own)

    # Waves --------------------------------------------------------------------------------------------

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
                name: Turn(call=calls.get(name, b""), packets=tuple(own.get(name, ())))
                for name in sorted({*calls, *(own.keys() & self._here)})
            }
            calls, waiting = {}, []
            if posted:
                _, waiting = self._wave(posted)
                continue
            moved, waiting = drive.deadline()
            if not moved:
                break

    def _delivered(self, drive: Driver, packets: Sequence[Packet]) -> list[Packet]:
        """Deliver the server's packets. Returns the remaining ones, and those that the server sends then."""
        left: list[Packet] = []
        for packet in packets:
            if packet.to == SERVER:
                left += drive.deliver(packet)
            else:
                left.append(packet)
        return left

    def _wave(self, turns: Mapping[str, Turn]) -> tuple[dict[str, bytes], list[Packet]]:
        """Run one wave. Returns each party's reply on its key, and the packets that all parties sent."""
        asked = {name: self.signed(name, turn) for name, turn in turns.items() if name in self}
        replies = self._exchange(asked, False) if asked else {}
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
            out += [Packet(name, own.name, own.data) for own in reply.packets]
        return said, out

    def _count(self, name: str, turn: Turn, reply: TurnReply) -> None:
        for counts, packets in ((self.traffic.received, turn.packets), (self.traffic.sent, reply.packets)):
            counts[name] += sum(len(own.data) for own in packets)


def _grouped(packets: Sequence[Packet]) -> dict[str, list[Parcel]]:
    """Packets by their receiver, each as its sender and its bytes."""
    found: dict[str, list[Parcel]] = {}
    for packet in packets:
        found.setdefault(packet.to, []).append(Parcel(packet.sender, packet.data))
    return found
