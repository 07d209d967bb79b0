"""The scheme that a word of `[privacy] scores` stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from securefl.core.errors import ConfigError
from securefl.linear.ckks import Ckks
from securefl.linear.isolation import Batches
from securefl.linear.padded import DealtPads, Pads
from securefl.linear.scheme import LinearScheme

CLEAR: Final = "clear"
"""The value of `scores` if the server sees the clients' vectors."""
_WAYS: Final[Mapping[str, type[Ckks] | type[Pads]]] = {
    "ckks": Ckks,
    "batches": Batches,
    "pads": Pads,
    "dealt-pads": DealtPads,
}


def require(word: str, parameters: str) -> None:
    """Raises ConfigError for parameters that this scheme cannot use."""
    if word != CLEAR:
        # Made and discarded: each scheme refuses unusable parameters itself, in one place.
        _named(word)(parameters, 1, 1)


def scheme_of(word: str, *, parameters: str, asks: int, clients: int) -> LinearScheme | None:
    """The scheme of this word for the numbers of linear queries. None in the clear.

        >>> from securefl.linear import scheme_of
        >>> scheme_of("clear", parameters="strong", asks=1, clients=10) is None
        True
        >>> scheme_of("ckks", parameters="strong", asks=1, clients=10).key_holder_learns
        'blinded integers, uniform to it'

    Args:
        word: the value of `[privacy] scores`.
        parameters: the name of the key's parameters.
        asks: the most queries of the session.
        clients: the most clients of one query.

    Raises:
        ConfigError: an unknown word, or parameters that the scheme cannot use.
    """
    return None if word == CLEAR else _named(word)(parameters, asks, clients)


def key_holder_learns(word: str) -> str:
    """What the key holder learns of the numbers under this scheme, in words."""
    return "" if word == CLEAR else _named(word).key_holder_learns


def _named(word: str) -> type[Ckks] | type[Pads]:
    if word not in _WAYS:
        raise ConfigError(f"Expected scores among {', '.join((CLEAR, *_WAYS))}, got {word!r}.")
    return _WAYS[word]
