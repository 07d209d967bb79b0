"""Files are looked up, checked before use, and fetched without ever trusting the source."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.error
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
from support.every import every

from securefl.core.errors import ConfigError, DataError
from securefl.data.digests import CIFAR10_DECODED, PINNED, DataFile
from securefl.data.fetching import fetch
from securefl.data.files import cache_folder, data_folder, digest, verified
from securefl.data.sources import load

CONTENT = b"what the author published"
FILE = DataFile(
    path="set/file.bin", sha256=hashlib.sha256(CONTENT).hexdigest(), url="https://author/file.bin"
)


class Net:
    """A network that gives `answers` in turn, and notes the addresses that it was asked for."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.asked: list[str] = []

    def urlopen(self, url: str, timeout: float) -> io.BytesIO:
        self.asked.append(url)
        if not self.answers:
            raise urllib.error.URLError("no route")
        return io.BytesIO(self.answers.pop(0))

    def fetch(self, root: Path, *answers: bytes, files: tuple[DataFile, ...] = (FILE,)) -> None:
        self.answers, self.asked = list(answers), []
        with mock.patch("securefl.data.fetching.files_of", return_value=files):
            fetch("set", folder=root)


@pytest.fixture(autouse=True)
def net(monkeypatch: pytest.MonkeyPatch) -> Net:
    found = Net()
    monkeypatch.setattr("urllib.request.urlopen", found.urlopen)
    return found


def contents(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_data_is_looked_for_in_the_named_folder_else_in_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SECUREFL_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert data_folder() == cache_folder() == tmp_path / ".cache" / "securefl"

    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_folder() == tmp_path / ".cache" / "securefl"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert data_folder() == tmp_path / "xdg" / "securefl"

    monkeypatch.setenv("SECUREFL_DATA", str(tmp_path / "mine"))
    assert data_folder() == tmp_path / "mine"


def test_a_wrong_checksum_error_names_file_expected_and_found(tmp_path: Path) -> None:
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.parent.mkdir()
    path.write_bytes(b"tampered")

    with pytest.raises(DataError) as caught:
        load("mnist", folder=tmp_path)

    message = str(caught.value)
    assert str(path) in message
    assert PINNED["mnist"][0].sha256 in message
    assert hashlib.sha256(b"tampered").hexdigest() in message


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / FILE.path
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert verified("set", FILE, tmp_path) == path

    path.write_bytes(CONTENT.replace(b"author", b"forger"))
    # the same length and, if need be, the next tick of the clock: the key must still differ
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))

    with pytest.raises(DataError, match="the published file"):
        verified("set", FILE, tmp_path)


def test_an_unchanged_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    first = digest(path)

    def refuse(*_: object) -> None:
        raise AssertionError("read a second time")

    monkeypatch.setattr(hashlib, "file_digest", refuse)
    assert digest(path) == first == hashlib.sha256(CONTENT).hexdigest()


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="`fashion_mnist`"):
        load("fashion-mnist")


def test_pinned_digests_are_sha256_and_places_stay_inside_the_folder() -> None:
    for file in [*sum(PINNED.values(), ()), *CIFAR10_DECODED]:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert ".." not in Path(file.path).parts
        assert not Path(file.path).is_absolute()
    for file in sum(PINNED.values(), ()):
        assert file.url is not None


def test_missing_and_damaged_files_alone_are_fetched(tmp_path: Path, net: Net) -> None:
    path = tmp_path / FILE.path
    for before in (None, b"damaged"):
        if before is not None:
            path.write_bytes(before)
        net.fetch(tmp_path, CONTENT)
        assert path.read_bytes() == CONTENT
        assert contents(tmp_path) == [FILE.path]
        assert net.asked == ["https://author/file.bin"]
        net.fetch(tmp_path)
        assert net.asked == []
    assert fetch("digits", folder=tmp_path) == ()
    assert net.asked == []


def test_other_bytes_than_published_are_refused_and_leave_nothing(tmp_path: Path, net: Net) -> None:
    for before in ([], [b"damaged"]):
        for content in before:
            (tmp_path / "set").mkdir(exist_ok=True)
            (tmp_path / FILE.path).write_bytes(content)
        with pytest.raises(DataError, match=f"the published bytes.*{FILE.sha256}"):
            net.fetch(tmp_path, b"<html>login</html>")
        assert [(tmp_path / one).read_bytes() for one in contents(tmp_path)] == before


def test_an_endless_answer_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, net: Net) -> None:
    monkeypatch.setattr("securefl.data.fetching.LARGEST", 10)

    with pytest.raises(DataError, match="at most 10 bytes"):
        net.fetch(tmp_path, CONTENT)

    assert contents(tmp_path) == []


def test_a_dead_source_is_a_data_error_with_its_address(tmp_path: Path, net: Net) -> None:
    with pytest.raises(DataError, match=r"file\.bin .*no route"):
        net.fetch(tmp_path)


def zipped(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def archived(name: str, content: bytes) -> DataFile:
    return DataFile(
        path=f"set/{name}",
        sha256=hashlib.sha256(content).hexdigest(),
        url="https://author/archive",
        member=f"inside/{name}",
    )


@every("pack", [zipped, tarred])
def test_only_the_wanted_members_of_an_archive_are_unpacked(
    pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path, net: Net
) -> None:
    archive = pack({"inside/a": b"one", "../escape": b"bad", "inside/b": b"two", "unasked": b"more"})
    net.fetch(tmp_path / "root", archive, files=(archived("a", b"one"), archived("b", b"two")))

    assert contents(tmp_path) == ["root/set/a", "root/set/b"]
    assert (tmp_path / "root/set/b").read_bytes() == b"two"
    assert len(net.asked) == 1  # one transfer serves both members


def folder_in_tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("inside/a")
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)
    return packed.getvalue()


@every(
    "packed",
    [
        *(pack(members) for pack in (zipped, tarred) for members in ({"inside/a": b"forged"}, {"b": b"one"})),
        folder_in_tar(),
        b"<html>moved</html>",
    ],
)
def test_an_archive_without_the_published_member_leaves_nothing(
    packed: bytes, tmp_path: Path, net: Net
) -> None:
    with pytest.raises(DataError, match=r"Expected (to fetch|the published bytes)"):
        net.fetch(tmp_path, packed, files=(archived("a", b"one"),))
    assert contents(tmp_path) == []
