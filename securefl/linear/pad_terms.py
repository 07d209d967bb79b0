"""The public terms of one exchange under pads, and the scales and error bounds that follow from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import log2, sqrt
from typing import Final

from securefl.core.errors import ConfigError
from securefl.core.linear import LinearBounds
from securefl.core.signing import SIGNATURE_BYTES

WORD_BITS: Final = (64, 128)
"""The lengths that words may have. Their arithmetic is modulo 2 to this power."""
PLACE: Final = 16
KEY: Final = 32
INDEX: Final = 4
SALT: Final = 32
SEED: Final = 32
DIGEST: Final = 32
_FLOAT: Final = 2.0**-51
"""How far float64 moves a product of the largest size, with a margin. It counts under long words alone."""
_GUARD: Final = 1 / 8
"""The share of the words' range that stays free above the largest product, for rounding."""


@dataclass(frozen=True, kw_only=True)
class PadTerms:
    """The public terms of one exchange: the query's bounds, one context (session, place), and the words.

    dealt: whether the key holder gets shares of the weights (`linear.addressed_pads`) and not the weights.
    Files do that unless the baseline was declared.

    Raises:
        ConfigError: another length of words, or a score or an entry inside the bounds could wrap.
    """

    bounds: LinearBounds
    context: bytes
    word_bits: int = 64
    dealt: bool = False

    def __post_init__(self) -> None:
        if self.word_bits not in WORD_BITS:
            raise ConfigError(f"Expected words of 64 or 128 bits, got {self.word_bits}.")
        if min(self.data_bits, self.weight_bits) < 4:
            raise ConfigError(
                "Expected bounds that leave room for fractions of scores, got wider. Tighten them, or take "
                "words of 128 bits."
            )
        largest = (1 - _GUARD) * 2.0 ** (self.word_bits - 1)
        own = max(self.bounds.norm * self.data_scale, self.bounds.weight_norm * self.weight_scale)
        if own > largest:
            raise ConfigError(
                f"Expected a product nearer to the norms, got {self.bounds.product:.3g} for norms up to "
                f"{self.bounds.norm:.3g} and {self.bounds.weight_norm:.3g}: with the scales that follow, one "
                "entry is longer than a word. Declare a larger product."
            )

    @property
    def row(self) -> int:
        """The number of masked words of a client."""
        return self.bounds.hidden_length

    @property
    def word_bytes(self) -> int:
        return self.word_bits // 8

    @cached_property
    def _room(self) -> int:
        """The bits of both scales together: those that the largest score and its sign leave of a word."""
        return int(self.word_bits - 1 + log2(1 - _GUARD) - log2(self.bounds.product))

    @cached_property
    def weight_bits(self) -> int:
        """log2 of s_w. It is larger for larger features, so that both roundings have the same effect."""
        # Whole bits, since scales that are powers of two cause no rounding.
        return int((self._room + log2(self.bounds.norm / self.bounds.weight_norm)) / 2)

    @property
    def data_bits(self) -> int:
        """log2 of s_x."""
        return self._room - self.weight_bits

    @cached_property
    def data_scale(self) -> float:
        return 2.0**self.data_bits

    @cached_property
    def weight_scale(self) -> float:
        return 2.0**self.weight_bits

    @property
    def capacity(self) -> float:
        """The largest |<hidden, w>| plus a constant that cannot wrap."""
        return float(2.0 ** (self.word_bits - 1 - self._room))

    @cached_property
    def error_bound(self) -> float:
        """The largest |score - div| by rounding to words and by float64. It always holds."""
        own, weights = self.bounds.norm, self.bounds.weight_norm
        rounding = (own / self.weight_scale + weights / self.data_scale) * sqrt(self.row) / 2
        rounding += self.row / (4 * self.data_scale * self.weight_scale)
        return (rounding + _FLOAT * self.bounds.product) / self.bounds.scale

    @property
    def message_bytes(self) -> int:
        """Exact length of a client's message."""
        dealt = SEED + self.word_bytes if self.dealt else 0
        return PLACE + KEY + dealt + self.word_bytes * self.row

    def request_bytes(self, clients: int) -> int:
        """Exact length of a request for the sums of this many clients. Dealt ones have none."""
        return INDEX + SALT + self.word_bytes * self.row + KEY * clients + SIGNATURE_BYTES

    @cached_property
    def digest(self) -> bytes:
        # The text has every field, so terms that differ in any field have other pads.
        return self.text().encode()

    def text(self) -> str:
        """Canonical text, from which keys of pads are derived. Its words and their order must not change."""
        return (
            f"PadTerms/2(bounds={self.bounds.text()}, weights={self.bounds.weights_text()}, "
            f"context={self.context.hex()}, word_bits={self.word_bits}, dealt={self.dealt})"
        )

    @cached_property
    def place(self) -> bytes:
        """16 bytes that name the terms."""
        return hashlib.sha256(b"securefl/pads/place/2|" + self.digest).digest()[:PLACE]
