"""The scheme that a word of `[privacy] scores` stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from securefl.core.errors import ConfigError
from securefl.linear.ckks import Ckks
from securefl.linear.isolation import Batches
from securefl.linear.padded import Pads
from securefl.linear.scheme import LinearScheme

CLEAR: Final = "clear"
"""The word for numbers that the server sees as they are."""
_WAYS: Final[Mapping[str, type[Ckks] | type[Pads]]] = {"ckks": Ckks, "batches": Batches, "pads": Pads}


def require(word: str, parameters: str) -> None:
    """ConfigError for parameters that this way of scoring cannot use."""
    if word != CLEAR:
        # Made and thrown away: what a way cannot use it refuses itself, in one place.
        _named(word)(parameters, 1, 1)


def scheme_of(word: str, *, parameters: str, asks: int, clients: int) -> LinearScheme | None:
    """The way of scoring of this word; None in the clear.

    Args:
        parameters: of the key, by name.
        asks: the most questions of the session. clients: the most clients that one goes to.

    Raises ConfigError for parameters that the way cannot use, and for an unknown word.
    """
    return None if word == CLEAR else _named(word)(parameters, asks, clients)


def key_holder_learns(word: str) -> str:
    """What the key holder learns of numbers that travel so, in words."""
    return "" if word == CLEAR else _named(word).key_holder_learns


def _named(word: str) -> type[Ckks] | type[Pads]:
    if word not in _WAYS:
        raise ConfigError(f"Expected scores among {', '.join((CLEAR, *_WAYS))}, got {word!r}.")
    return _WAYS[word]
