"""A party's counter: progress outside of its folder, which a folder from a backup does not reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from securefl.core.errors import DataError
from securefl.storage.counter import Counter, Place


def test_a_folder_that_is_behind_its_counter_anywhere_is_refused(tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter")
    counter.begin()
    noted = Place(sessions=2, released=5, acted=6)
    counter.note(noted)
    assert counter.place() == noted
    for new in (noted, Place(sessions=2, released=6, acted=6), Place(sessions=3)):
        counter.require(new)
    for old in (
        Place(sessions=2, released=4, acted=6),
        Place(sessions=2, released=5, acted=5),
        Place(sessions=1, released=9, acted=9),
    ):
        with pytest.raises(DataError):
            counter.require(old)


def test_a_note_that_was_changed_is_refused(tmp_path: Path) -> None:
    counter = Counter(tmp_path / "counter")
    counter.begin()
    counter.note(Place(sessions=2, released=5, acted=6))
    path = counter.folder / "place"
    written = path.read_bytes()
    for at in range(len(written)):
        path.write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])
        with pytest.raises(DataError):
            counter.place()
