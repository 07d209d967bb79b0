"""Folders of images: classes by folder, one size for all, and bounds before anything is decoded."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.every import every

from securefl.core.errors import DataError
from securefl.data import images
from securefl.data.images import images_in, notes_on, read_images


def drawn(path: Path, colour: Any = (255, 0, 0), size: tuple[int, int] = (9, 6), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)
    return path


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bomb(width: int, height: int) -> bytes:
    """A PNG of some hundred bytes whose header states this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    for name in ("dog/2.png", "dog/1.jpg", "cat/a.bmp"):
        drawn(tmp_path / name)
    drawn(tmp_path / "cat/.hidden.png")
    found = images_in(tmp_path)
    assert [path.name for path in found.files] == ["a.bmp", "1.jpg", "2.png"]
    assert found.labels == ("cat", "dog", "dog")


def test_a_folder_without_classes(tmp_path: Path) -> None:
    drawn(tmp_path / "1.png")
    assert images_in(tmp_path).labels is None


@every(
    ("mode", "colour", "ending", "expected"),
    [
        ("RGB", (255, 0, 51), "png", (1, 0, 0.2)),
        ("L", 51, "png", (0.2, 0.2, 0.2)),
        ("RGBA", (255, 0, 51, 7), "png", (1, 0, 0.2)),
        ("P", 0, "gif", (0, 0, 0)),
        ("1", 1, "bmp", (1, 1, 1)),
    ],
)
def test_pixels_are_three_colours_from_0_to_1(
    mode: str, colour: Any, ending: str, expected: tuple[float, ...], tmp_path: Path
) -> None:
    made = read_images([drawn(tmp_path / f"a.{ending}", colour, mode=mode)], 8)
    assert made.shape == (1, 3, 8, 8)
    assert made.dtype == np.float32
    assert made[0, :, 4, 4] == pytest.approx(expected)


def test_axes_are_height_and_width(tmp_path: Path) -> None:
    wide = Image.new("RGB", (20, 10))
    wide.paste((255, 255, 255), (10, 0, 20, 10))
    wide.save(tmp_path / "a.png")
    made = read_images([tmp_path / "a.png"], 10)
    assert made[0, 0, :, 0].max() == 0
    assert made[0, 0, :, 9].min() == 1


def test_grey_of_16_bits_keeps_its_range(tmp_path: Path) -> None:
    steps = np.repeat(np.array([[0, 300, 30_000, 65_535]], np.uint16), 4, 0)
    Image.fromarray(steps).save(tmp_path / "a.png")
    made = read_images([tmp_path / "a.png"], 4)
    assert made[0, :, 0] == pytest.approx(np.tile(steps[0] / 65_535, (3, 1)), abs=1e-6)


@every("turn", [3, 6, 8])
def test_an_image_is_turned_as_its_camera_says(turn: int, tmp_path: Path) -> None:
    """6 was taken with the camera on its side: what is stored on the left is seen on top."""
    whole = Image.new("RGB", (16, 16))
    whole.paste((255, 255, 255), (0, 0, 8, 16))
    exif = Image.Exif()
    exif[0x0112] = turn
    whole.save(tmp_path / "a.png", exif=exif)
    made = read_images([tmp_path / "a.png"], 16)[0, 0]
    bright = {3: made[:, 8:], 6: made[:8], 8: made[8:]}[turn]
    assert bright.min() == 1
    assert made.mean() == pytest.approx(0.5)


def test_an_image_of_one_pixel_is_an_image(tmp_path: Path) -> None:
    made = read_images([drawn(tmp_path / "a.png", (51, 0, 255), (1, 1))], 8)
    assert made[0].min((1, 2)) == pytest.approx([0.2, 0, 1])
    assert made[0].max((1, 2)) == pytest.approx([0.2, 0, 1])


def test_what_reading_loses_is_told(tmp_path: Path) -> None:
    files = [
        drawn(tmp_path / "a.png", (255, 0, 51, 7), mode="RGBA"),
        drawn(tmp_path / "b.png", (51, 7), mode="LA"),
        drawn(tmp_path / "c.jpg", (0, 255, 0, 0), mode="CMYK"),
        drawn(tmp_path / "d.png"),
    ]
    transparent, for_print = notes_on(files)
    assert transparent.startswith("2 of 4 images, transparent")
    assert for_print.startswith("1 of 4 images, for print (CMYK)")
    assert notes_on(files[3:]) == []
    first, *rest = [Image.new("L", (4, 4), 50 * n) for n in range(3)]
    first.save(tmp_path / "f.gif", save_all=True, append_images=rest)
    deep = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    pixel = zlib.compress(bytes(7))
    parts = (chunk(b"IHDR", deep), chunk(b"IDAT", pixel), chunk(b"IEND", b""))
    (tmp_path / "g.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    several, of_16 = notes_on([tmp_path / "f.gif", tmp_path / "g.png"])
    assert "the first one is read" in several
    assert "8 of them are read" in of_16
    (tmp_path / "e.png").write_bytes(bomb(20_000, 20_000))
    with pytest.raises(DataError, match="expected"):
        notes_on([tmp_path / "e.png"])


@pytest.mark.filterwarnings("error")
@every(
    ("size", "got"),
    [((20_000, 20_000), ": "), ((8_000, 7_000), " 8000 x 7000"), ((2**31 - 1, 1), ": ")],
)
def test_a_bomb_is_refused_by_its_header(size: tuple[int, int], got: str, tmp_path: Path) -> None:
    """Pillow warns above 89 million pixels alone: the bound is the house's own."""
    (tmp_path / "a.png").write_bytes(bomb(*size))
    with pytest.raises(DataError, match=rf"a\.png: expected .*got{got}"):
        read_images([tmp_path / "a.png"], 8)


def cut(path: Path) -> None:
    drawn(path, size=(200, 200))
    path.write_bytes(path.read_bytes()[:-30])


@every(
    "write",
    [
        *(
            lambda path, content=content: path.write_bytes(content)
            for content in (
                b"",
                b"text",
                b"\x80\x04pickle",
                b"%!PS-Adobe-3.0 EPSF-3.0\n",
                b"P6 2 2 255 abcdefghijkl",
            )
        ),
        cut,
        lambda path: Image.new("RGB", (4, 4)).save(path, "TIFF"),
    ],
)
def test_what_is_no_whole_image_of_a_known_format_is_refused(write: Any, tmp_path: Path) -> None:
    write(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"a\.png: expected an image of JPEG, PNG"):
        read_images([tmp_path / "a.png"], 8)


def test_a_large_file_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_BYTES", 10)
    with pytest.raises(DataError, match="at most 10 bytes"):
        read_images([drawn(tmp_path / "a.png")], 8)


@every(
    ("files", "match"),
    [
        (["a/1.png", "stray.txt"], "a folder for each class and nothing besides, got stray.txt"),
        (["a/1.png", "a/notes.txt"], "got notes.txt. Move it"),
        (["notes.txt"], "got notes.txt"),
        ([], "1 to 1,000,000 images, got 0"),
        (["a/1.png", "b/"], "b: expected 1 to"),
    ],
)
def test_a_folder_with_other_things_is_refused(files: list[str], match: str, tmp_path: Path) -> None:
    for name in files:
        if name.endswith(".png"):
            drawn(tmp_path / name)
        elif name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text("x")
    with pytest.raises(DataError, match=match):
        images_in(tmp_path)


def test_an_image_of_one_pixel_too_many_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securefl.data.images.MOST_PIXELS", 100)
    for name, size in (("most.png", (10, 10)), ("more.png", (101, 1))):
        Image.new("RGB", size).save(tmp_path / name)
    assert read_images([tmp_path / "most.png"], 8).shape == (1, 3, 8, 8)
    with pytest.raises(DataError):
        read_images([tmp_path / "more.png"], 8)
