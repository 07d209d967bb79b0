"""The frames of a wave: a server's request to a party, and the party's reply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from securefl.deployment.frames import other, packed, parts_of
from securefl.engine.drive import Packet

_TURN, _SENT = b"T", b"S"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The server's request to a party in one wave.

    Attributes:
        call: the call to a new place, handled first. None if the party stays at its place.
        parcels: (sender, bytes) of each message to this party, in the order of delivery.
        deadline: whether the current phase has ended, so that no more messages of it come.
    """

    call: bytes | None = field(default=None, repr=False)
    parcels: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    deadline: bool = False


@dataclass(frozen=True, kw_only=True)
class TurnReply:
    """The party's reply: its own key or nothing, and its messages, each for one receiver."""

    key: bytes = field(default=b"", repr=False)
    parcels: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)


def pack(turn: Turn) -> bytes:
    """Encode a turn."""
    flags = bytes([turn.deadline, turn.call is not None])
    return packed(_TURN, [flags, turn.call or b"", *_flat(turn.parcels)])


def unpack(data: bytes, *, sender: str) -> Turn:
    """Decode a turn. Raises RemoteProtocolError for any other bytes."""
    flags, call, *rest = _parts(_TURN, data, 2, sender)
    if len(flags) != 2 or max(flags) > 1 or (call and not flags[1]):
        raise other(sender)
    return Turn(call=call if flags[1] else None, parcels=_pairs(rest, sender), deadline=bool(flags[0]))


def pack_sent(sent: TurnReply) -> bytes:
    """Encode a reply."""
    return packed(_SENT, [sent.key, *_flat(sent.parcels)])


def unpack_sent(data: bytes, *, sender: str) -> TurnReply:
    """Decode a reply. Raises RemoteProtocolError for any other bytes."""
    key, *rest = _parts(_SENT, data, 1, sender)
    return TurnReply(key=key, parcels=_pairs(rest, sender))


def grouped(parcels: Sequence[Packet]) -> dict[str, list[tuple[str, bytes]]]:
    """Packets by their receiver."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    for parcel in parcels:
        found.setdefault(parcel.to, []).append((parcel.sender, parcel.data))
    return found


def _flat(parcels: Sequence[tuple[str, bytes]]) -> list[bytes]:
    return [part for name, data in parcels for part in (name.encode(), data)]


def _parts(kind: bytes, data: bytes, least: int, sender: str) -> list[bytes]:
    parts = parts_of(kind, data, sender=sender)
    if len(parts) < least or (len(parts) - least) % 2:
        raise other(sender)
    return parts


def _pairs(parts: Sequence[bytes], sender: str) -> tuple[tuple[str, bytes], ...]:
    try:
        return tuple((name.decode(), data) for name, data in zip(parts[::2], parts[1::2], strict=True))
    except UnicodeDecodeError:
        raise other(sender) from None
