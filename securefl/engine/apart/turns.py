"""The frames of a wave: what a server gives a party, and what the party sends back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from securefl.engine.apart.frames import other, packed, parts_of
from securefl.engine.drive import Packet

_TURN, _SENT = b"T", b"S"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a server gives a party in one wave.

    Attributes:
        call: the call to a new place, handed over first. None where the party stays where it is.
        parcels: who sent what to this party, in the order in which it is delivered.
        deadline: nothing more will come in the phase at hand.
    """

    call: bytes | None = field(default=None, repr=False)
    parcels: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    deadline: bool = False


@dataclass(frozen=True, kw_only=True)
class TurnReply:
    """What a party sends back: what it says of its own key, and its messages, each for one receiver."""

    key: bytes = field(default=b"", repr=False)
    parcels: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)


def pack(turn: Turn) -> bytes:
    """The bytes of a turn."""
    flags = bytes([turn.deadline, turn.call is not None])
    return packed(_TURN, [flags, turn.call or b"", *_flat(turn.parcels)])


def unpack(data: bytes, *, sender: str) -> Turn:
    """The turn of these bytes. RemoteProtocolError for any others."""
    flags, call, *rest = _parts(_TURN, data, 2, sender)
    if len(flags) != 2 or max(flags) > 1 or (call and not flags[1]):
        raise other(sender)
    return Turn(call=call if flags[1] else None, parcels=_pairs(rest, sender), deadline=bool(flags[0]))


def pack_sent(sent: TurnReply) -> bytes:
    """The bytes of a reply."""
    return packed(_SENT, [sent.key, *_flat(sent.parcels)])


def unpack_sent(data: bytes, *, sender: str) -> TurnReply:
    """The reply of these bytes. RemoteProtocolError for any others."""
    key, *rest = _parts(_SENT, data, 1, sender)
    return TurnReply(key=key, parcels=_pairs(rest, sender))


def grouped(parcels: Sequence[Packet]) -> dict[str, list[tuple[str, bytes]]]:
    """Parcels by their receiver."""
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
