"""The public terms of one exchange under pads, with the scales, the noise and the error bounds that follow.

**The rule.** An opened number carries noise so wide that no query tells more than its real-valued product.
The opened integer is S + n with S = <x, v>, x = round(s_x f), and n uniform on the whole numbers from -B to
B, where

    B = COVER ||v||_1

Let p = s_x <f, v>, the real-valued product of the vector. Then S + n is no further than

    (1 + 1 / ||v||_1) / (4 COVER),  about 1/16,

in total variation, from a number that follows from p alone (and from v, which the server chose).

Proof. |x_i - s_x f_i| <= 1/2, so |S - p| <= ||v||_1 / 2, and d = S - round(p) is a whole number with |d| <=
||v||_1 / 2 + 1/2. A shift by d moves uniform noise on 2 B + 1 numbers by |d| / (2 B + 1) in total variation.
The quotient is at most (||v||_1 + 1) / (4 COVER ||v||_1 + 2). v is not 0: `form` refuses that. QED.

It holds for every vector and every v, so for residues modulo any number, and for lattices: what these read of
S is in d. It is the worst case, in which all roundings conspire with v. If the roundings are like uniform
ones, d has a deviation of ||v||_2 / sqrt(12), and the distance is 0.4 % for 169 weights of one size. For k
numbers the distances add up at most. What p itself tells, the rule does not bound: that is the query's form
(`LinearBounds.spread`), and the number of releases.

Who adds n: in rounds the key holder, who knows v, and does not see S. It follows from the key of the pad, so
a request that is repeated has the same noise, and no key holder can lose its noise without its pads. Between
files the key holder reads S itself, so its own noise would hide nothing from it: the client adds n to its
message. It does not know v, so it takes the largest B of the bounds.

The noise is bounded, so an honest score is always within the error bound: no tail blames a client.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log2, sqrt
from typing import ClassVar, Final

import numpy as np

from securefl.core.errors import ConfigError
from securefl.core.formats import prefix
from securefl.core.linear import LinearBounds, LinearQuery
from securefl.linear import words
from securefl.linear.turn import wrong_weights
from securefl.linear.words import Words

WORD_BITS: Final = (64, 128)
"""The lengths that words may have. Their arithmetic is modulo 2 to this power."""
PLACE: Final = 16
KEY: Final = 32
SEED: Final = 32
DIGEST: Final = 32
SECRET: Final = 32
COVER: Final = 4
"""The noise's half width, in sums of the sizes of all weights. The rule above has what it hides."""
_FINEST: Final = 48
"""The most bits of s_x: a float64 below 16 has digits that are finer, or its own grid would be read."""
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

    commits: ClassVar[bytes] = b"weights"
    requests: ClassVar[str] = "pads/request"
    sign: ClassVar[int] = -1
    name_bytes: ClassVar[int] = KEY
    entry_bytes: ClassVar[int] = KEY

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
        if self.bounds.scale * self.error_bound > self.capacity - self.bounds.product:
            raise ConfigError(
                "Expected a product with room for the noise of its scores, got "
                f"{self.bounds.product:.3g}. Declare a larger product."
            )

    @property
    def row(self) -> int:
        """The number of masked words of a client."""
        return self.bounds.hidden_length

    @property
    def word_bytes(self) -> int:
        return self.word_bits // 8

    @property
    def answer_bytes(self) -> int:
        return self.word_bytes

    @property
    def weights_bytes(self) -> int:
        return self.word_bytes * self.row

    @property
    def modulus(self) -> int:
        return int(2**self.word_bits)

    @property
    def unit(self) -> float:
        return 1 / (self.data_scale * self.weight_scale)

    @cached_property
    def _room(self) -> int:
        """The bits of both scales together: those that the largest score and its sign leave of a word."""
        return int(self.word_bits - 1 + log2(1 - _GUARD) - log2(self.bounds.product))

    @cached_property
    def weight_bits(self) -> int:
        """log2 of s_w. It is such that both parts of the error bound are alike."""
        # Whole bits, since scales that are powers of two cause no rounding.
        apart = log2(self.bounds.norm / ((2 * COVER + 1) * self.bounds.weight_norm))
        return max(round((self._room + apart) / 2), self._room - _FINEST)

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
        """The largest |score - div| of any query, by rounding, noise and float64. It always holds."""
        step = sqrt(self.row) / (2 * self.weight_scale)
        return self._error(step, sqrt(self.row) * (self.bounds.weight_norm + step))

    def _error(self, apart: float, size: float) -> float:
        """The same of one query.

        Args:
            apart: the norm of the weights' rounding, ||w - v / s_w||_2.
            size: ||v||_1 / s_w.
        """
        opened = self.bounds.norm * apart + (COVER + 0.5) * size / self.data_scale
        return (opened + _FLOAT * self.bounds.product) / self.bounds.scale

    @cached_property
    def most_noise(self) -> int:
        """The largest B of any query: that of the noise that clients add between files."""
        return COVER * ceil(
            sqrt(self.row) * (self.bounds.weight_norm * self.weight_scale + sqrt(self.row) / 2)
        )

    @property
    def message_bytes(self) -> int:
        """Exact length of a client's message."""
        dealt = SEED + self.word_bytes if self.dealt else 0
        return PLACE + KEY + dealt + self.word_bytes * self.row

    @cached_property
    def digest(self) -> bytes:
        """Canonical text, from which keys of pads are derived: terms that differ have other pads."""
        text = f"PadTerms(bounds={self.bounds.text()}, context={self.context.hex()}, "
        return f"{text}word_bits={self.word_bits}, dealt={self.dealt})".encode()

    @cached_property
    def place(self) -> bytes:
        """16 bytes that name the terms."""
        return hashlib.sha256(prefix("pads/place") + self.digest).digest()[:PLACE]

    # What a turn asks of its terms (`turn.Terms`) -----------------------------------------------------

    def encoded(self, query: LinearQuery) -> Words:
        """A query's weights as words. Raises ConfigError for other bounds, or weights outside them."""
        if query.bounds != self.bounds:
            raise ConfigError("Expected a query with the bounds of its pads, got one with other bounds.")
        scaled = np.rint(query.row(encrypted=False) * self.weight_scale)
        weights = words.from_floats(scaled, self.word_bits)
        if (wrong := self.form(weights)) is not None:
            raise ConfigError(f"{wrong} Use a public anchor nearer to the baseline, or wider bounds.")
        return weights

    def packed(self, weights: Words) -> bytes:
        return words.packed(weights)

    def unpacked(self, raw: bytes) -> Words:
        return words.unpacked(raw, self.word_bits)

    def form(self, weights: Words) -> str | None:
        """Why these words are the weights of no query inside the bounds. None if they may be."""
        bounds, scale = self.bounds, self.weight_scale
        values = words.to_floats(weights) / scale
        longest = bounds.weight_norm + np.sqrt(self.row) / (2 * scale)
        if not float(np.linalg.norm(values)) <= longest * (1 + 1e-9):
            return f"Expected weights of norm up to {bounds.weight_norm:.3g}, got longer ones."
        # A step of rounding, and what float64 cannot tell apart.
        return wrong_weights(values, bounds, lambda size: 1 / scale + 1e-12 * size)

    def factors(self, weights: Words) -> Words:
        return weights

    def short(self, entry: bytes) -> bytes:
        return entry

    def reply_tag(self, key: bytes) -> bytes:
        return b""

    def error_of(self, query: LinearQuery, weights: Words) -> float:
        """The largest error of this query's scores, with the noise. It always holds."""
        scale = self.weight_scale
        apart = float(np.linalg.norm(query.hidden - words.to_floats(weights) / scale))
        return self._error(apart, words.total(weights) / scale)
