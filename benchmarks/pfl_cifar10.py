"""CIFAR-10 as 192 numbers an image: the records of `securefl sweep benchmarks/pfl_cifar10.toml`.

Colours are scaled by the means and deviations that are published for CIFAR-10, and averaged over squares of
4 x 4 pixels. No statistic of the records is computed here.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from securefl.data import load

MEANS: Final = np.reshape((0.4914, 0.4822, 0.4465), (3, 1, 1))
DEVIATIONS: Final = np.reshape((0.2470, 0.2435, 0.2616), (3, 1, 1))
_SQUARE: Final = 4
"""The side of a square of pixels that become one number, which divides 32."""


@cache
def pooled() -> dict[str, tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """The records x (n, 192) and labels y (n,), for "train" and "test".

    Raises DataError without the files of CIFAR-10.
    """
    split, found = load("cifar10"), {}
    for name, part in (("train", split.train), ("test", split.test)):
        squares = part.x.reshape(len(part), 3, 32 // _SQUARE, _SQUARE, 32 // _SQUARE, _SQUARE)
        scaled = (squares.mean(axis=(3, 5)) - MEANS) / DEVIATIONS
        found[name] = scaled.reshape(len(part), -1).astype(np.float32), part.y
    return found
