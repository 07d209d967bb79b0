"""Pieces of two photographs: images that are unrelated to every task here, and need no download."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from securefl.data.dataset import Dataset

MOST_SHRUNK = 8


def photographs(count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Dataset:
    """`count` random pieces of scikit-learn's china.jpg and flower.jpg as images of `shape`.

    shape: (1 or 3, height, width), sides at most 213 pixels. Each piece is cut out at up to eight times its
    size, as the photograph (427 x 640) allows, and shrunk by block means. Grey is the mean colour. All labels
    are 0, of one class.
    """
    from sklearn.datasets import load_sample_image  # a second to import, and rarely needed

    pictures = [load_sample_image(name).astype(np.float32) / 255 for name in ("china.jpg", "flower.jpg")]
    images = [_piece(pictures[int(rng.integers(2))], shape, rng) for _ in range(count)]
    return Dataset(
        name="photographs",
        x=np.stack(images) if images else np.empty((0, *shape), np.float32),
        y=np.zeros(count, np.int64),
        classes=1,
    )


def _piece(
    picture: NDArray[np.float32], shape: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float32]:
    channels, height, width = shape
    most = min(MOST_SHRUNK, picture.shape[0] // height, picture.shape[1] // width)
    factor = int(rng.integers(1 + most // 2, most + 1))
    top = int(rng.integers(picture.shape[0] - factor * height + 1))
    left = int(rng.integers(picture.shape[1] - factor * width + 1))
    cut = picture[top : top + factor * height, left : left + factor * width]
    small = cut.reshape(height, factor, width, factor, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
    return np.asarray(small.mean(axis=0, keepdims=True) if channels == 1 else small, np.float32)
