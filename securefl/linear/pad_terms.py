"""The public terms of one exchange under pads, and the scales and error bounds that follow from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import log2, sqrt
from typing import Final

from securefl.core.errors import ConfigError
from securefl.core.linear import LinearBounds
from securefl.he.parameters import GUARD, STRONG_ENCRYPTED, Parameters

PARAMETERS: Final[Parameters] = STRONG_ENCRYPTED
WORD_BITS: Final = 64
PLACE: Final = 16
KEY: Final = 32


@dataclass(frozen=True, kw_only=True)
class PadTerms:
    """The public terms of one exchange: the query's bounds, and one context (session, round, attempt).

    openings: the most sums that the key holder's key opens, in this context and others.

    Raises:
        ConfigError: a score inside the bounds could wrap mod 2^64, or no ciphertext holds a pad.
    """

    bounds: LinearBounds
    context: bytes
    openings: int

    def __post_init__(self) -> None:
        if self.openings < 1:
            raise ConfigError(f"Expected at least one opening, got {self.openings}.")
        if self.block < 1:
            raise ConfigError(
                f"Expected at most {PARAMETERS.poly_modulus_degree} masked integers of a client, got "
                f'{self.row}: profile a smaller layer, or take scores = "ckks".'
            )
        if min(self._data_bits, self.weight_bits) < 4:
            raise ConfigError(
                "Expected bounds that leave room for fractions of scores, got wider. Tighten them."
            )

    @property
    def row(self) -> int:
        """The number of masked integers of a client."""
        return self.bounds.hidden_length

    @cached_property
    def _room(self) -> int:
        """The bits of both scales together: those that the largest score and its sign leave of 2^64."""
        return int(WORD_BITS - 1 + log2(1 - GUARD) - log2(self.bounds.product))

    @cached_property
    def weight_bits(self) -> int:
        """log2 of s_w. It is larger for larger features, so that both roundings have the same effect."""
        # Whole bits, since scales that are powers of two cause no rounding.
        return int((self._room + log2(self.bounds.norm / self.bounds.weight_norm)) / 2)

    @property
    def _data_bits(self) -> int:
        return self._room - self.weight_bits

    @cached_property
    def data_scale(self) -> float:
        return 2.0**self._data_bits

    @cached_property
    def weight_scale(self) -> float:
        return 2.0**self.weight_bits

    @property
    def block(self) -> int:
        """The number of clients in one ciphertext of pads."""
        return PARAMETERS.poly_modulus_degree // self.row

    @cached_property
    def error_bound(self) -> float:
        """The largest |score - div| by rounding. It always holds."""
        own, weights = self.bounds.norm, self.bounds.weight_norm
        rounding = (own / self.weight_scale + weights / self.data_scale) * sqrt(self.row) / 2
        return (rounding + self.row / (4 * self.data_scale * self.weight_scale)) / self.bounds.scale

    @property
    def message_bytes(self) -> int:
        """Exact length of a client's message."""
        return PLACE + KEY + 8 * self.row

    @cached_property
    def digest(self) -> bytes:
        # The text has every field, so terms that differ in any field have other pads.
        return self.text().encode()

    def text(self) -> str:
        """Canonical text, from which keys of pads are derived. Its words and their order must not change."""
        return f"PadTerms(bounds={self.bounds.text()}, context={self.context!r}, openings={self.openings})"

    @cached_property
    def place(self) -> bytes:
        """16 bytes that name the terms."""
        return hashlib.sha256(b"securefl/pads/place/1|" + self.digest).digest()[:PLACE]
