"""Reader of image folders in the layout of torchvision's ImageFolder: a folder for each class, by its name.

Pillow decodes an image only after its format, its bytes and its header's size were checked.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import DataError
from securefl.core.text_safety import is_legible
from securefl.storage.inputs import DAMAGED

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
_FORMATS: Final = ("JPEG", "PNG", "BMP", "GIF", "WEBP")
MOST_BYTES: Final = 2**26
"""The most bytes of one image's file."""
MOST_PIXELS: Final = 50_000_000
"""The most pixels of one image, by its header: a short file could unpack to gigabytes."""
MOST_IMAGES: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Images:
    """The files of images in order, and the class of each by its folder's name, or None without classes."""

    files: tuple[Path, ...]
    labels: tuple[str, ...] | None


def images_in(folder: Path) -> Images:
    """The images of a folder: of its subfolders, each a class, or of itself without classes.

    Raises DataError if it has neither, both, other files, or a class without an image. Hidden files do not
    count.
    """
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    classes = [path for path in inside if path.is_dir()]
    if classes and len(classes) < len(inside):
        stray = next(path for path in inside if not path.is_dir())
        raise DataError(f"{folder}: expected a folder for each class and nothing besides, got {stray.name}.")
    if not classes:
        return Images(files=_files(folder, inside), labels=None)
    files: list[Path] = []
    labels: list[str] = []
    for own in classes:
        if not is_legible(own.name):
            raise DataError(f"{folder}: expected folders with printable names, got {own.name!r}.")
        found = _files(own, sorted(path for path in own.iterdir() if not path.name.startswith(".")))
        files += found
        labels += [own.name] * len(found)
    return Images(files=tuple(files), labels=tuple(labels))


def _files(folder: Path, inside: Sequence[Path]) -> tuple[Path, ...]:
    for path in inside:
        if not path.is_file() or path.suffix.lower() not in SUFFIXES:
            raise DataError(f"{folder}: expected images ({', '.join(SUFFIXES)}), got {path.name}. Move it.")
    if not 1 <= len(inside) <= MOST_IMAGES:
        raise DataError(f"{folder}: expected 1 to {MOST_IMAGES:,} images, got {len(inside):,}.")
    return tuple(inside)


def read_images(files: Sequence[Path], size: int) -> NDArray[np.float32]:
    """Read images as float32 (n, 3, size, size) with values from 0 to 1, each scaled to a square of `size`.

    An image is turned as its EXIF data say. Grey of 16 bits keeps its steps. See `notes_on` for what is lost.

    Raises DataError, which names the file, for other formats, damage, and sizes beyond MOST_BYTES or
    MOST_PIXELS.
    """
    found = np.empty((len(files), 3, size, size), np.float32)
    for place, path in enumerate(files):
        found[place] = _pixels(path, size)
    return found


def notes_on(files: Sequence[Path]) -> list[str]:
    """A sentence for each kind of image of which `read_images` loses something. Only headers are read.

    Raises errors as `read_images` does.
    """
    kinds: Counter[str] = Counter()
    for path in files:
        with _opened(path) as image:
            if "A" in image.mode or "transparency" in image.info:
                kinds["transparent: a pixel counts by its colour, also where it cannot be seen"] += 1
            if image.mode == "CMYK":
                kinds["for print (CMYK): its colours are converted without a profile"] += 1
            if ";16" in str(getattr(image, "tile", "")) and not image.mode.startswith("I"):
                kinds["of 16 bits a colour: 8 of them are read"] += 1
            if getattr(image, "is_animated", False):
                kinds["of several pictures: the first one is read"] += 1
    return [f"{count:,} of {len(files):,} images, {kind}." for kind, count in kinds.items()]


def _pixels(path: Path, size: int) -> NDArray[np.float32]:
    """The pixels of one image from 0 to 1, float32 (3, size, size)."""
    from PIL import Image, ImageOps

    with _opened(path) as image:
        whole = ImageOps.exif_transpose(image)
        if whole.mode.startswith("I"):  # grey of 16 bits, which "RGB" would cut off at 255
            whole, most = Image.fromarray(np.asarray(whole, np.float32)), 2**16 - 1
        else:
            whole, most = whole.convert("RGB"), 2**8 - 1
        made = np.asarray(whole.resize((size, size), Image.Resampling.BILINEAR), np.float32)
        colours = np.broadcast_to(made[..., None] if made.ndim == 2 else made, (size, size, 3))
        return colours.transpose(2, 0, 1) / np.float32(most)


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    """An image whose format, bytes and size by its header are within bounds. Damage is a DataError."""
    from PIL import Image

    if (length := path.stat().st_size) > MOST_BYTES:
        raise DataError(f"{path}: expected an image of at most {MOST_BYTES:,} bytes, got {length:,}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own limit warns; the next lines refuse
            with Image.open(path, formats=_FORMATS) as image:
                width, height = image.size
                if width * height > MOST_PIXELS:
                    raise DataError(
                        f"{path}: expected at most {MOST_PIXELS:,} pixels, got {width} x {height}."
                    )
                yield image
    except (Image.DecompressionBombError, OSError, LookupError, *DAMAGED) as error:
        raise DataError(
            f"{path}: expected an image of {', '.join(_FORMATS)}, got: {str(error)[:200]}. Save it again."
        ) from None
