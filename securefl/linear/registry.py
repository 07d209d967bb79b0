"""The scheme that a word of `[privacy] scores` stands for."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import TYPE_CHECKING, Final

from securefl.core.errors import ConfigError

if TYPE_CHECKING:
    from securefl.linear.checked import CheckedCkks
    from securefl.linear.pads import Pads
    from securefl.linear.scheme import LinearScheme

    Kind = type[CheckedCkks] | type[Pads]

CLEAR: Final = "clear"
"""The value of `scores` if the server sees the clients' vectors."""
_WORDS: Final = (CLEAR, "ckks", "pads")
_LEFT_OPEN: Final[Mapping[str, float]] = {"pads": 1.56e-6, "ckks": 2.4e-11}
"""What two opposite queries leave open of one entry of a short vector: noise, in units of the anchor."""


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
        "who takes part, and the weights of each query, such as the server's baseline"

    Args:
        word: the value of `[privacy] scores`.
        parameters: the name of the key's parameters.
        asks: the most queries of the session.
        clients: the most clients of one query.

    Raises:
        ConfigError: an unknown word, or parameters that the scheme cannot use.
    """
    if word == CLEAR:
        return None
    return _named(word)(parameters, asks, clients)


def key_holder_learns(word: str) -> str:
    """What the key holder learns of the numbers under this scheme, in words."""
    return "" if word == CLEAR else _named(word).key_holder_learns


def limit(word: str) -> str:
    """What a server that breaks the protocol learns beyond the declared number. Empty: nothing."""
    return "" if word == CLEAR else _named(word).limit


def left_open(word: str, releases: int) -> float:
    """To how much of the anchor's unit legal queries can read one entry of a vector, at worst.

    It is the noise of their scores, averaged. One query reads as much where the other entries tell nothing:
    under a model that the server crafts, and of few elements. It is the least of all lengths, of profiles
    under the default bounds or wider ones. What is left open in profiles of honest models is more
    (benchmarks/legal_queries.py).

        >>> from securefl.linear.registry import left_open
        >>> left_open("pads", 1) > left_open("pads", 2) > left_open("ckks", 1)
        True

    Args:
        word: the value of `[privacy] scores`, not in the clear.
        releases: the number of scores, on one vector.
    """
    return _LEFT_OPEN[word] * sqrt(2 / releases)


def _named(word: str) -> Kind:
    # Each scheme is imported where a plan has it: pads need no homomorphic library, and most studies neither.
    match word:
        case "ckks":
            from securefl.linear.checked import CheckedCkks

            return CheckedCkks
        case "pads":
            from securefl.linear.pads import Pads

            return Pads
    raise ConfigError(f"Expected scores among {', '.join(_WORDS)}, got {word!r}.")
