"""What may be a message at all, where it belongs, and how much it may hold.

A message sent by a client may carry only releases, public keys, shares, signatures and commitments. That is
checked when its class is defined: a bare array, count or loss has no way into the bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from securefl.core.errors import LocalProtocolError
from securefl.core.keys import Commitment, PublicKey, Share, Signature
from securefl.core.release import Release

Sender = Literal["client", "server", "key-holder"]
KEYS = (PublicKey, Share, Signature, Commitment)
_FROM_CLIENTS = (Release, *KEYS)
T = TypeVar("T")


@dataclass(frozen=True)
class Header:
    """The place of a message: session (32 bytes), round, stage (which Ask of the round), attempt at its sum.

    Attempt 0 is the exchange of order and numbers. The attempts at a hidden sum count from 1.
    """

    session: bytes
    round: int
    attempt: int
    stage: int

    def place(self) -> tuple[int, int, int]:
        """Position in the session, increasing with time."""
        # Not in the order of the fields: stages follow each other, and attempts belong to one stage.
        return (self.round, self.stage, self.attempt)


@dataclass(frozen=True)
class Limit:
    """The most that a message may hold: bytes in all, and elements of all its tuples together."""

    bytes: int
    elements: int


@dataclass(frozen=True)
class WireType:
    """What `message` notes of a class: its name in the bytes, who sends it, its fields in their order."""

    kind: str
    version: int
    sender: Sender
    fields: tuple[tuple[str, Any], ...]


def message(kind: str, *, version: int, sender: Sender) -> Callable[[type[T]], type[T]]:
    """Mark a frozen dataclass as a message; refuse a client message with an unaccounted field."""

    def mark(cls: type[T]) -> type[T]:
        hints = get_type_hints(cls)
        fields = tuple((f.name, hints[f.name]) for f in dataclasses.fields(cls))  # type: ignore[arg-type]
        for name, hint in fields:
            # `element` sees the first part alone: in tuple[Release, float] a bare number would pass.
            if get_origin(hint) is tuple and get_args(hint)[1:] != (Ellipsis,):
                raise LocalProtocolError(
                    f"Expected tuples as tuple[T, ...] alone, got {hint} for {cls.__name__}.{name}."
                )
            if sender == "client" and element(hint) not in _FROM_CLIENTS:
                raise LocalProtocolError(
                    "Expected only a Release, PublicKey, Share, Signature or Commitment from a client, got "
                    f"{hint} for {cls.__name__}.{name}. Release the value through `protect`."
                )
        cls.__wire__ = WireType(kind, version, sender, fields)  # type: ignore[attr-defined]
        return cls

    return mark


def element(hint: Any) -> Any:
    """Of what a tuple field has many; else the field's own type."""
    return get_args(hint)[0] if get_origin(hint) is tuple else hint


def scalar(hint: Any) -> Any:
    """The class of an array's scalars, where a field's type is `NDArray[scalar]`."""
    found = get_args(get_args(hint)[1])[0]
    return np.generic if found is Any else found
