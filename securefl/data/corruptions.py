"""Low-quality clients on purpose: noisy, polluted, irrelevant, blurred and salt-and-pepper data.

Kinds and default strengths are those of FedProf (arXiv:2102.01733v2, section 5). Every function returns
new arrays and leaves its arguments alone. Images are float32 (n, channels, height, width) in [0, 1].

No corruption reads a statistic over records. Each record is spoilt by itself, by public settings and a public
seed. Privacy is promised for the record that the client then holds.

Pieces of two photographs are images that are unrelated to every task here, and need no download.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, zoom

from securefl.core.errors import ConfigError
from securefl.data.dataset import Dataset
from securefl.data.sources import load

Quality = Literal["clean", "noisy", "polluted", "irrelevant", "blurred", "pixel"]
Floats = NDArray[np.float32]

PHOTOGRAPHS = "photographs"
"""An `irrelevant_source` that needs no download: pieces of the two photographs in scikit-learn."""

_SPOILT: tuple[Quality, ...] = ("noisy", "polluted", "irrelevant", "blurred", "pixel")


def sensor_noise(x: Floats, *, deviation: float = 0.1, rng: np.random.Generator) -> Floats:
    """Features plus independent noise from N(0, deviation^2); not clipped."""
    _real(x)
    return (x + rng.normal(0.0, deviation, x.shape)).astype(np.float32)


def polluted(x: Floats, rng: np.random.Generator) -> Floats:
    """Features replaced by draws from U(-1, 1): nothing of the record is left."""
    _real(x)
    return rng.uniform(-1.0, 1.0, x.shape).astype(np.float32)


def irrelevant(dataset: Dataset, other: Dataset, rng: np.random.Generator) -> Dataset:
    """As many random records of `other`, in the shape of `dataset`, with uniformly random labels.

    Sizes are matched bilinearly; colour becomes grey by its mean, grey becomes colour by repetition.
    Records are drawn without replacement while `other` has enough.
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
        factors = (1.0, 1.0, height / images.shape[2], width / images.shape[3])
        images = zoom(images, factors, order=1)
    return np.asarray(images, np.float32)


def blurred(x: Floats, *, sigma: float = 2.0) -> Floats:
    """Each channel of each image under a Gaussian filter of standard deviation `sigma` pixels.

    Beyond its border an image goes on as its mirror image, so that its mean brightness stays.
    """
    _image(x)
    return np.asarray(gaussian_filter(x, sigma=(0, 0, sigma, sigma), mode="reflect"), np.float32)


def salt_and_pepper(x: Floats, *, density: float = 0.3, rng: np.random.Generator) -> Floats:
    """Each pixel white with probability density / 2, black with density / 2, else as it was.

    All channels of a pixel turn together: the dots are black and white on colour images too.
    """
    _image(x)
    # one draw decides for both colours, so that a pixel cannot be both
    fate = rng.random((len(x), 1, *x.shape[2:]))
    dotted = np.where(fate < density, np.float32(0), x)
    return np.where(fate < density / 2, np.float32(1), dotted).astype(np.float32)


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


MOST_NOISE = 1e6
"""Far above the scale of any record. Its square still fits into float32."""
MOST_BLUR = 100
"""Pixels: images here have at most 32, and the kernel is eight times as wide."""


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """Which shares of the clients hold spoilt data, and how badly spoilt.

    noisy, polluted, irrelevant, blurred, pixel: shares of the clients, in [0, 1], at most 1 together. The
        other clients are clean.
    noise_deviation: of `sensor_noise`. blur_sigma: of `blurred`, in pixels. pixel_density: of
        `salt_and_pepper`.
    irrelevant_source: name of the data set that irrelevant records come from, or "photographs".

    Raises ValueError for a share or strength out of range, or a share `irrelevant` without a source.
    """

    noisy: float = 0.0
    polluted: float = 0.0
    irrelevant: float = 0.0
    blurred: float = 0.0
    pixel: float = 0.0
    noise_deviation: float = 0.1
    blur_sigma: float = 2.0
    pixel_density: float = 0.3
    irrelevant_source: str | None = None

    def __post_init__(self) -> None:
        for name in (*_SPOILT, "pixel_density"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"Expected {name} from 0 to 1, got {name}={getattr(self, name)}.")
        if not 0 < self.noise_deviation <= MOST_NOISE:
            raise ValueError(
                f"Expected 0 < noise_deviation <= {MOST_NOISE:g}, got noise_deviation={self.noise_deviation}."
            )
        if not 0 < self.blur_sigma <= MOST_BLUR:
            raise ValueError(f"Expected 0 < blur_sigma <= {MOST_BLUR}, got blur_sigma={self.blur_sigma}.")
        total = sum(self._shares())
        # shares such as 0.1 + 0.2 + 0.7 may sum to a little more than 1 in floats
        if total > 1 + 1e-9:
            raise ValueError(f"Expected shares of corrupted clients that sum to at most 1, got {total:g}.")
        if (self.irrelevant > 0) != (self.irrelevant_source is not None):
            raise ValueError(
                "Expected irrelevant_source (a data set, or 'photographs') exactly if irrelevant > 0, got "
                f"irrelevant={self.irrelevant}, irrelevant_source={self.irrelevant_source!r}."
            )

    def _shares(self) -> tuple[float, ...]:
        return (self.noisy, self.polluted, self.irrelevant, self.blurred, self.pixel)

    def assign(self, clients: int, rng: np.random.Generator) -> tuple[Quality, ...]:
        """The quality of each client's data: exact counts at random places.

        Counts are share * clients rounded by largest remainder, clean clients included, so that they
        sum to `clients` and each is within one of its share.
        """
        shares = self._shares()
        wanted = np.array([*shares, max(0.0, 1 - sum(shares))]) * clients
        counts = np.floor(wanted).astype(np.int64)
        # a stable sort, so that equal remainders go to the first kinds, on every machine
        most_cut = np.argsort(-(wanted - counts), kind="stable")
        counts[most_cut[: clients - counts.sum()]] += 1
        words: tuple[Quality, ...] = (*_SPOILT, "clean")
        dealt = rng.permutation(np.repeat(np.arange(len(words)), counts))
        return tuple(words[code] for code in dealt)

    def apply(
        self, dataset: Dataset, quality: Quality, rng: np.random.Generator, other: Dataset | None = None
    ) -> Dataset:
        """One client's records, spoilt as `quality` says. "clean" returns them as they are.

        other: the records of `unrelated`. Only "irrelevant" needs them.
        """
        x = dataset.x
        match quality:
            case "clean":
                return dataset
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


def unrelated(
    config: Corruption,
    dataset: Dataset,
    rng: np.random.Generator,
    *,
    folder: Path | None = None,
    download: bool = False,
) -> Dataset | None:
    """The source of irrelevant records for `dataset`, or None if the configuration has none.

    "photographs" gives as many pieces as `dataset` has records, in its shape. Another name gives the training
    part of that data set, found as `load` does. Raises ConfigError if source and data set are the same.
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
    return load(source, folder=folder, download=download).train


# Pieces of two photographs ---------------------------------------------------------------------------


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
