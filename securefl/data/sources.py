"""Load a packaged data set by name: digits, MNIST, Fashion-MNIST, CIFAR-10, gas turbine, QMNIST, Shakespeare.

| name | records | targets | groups | split |
|---|---|---|---|---|
| `digits` | 1,797 images (1, 8, 8) | 10 classes | - | seeded, stratified, 30 % test |
| `mnist` | images (1, 28, 28) | 10 classes | - | the authors': 60,000 and 10,000 |
| `fashion_mnist` | images (1, 28, 28) | 10 classes | - | the authors' |
| `cifar10` | images (3, 32, 32) | 10 classes | - | the authors': 50,000 and 10,000 |
| `gas_turbine` | 36,733 rows of 9 sensors | CO, NOX | - | seeded, 30 % test |
| `qmnist` | the images of `mnist` | 10 classes | writers | the authors': no writer is in both |
| `shakespeare` | 80 characters, int64 codes | the next of 65 | roles | seeded, 20 % of each role |

Records are prepared by public constants: pixels are divided by one, sensors are scaled by published ranges.
A file is read after its SHA-256 equals the pinned one (`files.verified`), so its format needs no other check.
`shakespeare` computes its vocabulary and roles from the whole text, which `Dataset.fitted` states. A seeded
split is drawn over the positions of all records, and is stratified if the table says so. With `sides`, the
content of each record of `digits` and `gas_turbine` decides its part instead: removing one record then moves
no other.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.streams import stream
from securefl.data import shakespeare
from securefl.data.dataset import Dataset, Index, Split, hold_out, stratified
from securefl.data.digests import CIFAR10_DECODED, GAS_RANGES, DataFile
from securefl.data.fetching import fetch
from securefl.data.files import cache_folder, data_folder, files_of, verified
from securefl.data.sides import Sides, parted

TEST_SHARE = 0.3


PUBLISHED: Final = {
    "digits": 1_258,
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "gas_turbine": 25_713,
    "qmnist": 60_000,
    "shakespeare": 71_890,
}
"""The number of training records of each data set: the expected number, if it is split by content."""


def load(
    name: str,
    *,
    folder: Path | None = None,
    download: bool = False,
    seed: int = 0,
    sides: Sides | None = None,
) -> Split:
    """Load the data set `name` as a training and a test part. The module's table lists the names.

    >>> from securefl.data import load
    >>> split = load("digits")
    >>> split.train.x.shape, split.train.classes, len(split.test)
    ((1258, 1, 8, 8), 10, 539)

    Args:
        name: One of `securefl.data.NAMES`.
        folder: The folder of data sets. The default is `data_folder()`.
        download: Whether to fetch missing files first.
        seed: The seed of the split, if the authors published none. A seed gives the same split on every
            machine.
        sides: Assigns a record to a part by its content. It replaces the seed.

    Returns:
        A `Split` whose records have the shapes and types of `Dataset`.

    Raises:
        ConfigError: The name is unknown.
        DataError: A file is missing, damaged or unusable.
    """
    root = folder or data_folder()
    if download and not (name == "cifar10" and _decoded_in(root)):
        fetch(name, folder=root)
    paths, rng = _paths(name, root), stream(seed, "split", name)
    match name:
        case "cifar10":
            *train, test = (cifar_records(path.read_bytes()) for path in paths)
            return Split(train=_cifar_part(train), test=_cifar_part([test]))
        case "digits":
            return _digits(rng, sides)
        case "gas_turbine":
            return _gas_turbine(paths, rng, sides)
        case "shakespeare":
            return shakespeare.split(paths[0].read_text(encoding="utf-8"), rng)
        case _:
            return _mnist_like(name, paths)


def require_files(name: str, *, folder: Path | None = None) -> None:
    """Check that the files that `load` reads are there and undamaged.

    >>> from securefl.data import require_files
    >>> require_files("digits")  # scikit-learn has its records

    Raises:
        ConfigError: The name is unknown.
        DataError: A file is missing or damaged. The error names it and says how to fetch it.
    """
    _paths(name, folder or data_folder())


def _paths(name: str, root: Path) -> list[Path]:
    """The verified files of a data set.

    Those of CIFAR-10 are the authors' batches, or the batches of `CIFAR10_DECODED` if only these are there.
    """
    files = files_of(name)
    if name == "cifar10" and not _all_in(root, files) and (place := _decoded_in(root)):
        root, files = place, CIFAR10_DECODED
    return [verified(name, file, root) for file in files]


@cache
def _pixels() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A file of text, which is as slow to read as all else of a small study is to prepare."""
    from sklearn.datasets import load_digits  # takes a second to import, and no other data set needs it

    pixels, labels = load_digits(return_X_y=True)
    return pixels, labels.astype(np.int64)


def _digits(rng: np.random.Generator, sides: Sides | None) -> Split:
    pixels, labels = _pixels()
    whole = Dataset(
        name="digits",
        x=(pixels.reshape(-1, 1, 8, 8) / 16).astype(np.float32),
        y=labels,
        classes=10,
    )
    return _split(whole, sides, lambda: stratified(whole.y, TEST_SHARE, rng))


def _split(whole: Dataset, sides: Sides | None, drawn: Callable[[], tuple[Index, Index]]) -> Split:
    """Split records by their content or, without `sides`, by positions that are drawn."""
    if sides is not None:
        return parted(whole, TEST_SHARE, sides)
    train, test = drawn()
    return Split(train=whole.take(train), test=whole.take(test))


def _mnist_like(name: str, paths: list[Path]) -> Split:
    train, test = _images(name, *paths[:2]), _images(name, *paths[2:4])
    if writers := paths[4:]:  # of QMNIST
        train, test = _with_writers(train, writers[0]), _with_writers(test, writers[1])
    return Split(train=train, test=test)


def _images(name: str, pixels: Path, labels: Path) -> Dataset:
    x, y = read_idx(pixels), read_idx(labels).astype(np.int64)
    return Dataset(name=name, x=_scaled(x[:, None]), y=y, classes=10)


def read_idx(path: Path) -> NDArray[Any]:
    """The array in a gzipped IDX file (yann.lecun.com/exdb/mnist): uint8, or big-endian integers as int32."""
    content = gzip.decompress(path.read_bytes())
    kind, dimensions = content[2:4]
    start = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:start], ">u4")
    # Torch accepts only the machine's own byte order.
    dtype, native = {8: (">u1", np.uint8), 12: (">i4", np.int32)}[kind]
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(native)


def _scaled(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    return pixels.astype(np.float32) / np.float32(255)


def _with_writers(images: Dataset, path: Path) -> Dataset:
    """Add the writers. Row i of QMNIST's table is MNIST image i, and its column 2 the writer."""
    return replace(images, groups=read_idx(path)[: len(images), 2].astype(np.int64))


def _gas_turbine(paths: list[Path], rng: np.random.Generator, sides: Sides | None) -> Split:
    rows = np.concatenate([np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2) for path in paths])
    scaled = scaled_gas(rows)
    targets = len(GAS_RANGES) - 2
    whole = Dataset(name="gas_turbine", x=scaled[:, :targets], y=scaled[:, targets:], classes=0)
    return _split(whole, sides, lambda: hold_out(len(whole), TEST_SHARE, rng))


def scaled_gas(rows: NDArray[np.float64]) -> NDArray[np.float32]:
    """Clip each column of rows (n, 11) to its published range, and scale it to [0, 1].

    FedProf scales by the records' own extremes. These are statistics of all clients' records: one more record
    could change all the others.
    """
    low, high = np.array([*GAS_RANGES.values()]).T
    return np.asarray((np.clip(rows, low, high) - low) / (high - low), np.float32)


def cifar_records(content: bytes) -> NDArray[np.uint8]:
    """The records (n, 3073) of a binary batch: a label, then 32 x 32 pixels of each colour."""
    return np.frombuffer(content, np.uint8).reshape(-1, 1 + 3 * 32**2)


def _decoded_in(root: Path) -> Path | None:
    """The folder with the batches of `CIFAR10_DECODED`, or None.

    If `root` is the default folder, the user's cache folder is searched after it.
    """
    places = (root, cache_folder()) if root == data_folder() else (root,)
    return next((place for place in places if _all_in(place, CIFAR10_DECODED)), None)


def _all_in(root: Path, files: tuple[DataFile, ...]) -> bool:
    return all((root / file.path).is_file() for file in files)


def _cifar_part(batches: list[NDArray[np.uint8]]) -> Dataset:
    records = np.concatenate(batches)
    x = _scaled(records[:, 1:].reshape(-1, 3, 32, 32))
    return Dataset(name="cifar10", x=x, y=records[:, 0].astype(np.int64), classes=10)
