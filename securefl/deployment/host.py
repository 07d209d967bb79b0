"""A party's side of one session: it takes a request frame and gives a reply frame."""

from __future__ import annotations

from securefl.core.errors import RemoteProtocolError
from securefl.core.release import SERVER
from securefl.deployment.session_store import BLANK, NO_VALUE
from securefl.deployment.turns import TurnReply, pack_sent, unpack
from securefl.engine.drive import Driver, Packet
from securefl.engine.party import Party


class Host:
    """One client, or the key holder, in the session that it has entered.

    The carrier of the frames can read, lose, repeat and change them. It cannot make the party do more than a
    server can.
    """

    def __init__(self, party: Party) -> None:
        if len(party.names) != 1:
            raise ValueError(f"Expected a party that stands for one, got {len(party.names)} names.")
        self.party = party
        (self.name,) = party.names

    def answer(self, request: bytes) -> bytes:
        """The party's reply to a request. Raises RemoteProtocolError for an invalid request.

        After an error the party is at the same place as before. `noted` has refusals that raise no error.
        """
        turn, key = unpack(request, sender=SERVER), b""
        out: list[Packet] = []
        if turn.call is not None:
            key = self.party.call([self.name], turn.call)
            out += self._drive().begin()
        if turn.parcels or turn.deadline:
            drive = self._drive()
            for sender, data in turn.parcels:
                out += drive.deliver(Packet(sender, self.name, data))
            out += _worked(drive)
            if turn.deadline:
                out += drive.deadline()[1]
        if self.party.drive is not None:
            out += _worked(self.party.drive)
        return pack_sent(TurnReply(key=key, parcels=tuple((parcel.to, parcel.data) for parcel in out)))

    def noted(self) -> list[str]:
        """For its owner: the peers' messages that it refused and why it abstained, since the last call."""
        own, drive = self.party.log.take(), self.party.drive
        rejected_from: dict[str, str] = {} if drive is None else drive.traffic.rejected_from
        reasons = [f"{sender}: {why}" for sender, why in rejected_from.items()]
        rejected_from.clear()
        return [
            *reasons,
            *(f"{NO_VALUE}: {why}" for why in own.abstained.values()),
            *(f"{BLANK}: {why}" for why in own.blank.values()),
        ]

    def _drive(self) -> Driver:
        if self.party.drive is None:
            raise RemoteProtocolError("Expected a call before any message, got none.", sender=SERVER)
        return self.party.drive


def _worked(drive: Driver) -> list[Packet]:
    out: list[Packet] = []
    while drive.working:
        out += drive.work()
    return out
