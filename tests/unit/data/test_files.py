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

import pytest
from support.every import every

from securefl.core.errors import ConfigError, DataError
from securefl.data.digests import CIFAR10_DECODED, PINNED, DataFile
from securefl.data.fetching import fetch, fetch_files
from securefl.data.files import cache_folder, data_folder, digest, files_of, verified
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
        fetch_files("set", files, root)


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


def test_a_missing_file_error_says_what_where_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("mnist", folder=tmp_path)

    message = str(caught.value)
    assert "mnist/train-images-idx3-ubyte.gz" in message
    assert str(tmp_path) in message
    assert "securefl data fetch mnist" in message
    assert "SECUREFL_DATA" in message


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
    with pytest.raises(ConfigError, match="'fashion_mnist'"):
        load("fashion-mnist")


def test_pinned_digests_are_sha256_and_places_stay_inside_the_folder() -> None:
    for file in [*sum(PINNED.values(), ()), *CIFAR10_DECODED]:
        assert len(bytes.fromhex(file.sha256)) == 32
        assert ".." not in Path(file.path).parts
        assert not Path(file.path).is_absolute()
    for file in sum(PINNED.values(), ()):
        assert file.url is not None


def test_fetching_places_the_checked_file_and_nothing_else(tmp_path: Path, net: Net) -> None:
    net.fetch(tmp_path, CONTENT)

    assert (tmp_path / FILE.path).read_bytes() == CONTENT
    assert contents(tmp_path) == [FILE.path]
    assert net.asked == ["https://author/file.bin"]


def test_a_file_that_is_there_is_not_fetched_again(tmp_path: Path, net: Net) -> None:
    net.fetch(tmp_path, CONTENT)
    net.fetch(tmp_path)

    assert net.asked == []


def test_a_damaged_file_is_replaced(tmp_path: Path, net: Net) -> None:
    path = tmp_path / FILE.path
    path.parent.mkdir()
    path.write_bytes(b"damaged")

    net.fetch(tmp_path, CONTENT)

    assert path.read_bytes() == CONTENT


def test_other_bytes_than_published_are_refused_and_leave_nothing(tmp_path: Path, net: Net) -> None:
    with pytest.raises(DataError, match="the published bytes") as caught:
        net.fetch(tmp_path, b"<html>login</html>")

    assert FILE.sha256 in str(caught.value)
    assert contents(tmp_path) == []


def test_other_bytes_leave_the_file_that_was_there(tmp_path: Path, net: Net) -> None:
    path = tmp_path / FILE.path
    path.parent.mkdir()
    path.write_bytes(b"damaged")

    with pytest.raises(DataError, match="the published bytes"):
        net.fetch(tmp_path, b"also wrong")

    assert contents(tmp_path) == [FILE.path]
    assert path.read_bytes() == b"damaged"


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


@every("pack", [zipped, tarred])
@every("members", [{"inside/a": b"forged"}, {"elsewhere": b"one"}])
def test_an_archive_with_a_wrong_or_missing_member_leaves_nothing(
    pack: Callable[[dict[str, bytes]], bytes], members: dict[str, bytes], tmp_path: Path, net: Net
) -> None:
    with pytest.raises(DataError):
        net.fetch(tmp_path, pack(members), files=(archived("a", b"one"),))

    assert contents(tmp_path) == []


def test_a_member_that_is_a_folder_is_refused(tmp_path: Path, net: Net) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("inside/a")
        entry.type = tarfile.DIRTYPE
        archive.addfile(entry)

    with pytest.raises(DataError, match="not a regular file"):
        net.fetch(tmp_path, packed.getvalue(), files=(archived("a", b"one"),))


def test_an_archive_that_is_none_is_a_data_error(tmp_path: Path, net: Net) -> None:
    with pytest.raises(DataError, match="Expected to fetch"):
        net.fetch(tmp_path, b"<html>moved</html>", files=(archived("a", b"one"),))

    assert contents(tmp_path) == []


def test_fetch_asks_the_authors_addresses_and_refuses_other_bytes(tmp_path: Path, net: Net) -> None:
    net.answers = [b"not MNIST"]

    with pytest.raises(DataError, match="the published bytes"):
        fetch("mnist", folder=tmp_path)

    assert net.asked == [files_of("mnist")[0].url]
    assert contents(tmp_path) == []


def test_a_set_that_ships_with_a_dependency_needs_no_fetching(tmp_path: Path, net: Net) -> None:
    assert fetch("digits", folder=tmp_path) == ()
    assert net.asked == []
