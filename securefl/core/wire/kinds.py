"""Message classes: their allowed fields, their place in the protocol, and their size limits.

A message that a client sends may carry only releases, public keys, shares, signatures and commitments.
`message` checks this when the class is defined: a bare array, count or loss cannot be a field.

A field may be another message, or a frozen dataclass of such fields, or `T | None` or `tuple[T, ...]` of one.
It is encoded in place, as the concatenation of its fields. How deep messages nest is checked when the
outermost class is defined. A class that contains itself is too deep, so no bytes nest deeper than a class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from securefl.core.errors import LocalProtocolError
from securefl.core.keys import Commitment, Guarded, PublicKey, Share, Signature
from securefl.core.release import Release

Sender = Literal["client", "server", "key-holder", "envelope"]
"""An "envelope" carries encoded messages between machines; their own kinds say who sends them."""
KEYS = (PublicKey, Share, Signature, Commitment)
_FROM_CLIENTS = (Release, *KEYS)
_PLAIN = (int, float, str, bytes, *_FROM_CLIENTS)
_DEEPEST: Final = 4
"""The most messages inside each other, the outermost not counted."""
T = TypeVar("T")


@dataclass(frozen=True)
class Header:
    """The place of a message in the protocol. Raises nothing; `encode` checks the numbers.

    Attributes:
        session: 32 bytes, of the run.
        round: the round, from 1.
        attempt: 0 for the exchange of order and values; attempts at a hidden sum count from 1.
        stage: the number of the query within the round.

    >>> from securefl.sums import Header
    >>> Header(session=bytes(32), round=3, attempt=1, stage=0).place()
    (3, 0, 1)
    """

    session: bytes
    round: int
    attempt: int
    stage: int

    def place(self) -> tuple[int, int, int]:
        """Return the position in the session. It increases with time."""
        # Stage before attempt, unlike the fields: stages follow each other, and attempts belong to one stage.
        return (self.round, self.stage, self.attempt)


@dataclass(frozen=True)
class Limit:
    """The size limits of a message: its bytes, and the elements of all its tuples together. Raises nothing.

    >>> from securefl.sums import Limit
    >>> Limit(bytes=4096, elements=100).elements
    100
    """

    bytes: int
    elements: int


@dataclass(frozen=True)
class WireType:
    """The wire type of a message class: its name in the bytes, its version, its sender and its fields."""

    kind: str
    version: int
    sender: Sender
    fields: tuple[tuple[str, Any], ...]


def message(kind: str, *, sender: Sender, version: int = 1) -> Callable[[type[T]], type[T]]:
    """Return a decorator that marks a frozen dataclass as a message.

    Args:
        kind: the name of the message in its bytes.
        sender: the party that may send it.
        version: the version of the message. A decoder refuses every other version.

    Raises:
        LocalProtocolError: if a field has no encoding, or is a tuple of another form than tuple[T, ...], if
            messages nest too deep, if one inside another has a `Release`, or if a client's message has a
            field that is no `Release`, `PublicKey`, `Share`, `Signature` or `Commitment`.

    >>> from dataclasses import dataclass
    >>> from securefl.sums import message
    >>> @message("greeting", sender="server")
    ... @dataclass(frozen=True)
    ... class Greeting:
    ...     words: str
    >>> Greeting("hello").words
    'hello'
    """

    def mark(cls: type[T]) -> type[T]:
        _require_encoding(cls, sender, cls.__name__, 0)
        found: Any = cls
        found.__wire__ = WireType(kind, version, sender, fields_of(found))
        return cls

    return mark


def _require_encoding(cls: Any, sender: Sender, where: str, depth: int) -> None:
    """Raise LocalProtocolError unless this sender's message may have all fields of this class.

    where: the path from the message to the class, for the error.
    depth: the number of messages around it.
    """
    if depth > _DEEPEST:
        raise LocalProtocolError(
            f"Expected messages inside each other at most {_DEEPEST} deep, got {where}, which is nested too "
            "deep. Give the message the inner fields that it needs."
        )
    if depth and not (cls.__dataclass_params__.frozen and all(f.init for f in dataclasses.fields(cls))):
        raise LocalProtocolError(
            f"Expected a frozen dataclass, each field an argument, inside a message, got {cls.__name__} for "
            f"{where}."
        )
    for name, hint in fields_of(cls):
        at = f"{where}.{name}"
        # `element` sees the first part alone: in tuple[Release, float] a bare number would pass.
        if get_origin(hint) is tuple and get_args(hint)[1:] != (Ellipsis,):
            raise LocalProtocolError(f"Expected tuples as tuple[T, ...] alone, got {hint} for {at}.")
        item = optional(hint) or element(hint)
        if is_nested(item):
            _require_encoding(item, sender, at, depth + 1)
        elif sender == "client" and item not in _FROM_CLIENTS:
            raise LocalProtocolError(
                "Expected only a Release, PublicKey, Share, Signature or Commitment from a client, got "
                f"{hint} for {at}. Release the value through `protect`."
            )
        elif item is Release and depth:
            # The ledger permits the releases that it finds in the fields of the message itself.
            raise LocalProtocolError(f"Expected releases in the outermost message alone, got one for {at}.")
        elif item not in _PLAIN:
            scalar(item)


@cache
def fields_of(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Return the name and the type of each field of a message class, or of a dataclass inside one."""
    hints = get_type_hints(cls)
    return tuple((f.name, hints[f.name]) for f in dataclasses.fields(cls))


def is_nested(hint: Any) -> bool:
    """Whether a field of this type is encoded as the fields of a dataclass. No object with a secret is."""
    own = isinstance(hint, type) and dataclasses.is_dataclass(hint)
    return own and hint not in _PLAIN and not issubclass(hint, Guarded)


def optional(hint: Any) -> Any:
    """Return the class T of a field of type `T | None`, T a nested dataclass; None for others."""
    first, *others = get_args(hint) if isinstance(hint, UnionType) else (None,)
    return first if is_nested(first) and others == [NoneType] else None


def element(hint: Any) -> Any:
    """Return the element type of a tuple field, or the type itself of any other field."""
    return get_args(hint)[0] if get_origin(hint) is tuple else hint


def scalar(hint: Any) -> Any:
    """Return the scalar class of a field type `NDArray[scalar]`. Raises LocalProtocolError for any other."""
    # Since numpy 2.5 `NDArray` is an alias (PEP 695), and `get_origin` of NDArray[...] is that alias.
    alias = getattr(get_origin(hint), "__value__", None)
    plain = hint if alias is None else alias[get_args(hint)]
    if get_origin(plain) is not np.ndarray:
        raise LocalProtocolError(f"Expected a field of a type that has an encoding, got {hint}.")
    found = get_args(get_args(plain)[1])[0]
    return np.generic if found is Any else found
