"""Normal variates by the ziggurat algorithm (Marsaglia and Tsang, J. Stat. Softw. 5(8), 2000).

The density f(x) = exp(-x^2 / 2) is covered by 1,024 layers of equal area. A layer is a rectangle, from 0 to
its width. The lowest layer also has the tail beyond EDGE. A variate is a point under the density: a layer, a
place along it, and a height in it if the place alone does not decide. A point above the density is rejected
and drawn again. That is exact for any widths that are large enough, if the areas are equal:

- Each word gives a layer (10 bits), and a place and a sign (53 other bits). No bit is used twice.
- Places are 2^-52 of a layer's width apart, so below EDGE variates are 9e-16 apart or less.
- A variate of the tail inverts a probability of 117 bits. It ends at 13.28 deviations. A two-sided
  probability of less than 2^-132 lies beyond that.
- Heights are compared in float64. The density's relative error is at most 1e-13.

Each variate costs one word. Inverting a probability costs two words, and a sine and a cosine one and a half.
It takes a third of an inversion's time. The time of a draw reveals how many points were rejected.

On every machine a key gives the same variates below EDGE, since they are a product of a word with a table
that is the same everywhere. One variate in 18,000 lies beyond EDGE, and its last bit depends on the machine's
logarithm.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log, pi, sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

Words = Callable[[int], NDArray[np.uint64]]
"""Maps a count to that many fresh uniform words of 64 bits."""

LAYERS: Final = 1024
EDGE: Final = 4.0388
"""The beginning of the tail, a little below the value with which 1,024 layers would end at f(0)."""
BEYOND: Final = 2.6862674362355994e-05
"""The probability of a variate above EDGE. A literal, as f(EDGE) is, since machines' exponentials differ."""
_DENSITY: Final = 0.0002870217043933919
_AREA: Final = EDGE * _DENSITY + sqrt(2 * pi) * BEYOND
_GRID: Final = 2.0**40
_BLOCK: Final = 8192
_LAYER: Final = np.uint64(LAYERS - 1)


def _layers() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The layers' widths, and the heights at which they begin."""
    widths, heights = [_AREA / _DENSITY, EDGE], [0.0, _DENSITY]
    while len(widths) < LAYERS:
        heights.append(heights[-1] + _AREA / widths[-1])
        # Rounded up, so that the layer is wide enough, and that machines whose logarithms differ in the last
        # bit have one table. The height check rejects points in the excess width.
        widths.append(ceil(sqrt(-2 * log(heights[-1])) * _GRID) / _GRID)
    return np.array(widths), np.array(heights)


_WIDTH, _HEIGHT = _layers()
_THICKNESS: Final = _AREA / _WIDTH
_STEP: Final = _WIDTH * 2.0**-52
# Left of the next layer's width a point of any height is under the density. The next width was rounded up
# by at most one step of the grid; that of the lowest layer's neighbour, EDGE, was not.
_INNER: Final = np.floor(np.append(_WIDTH[1:] - np.append(0, np.full(LAYERS - 2, 2 / _GRID)), 0) / _STEP)


def normals(count: int, words: Words) -> NDArray[np.float64]:
    """`count` standard normal variates, float64 (count,)."""
    found = np.empty(count)
    places, layers = [], []
    # a block's arrays stay in the cache
    for start in range(0, count, _BLOCK):
        word = words(min(_BLOCK, count - start))
        layer = (word & _LAYER).view(np.int64)
        # The upper 53 bits, signed. Adding 0.5 makes the places symmetric about 0 and excludes 0.
        place = (word.view(np.int64) >> 11) + 0.5
        found[start : start + len(word)] = place * _STEP[layer]
        outside = np.flatnonzero(np.abs(place) > _INNER[layer])
        places.append(outside + start)
        layers.append(layer[outside])
    if any(map(len, places)):
        at = np.concatenate(places)
        found[at], kept = _decided(found[at], np.concatenate(layers), words)
        refused = at[~kept]
        found[refused] = normals(len(refused), words)
    return found


def _decided(
    points: NDArray[np.float64], layers: NDArray[np.int64], words: Words
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Variates for the points that need their height or the tail, and which of them are under the density."""
    share = (words(len(points)).astype(np.float64) + 0.5) * 2.0**-64
    under = _HEIGHT[layers] + share * _THICKNESS[layers] < np.exp(-np.square(points) / 2)
    tail = layers == 0
    variates = points.copy()
    variates[tail] = np.copysign(_tail(int(tail.sum()), words), points[tail])
    return variates, under | tail


def _tail(count: int, words: Words) -> NDArray[np.float64]:
    """`count` normal variates above EDGE."""
    # Here, since few draws are in the tail, and scipy takes longer to load than all else of `dp`.
    from scipy.special import ndtri

    # A uniform float64 has a least step of 2^-53: its inverse would end at 9.3 deviations, with gaps before.
    # So the probability has 53 bits of one word and 64 lower bits of another.

    high, low = words(2 * count).reshape(2, count)
    fraction = (low.astype(np.float64) + 0.5) * 2.0**-64
    probability = ((high >> np.uint64(11)).astype(np.float64) + fraction) * 2.0**-53
    found: NDArray[np.float64] = -ndtri(BEYOND * probability)
    return found
