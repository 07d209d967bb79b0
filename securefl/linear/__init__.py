"""One number per client: an inner product of its vector with the server's weights (`core.linear`).

Ways of scoring, behind one interface (`way`); in the clear the exchange takes the number itself:

ckks        one ciphertext a client, opened alone
isolation   batches: K clients in one opening, singly where one of them spoils it
padded      pads: masked integers, for clients without a homomorphic library

Their parts:

terms       what is declared in public, and what follows from it
encryptor   values to ciphertexts
evaluator   the server's part, and why nobody learns more than the output
opener      the key holder's part, blindly, and its machine, whatever the way
batches     slot classes: many clients in one ciphertext
pads        client and key holder under pads; `pad_terms` are theirs, `pad_evaluator` is the server's part
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from securefl.core.errors import ConfigError
from securefl.linear.ckks import Ckks
from securefl.linear.isolation import Batches
from securefl.linear.opener import KeyHolder
from securefl.linear.padded import Pads
from securefl.linear.scheme import Asked, Found, LinearScheme, Questions, Scoring, Sent

__all__ = [
    "Asked",
    "Found",
    "KeyHolder",
    "Questions",
    "Scoring",
    "Sent",
    "Way",
    "key_holder_learns",
    "require",
    "way_of",
]

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
