"""Data corruption that makes some clients low-quality: noisy, polluted, irrelevant, blurred, salt-and-pepper.

Kinds and default strengths are those of FedProf (arXiv:2102.01733v2, section 5). Every function returns new
arrays and does not change its arguments. Images are float32 (n, channels, height, width) in [0, 1].

No corruption reads a statistic of several records. Each record is corrupted on its own, from public settings
and a public seed. The privacy guarantee holds for the corrupted record that the client then has.

`photographs` provides images that are unrelated to every packaged task. They need no download.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import ConfigError
from securefl.core.ranges import Probability, Range, Ranged
from securefl.data.dataset import Dataset
from securefl.data.sources import load

Quality = Literal[
    "clean",
    "noisy",
    "polluted",
    "irrelevant",
    "blurred",
    "pixel",
    "flipped",
    "reversed",
    "scaled",
    "oversized",
    "two-faced",
]
Floats = NDArray[np.float32]

PHOTOGRAPHS = "photographs"
"""An `irrelevant_source` that needs no download: pieces of the two photographs in scikit-learn."""

_SPOILT: Final[tuple[Quality, ...]] = tuple(kind for kind in get_args(Quality) if kind != "clean")
LYING: Final[tuple[Quality, ...]] = ("reversed", "scaled", "oversized", "two-faced")
"""Clients whose records are clean, and whose updates are not what they trained (`study.lying`)."""


def sensor_noise(x: Floats, *, deviation: float = 0.1, rng: np.random.Generator) -> Floats:
    """Add independent noise from N(0, deviation^2) to each feature. The result is not clipped."""
    _real(x)
    return (x + rng.normal(0.0, deviation, x.shape)).astype(np.float32)


def polluted(x: Floats, rng: np.random.Generator) -> Floats:
    """Replace all features by draws from U(-1, 1). The result is independent of the record."""
    _real(x)
    return rng.uniform(-1.0, 1.0, x.shape).astype(np.float32)


def irrelevant(dataset: Dataset, other: Dataset, rng: np.random.Generator) -> Dataset:
    """Replace the records of `dataset` by random images of `other` with uniformly random labels.

    Images are resized bilinearly. Colour becomes grey by its mean, grey becomes colour by repetition. Records
    are drawn without replacement if `other` has enough of them.
    """
    _image(dataset.x)
    _image(other.x)
    if not dataset.classes:
        raise ConfigError(
            f"Expected classes to draw labels of irrelevant records from, got {dataset.name!r} without any. "
            "Take another corruption."
        )
    if not len(other):
        raise ConfigError(f"Expected records in {other.name!r} to draw irrelevant ones from, got none.")
    n = len(dataset)
    drawn = other.x[rng.choice(len(other), n, replace=n > len(other))]
    labels = rng.integers(dataset.classes, size=n, dtype=np.int64)
    return replace(dataset, x=_shaped(drawn, dataset.shape), y=labels)


def _shaped(images: Floats, shape: tuple[int, ...]) -> Floats:
    channels, height, width = shape
    if images.shape[1] != channels:
        images = np.repeat(images.mean(axis=1, keepdims=True), channels, axis=1)
    if images.shape[2:] != (height, width):
        from scipy.ndimage import zoom  # late: it takes a fifth of a second to import, and is rarely needed

        factors = (1.0, 1.0, height / images.shape[2], width / images.shape[3])
        images = zoom(images, factors, order=1)
    return np.asarray(images, np.float32)


def blurred(x: Floats, *, sigma: float = 2.0) -> Floats:
    """Apply a Gaussian filter of standard deviation `sigma` pixels to each channel of each image.

    An image is mirrored at its border, which keeps its mean brightness.
    """
    from scipy.ndimage import gaussian_filter  # late, as above

    _image(x)
    return np.asarray(gaussian_filter(x, sigma=(0, 0, sigma, sigma), mode="reflect"), np.float32)


def salt_and_pepper(x: Floats, *, density: float = 0.3, rng: np.random.Generator) -> Floats:
    """Turn each pixel white with probability density / 2, black with density / 2, and keep it otherwise.

    All channels of a pixel change together: the dots are black or white on colour images too.
    """
    _image(x)
    # One draw decides both colours. Two draws could make a pixel white and black.
    fate = rng.random((len(x), 1, *x.shape[2:]))
    dotted = np.where(fate < density, np.float32(0), x)
    return np.where(fate < density / 2, np.float32(1), dotted).astype(np.float32)


def flipped(dataset: Dataset) -> Dataset:
    """Replace each label y of C classes by C - 1 - y (Fang et al. 2020)."""
    if not dataset.classes:
        raise ConfigError(
            f"Expected classes whose labels can be flipped, got {dataset.name!r} without any. Take another "
            "corruption."
        )
    return replace(dataset, y=dataset.classes - 1 - dataset.y)


def _real(x: NDArray[Any]) -> None:
    if not np.issubdtype(x.dtype, np.floating):
        raise ConfigError(
            f"Expected real-valued records for this corruption, got text codes ({x.dtype}). Take other data."
        )


def _image(x: NDArray[Any]) -> None:
    _real(x)
    if x.ndim != 4:
        raise ConfigError(
            "Expected images (n, channels, height, width) for this corruption, got records of shape "
            f"{x.shape}."
        )


@dataclass(frozen=True, kw_only=True)
class Corruption(Ranged):
    """The shares of clients with corrupted data or updates, and the strength of each corruption.

    >>> from securefl.data import Corruption
    >>> import numpy as np
    >>> sorted(Corruption(noisy=0.2, blurred=0.1).assign(10, np.random.default_rng(0)))[:4]
    ['blurred', 'clean', 'clean', 'clean']

    Args:
        noisy, polluted, irrelevant, blurred, pixel, flipped, reversed, scaled, oversized, two_faced: Shares
            of the clients, in [0, 1], at most 1 together. The other clients are clean. A flipped client has
            label C - 1 - y in place of y. A reversed one trains its update with the other sign, a scaled one
            `scale_factor` times its update; both then follow the protocol. An oversized one sends
            `scale_factor` times the value that the protocol bounds. A two-faced one has its own update
            scored, and sends the reversed one to the sum.
        noise_deviation: Standard deviation of `sensor_noise`.
        blur_sigma: Standard deviation of the filter of `blurred`, in pixels.
        pixel_density: Share of pixels that `salt_and_pepper` changes.
        scale_factor: What a scaled or oversized client multiplies by.
        irrelevant_source: Name of the data set that supplies irrelevant records, or "photographs".

    Raises:
        ValueError: A share or strength is out of range, or exactly one of `irrelevant` and its source is set.
    """

    noisy: Probability = 0.0
    polluted: Probability = 0.0
    irrelevant: Probability = 0.0
    blurred: Probability = 0.0
    pixel: Probability = 0.0
    flipped: Probability = 0.0
    reversed: Probability = 0.0
    scaled: Probability = 0.0
    oversized: Probability = 0.0
    two_faced: Probability = 0.0
    # 10^6 is far above the scale of any record, and its square still fits into float32.
    noise_deviation: Annotated[float, Range("(0, 10^6]")] = 0.1
    # In pixels. Packaged images have sides of at most 32; the kernel is eight times as wide.
    blur_sigma: Annotated[float, Range("(0, 100]")] = 2.0
    pixel_density: Probability = 0.3
    scale_factor: Annotated[float, Range("(0, 10^6]")] = 10.0
    irrelevant_source: str | None = None

    def refusals(self) -> Iterator[str]:
        total = sum(self._shares())
        # In floats, shares such as 0.1 + 0.2 + 0.7 may sum to slightly more than 1.
        if total > 1 + 1e-9:
            yield f"Expected shares of corrupted clients that sum to at most 1, got {total:g}."
        if (self.irrelevant > 0) != (self.irrelevant_source is not None):
            yield (
                "Expected irrelevant_source (a data set, or 'photographs') exactly if irrelevant > 0, got "
                f"irrelevant={self.irrelevant}, irrelevant_source={self.irrelevant_source!r}."
            )

    @property
    def lying(self) -> tuple[str, ...]:
        """The keys of clients that lie about their updates, of those whose share is above 0."""
        keys = [kind.replace("-", "_") for kind in LYING]
        return tuple(key for key in keys if getattr(self, key) > 0)

    def _shares(self) -> tuple[float, ...]:
        return tuple(getattr(self, name.replace("-", "_")) for name in _SPOILT)

    def assign(self, clients: int, rng: np.random.Generator) -> tuple[Quality, ...]:
        """Assign a quality to each client: the counts are exact, their places random.

        Counts are share * clients, rounded by largest remainder with clean clients included. So they sum to
        `clients`, and each is within one of its share.
        """
        shares = self._shares()
        wanted = np.array([*shares, max(0.0, 1 - sum(shares))]) * clients
        counts = np.floor(wanted).astype(np.int64)
        # A stable sort gives equal remainders to the first kinds on every machine.
        most_cut = np.argsort(-(wanted - counts), kind="stable")
        counts[most_cut[: clients - counts.sum()]] += 1
        words: tuple[Quality, ...] = (*_SPOILT, "clean")
        dealt = rng.permutation(np.repeat(np.arange(len(words)), counts))
        return tuple(words[code] for code in dealt)

    def apply(
        self, dataset: Dataset, quality: Quality, rng: np.random.Generator, other: Dataset | None = None
    ) -> Dataset:
        """Corrupt one client's records by the corruption `quality`. "clean" returns them unchanged.

        other: the data set that `unrelated` returns. Only "irrelevant" needs it.

        Raises ConfigError if the records do not suit the corruption, or if "irrelevant" lacks `other`.
        """
        x = dataset.x
        match quality:
            case "clean" | "reversed" | "scaled" | "oversized" | "two-faced":
                return dataset
            case "flipped":
                return flipped(dataset)
            case "noisy":
                return replace(dataset, x=sensor_noise(x, deviation=self.noise_deviation, rng=rng))
            case "polluted":
                return replace(dataset, x=polluted(x, rng))
            case "blurred":
                return replace(dataset, x=blurred(x, sigma=self.blur_sigma))
            case "pixel":
                return replace(dataset, x=salt_and_pepper(x, density=self.pixel_density, rng=rng))
            case "irrelevant":
                if other is None:
                    raise ConfigError(
                        "Expected another data set for irrelevant records, got none. Pass `unrelated(...)`."
                    )
                return irrelevant(dataset, other, rng)
            case _:
                assert_never(quality)


def unrelated(config: Corruption, dataset: Dataset, rng: np.random.Generator) -> Dataset | None:
    """The data set that supplies irrelevant records for `dataset`, or None if the configuration names none.

    "photographs" gives as many pieces as `dataset` has records, in its shape. Another name gives the training
    part of that data set, which `load` reads. Raises ConfigError if source and data set are the same.
    """
    source = config.irrelevant_source
    if source is None:
        return None
    if source == PHOTOGRAPHS:
        _image(dataset.x)
        return photographs(len(dataset), dataset.shape, rng)
    if source == dataset.name:
        raise ConfigError(
            f"Expected another data set as irrelevant_source, got {source!r}, which is the data set itself. "
            "Name another."
        )
    return load(source).train


# Pieces of two photographs ---------------------------------------------------------------------------


MOST_SHRUNK = 8


def photographs(count: int, shape: tuple[int, ...], rng: np.random.Generator) -> Dataset:
    """`count` random pieces of scikit-learn's china.jpg and flower.jpg as images of `shape`.

    shape: (1 or 3, height, width), sides at most 213 pixels. Each piece is cut out at up to eight times its
    size, if the photograph (427 x 640) is large enough, and shrunk by block means. Grey is the mean colour.
    There is one class: all labels are 0.
    """
    from sklearn.datasets import load_sample_image  # takes a second to import and is rarely needed

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
