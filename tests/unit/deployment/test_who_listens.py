"""A relay sends nothing before it knows who listens, and that nobody else could have put the socket there."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support.every import every

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.deployment.connection import reached, send
from securefl.deployment.peers import longest_path, owner_of, peer_of, require_platform
from securefl.deployment.server import listening

ROOT, OWNER, RELAY, MALLORY = 0, 1001, 1002, 1003


# The walk, over a file system of its own ---------------------------------------------------------------

FOLDER, LINK, SOCKET = stat.S_IFDIR, stat.S_IFLNK, stat.S_IFSOCK
Entry = tuple[int, int, int] | tuple[int, int, int, str]
"""Kind, mode, user, and the target of a link."""
GOOD: dict[str, Entry] = {
    "/": (FOLDER, 0o755, ROOT),
    "/srv": (FOLDER, 0o755, ROOT),
    "/srv/party": (FOLDER, 0o710, OWNER),
    "/srv/party/run": (FOLDER, 0o750, OWNER),
    "/srv/party/run/s": (SOCKET, 0o660, OWNER),
    "/tmp": (FOLDER, 0o1777, ROOT),
}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, Entry]:
    entries = dict(GOOD)

    def lstat(path: Path) -> os.stat_result:
        if str(path) not in entries:
            raise FileNotFoundError(2, "No such file", str(path))
        kind, mode, user, *_ = entries[str(path)]
        return os.stat_result((kind | mode, 0, 0, 1, user, 0, 0, 0, 0, 0))

    monkeypatch.setattr(Path, "lstat", lstat)
    monkeypatch.setattr("securefl.storage.owned.os.readlink", lambda path: entries[str(path)][3])  # type: ignore[misc]
    monkeypatch.setattr(os, "geteuid", lambda: RELAY)
    return entries


def owner(path: str = "/srv/party/run/s", user: int | None = None) -> int:
    return owner_of(Path(path), user)


def test_a_path_of_root_and_the_party_is_taken(disk: dict[str, Entry]) -> None:
    assert owner() == OWNER
    disk["/srv"] = (FOLDER, 0o755, RELAY)
    assert owner() == OWNER


BAD: dict[str, tuple[dict[str, Entry], str]] = {
    "a folder of a stranger": (
        {"/srv/party": (FOLDER, 0o755, MALLORY)},
        r"/srv/party to belong .* user 1003",
    ),
    "a folder that its group writes": (
        {"/srv/party/run": (FOLDER, 0o770, OWNER)},
        "chmod go-w /srv/party/run",
    ),
    "a link into a folder of a stranger": (
        {
            "/srv/party": (LINK, 0o777, OWNER, "/home/m"),
            "/home": (FOLDER, 0o755, ROOT),
            "/home/m": (FOLDER, 0o755, MALLORY),
        },
        r"/home/m to belong .* user 1003",
    ),
    "a file for the socket": ({"/srv/party/run/s": (stat.S_IFREG, 0o660, OWNER)}, "got a file"),
    "a link for the socket": ({"/srv/party/run/s": (LINK, 0o777, OWNER, "/x")}, "got a symbolic link"),
    "a file for a folder": ({"/srv/party": (stat.S_IFREG, 0o755, OWNER)}, "Expected a folder at /srv/party"),
}
"""Of a path on which another could put a socket. `storage.owned` has the other ways."""


@pytest.mark.parametrize("bad", BAD)
def test_a_path_on_which_another_could_put_a_socket_is_refused(bad: str, disk: dict[str, Entry]) -> None:
    changes, why = BAD[bad]
    disk |= changes
    with pytest.raises(ConfigError, match=why):
        owner()


def below_tmp(user: int) -> dict[str, Entry]:
    return {
        "/tmp/p": (FOLDER, 0o755, user),
        "/tmp/p/s": (SOCKET, 0o666, user),
    }


@pytest.mark.parametrize(("user", "fits"), [(RELAY, True), (ROOT, True), (OWNER, False), (MALLORY, False)])
def test_below_tmp_only_what_is_ones_own_is_taken(user: int, fits: bool, disk: dict[str, Entry]) -> None:
    """Mallory makes /tmp/p before the party does: all that the relay sees is of one user, who listens."""
    disk |= below_tmp(user)
    if fits:
        assert owner("/tmp/p/s") == user
        return
    with pytest.raises(ConfigError, match="/tmp/p to belong to user 0 or 1002"):
        owner("/tmp/p/s")
    if user == OWNER:  # nobody but the pinned user can make an entry that is that user's
        assert owner("/tmp/p/s", user) == user


def test_a_link_in_tmp_is_of_root_or_ones_own(disk: dict[str, Entry]) -> None:
    disk |= {"/tmp/to": (LINK, 0o777, OWNER, "/srv/party/run"), "/tmp/to/s": GOOD["/srv/party/run/s"]}
    with pytest.raises(ConfigError, match="/tmp/to to belong"):
        owner("/tmp/to/s")
    disk["/tmp/to"] = (LINK, 0o777, RELAY, "/srv/party/run")
    assert owner("/tmp/to/s") == OWNER


def test_a_pinned_user_owns_the_socket_and_the_way_to_it(disk: dict[str, Entry]) -> None:
    """A folder of Mallory's own passes the walk for a relay that takes any owner, and no other."""
    assert owner(user=OWNER) == OWNER
    with pytest.raises(ConfigError, match=r"socket of user 1002, got .* of user 1001"):
        owner(user=RELAY)
    disk |= {"/srv/m": (FOLDER, 0o755, MALLORY), "/srv/m/s": (SOCKET, 0o666, MALLORY)}
    assert owner("/srv/m/s") == MALLORY
    with pytest.raises(ConfigError, match=r"socket of user 1001, got .* of user 1003"):
        owner("/srv/m/s", OWNER)
    disk["/srv/m/s"] = (SOCKET, 0o666, OWNER)
    with pytest.raises(ConfigError, match=r"/srv/m to belong .* user 1003"):
        owner("/srv/m/s", OWNER)


# The listener ------------------------------------------------------------------------------------------


@contextmanager
def heard(folder: Path) -> Iterator[tuple[Path, list[bytes]]]:
    """A listener, and all that it was sent."""
    came: list[bytes] = []

    def listen() -> None:
        with listener.accept()[0] as connection:
            connection.settimeout(10)
            came.append(connection.recv(99))

    with listening(folder / "run" / "s") as listener:
        thread = Thread(target=listen)
        thread.start()
        yield folder / "run" / "s", came
        thread.join(10)


def unnamed(connection: socket.socket) -> int:
    raise OSError(errno.ENOTCONN, "Socket is not connected")


@every("peer", [lambda connection: os.getuid() + 1, unnamed])
def test_a_listener_that_does_not_own_the_socket_or_is_not_named_is_sent_nothing(
    peer: Callable[[socket.socket], int], tmp_path: Path
) -> None:
    said = r"nothing was sent" if peer is unnamed else rf"got user {os.getuid() + 1}: nothing"
    with heard(tmp_path) as (path, came):
        refused = pytest.raises(RemoteProtocolError, match=said)
        with refused, reached(path, timeout=5, peer=peer) as line:
            line.send(b"a model")
    assert came == [b""]


def test_a_platform_that_does_not_name_the_peer_has_no_parties_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"got win32.*securefl run"):
        require_platform("win32")

    def refuse() -> None:
        require_platform("win32")

    monkeypatch.setattr("securefl.deployment.server.require_platform", refuse)
    with pytest.raises(ConfigError, match="win32"), listening(tmp_path / "run" / "s"):
        pass
    monkeypatch.setattr("securefl.deployment.connection.require_platform", refuse)
    with pytest.raises(RemoteProtocolError, match="win32"):
        send(tmp_path / "run" / "s", b"x", timeout=1)


def test_the_peer_is_read_as_each_kernel_says_it() -> None:
    class Kernel:
        def getsockopt(self, level: int, option: int, size: int) -> bytes:
            if (level, option) == (0, 1):  # SOL_LOCAL, LOCAL_PEERCRED: a version, the user, its groups
                return struct.pack("=IIh16I", 0, 501, 1, *range(16)).ljust(size, b"\0")
            assert (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED)
            return struct.pack("3i", 99, 1000, 100)

    own: Any = Kernel()
    assert peer_of(own, "linux") == 1000
    assert (longest_path("linux"), longest_path("darwin")) == (107, 103)
    assert peer_of(own, "darwin") == 501
    one, other = socket.socketpair()
    with one, other:
        assert peer_of(one) == os.getuid()


@every(
    "answer",
    [
        struct.pack("=IIh2x16I", 1, 0, 1, *range(16)),
        struct.pack("=IIh2x16I", 0, 0, 1, *range(16))[:-4],
        struct.pack("=II", 0, 0),
        b"",
    ],
)
def test_an_answer_of_macos_of_another_form_names_nobody(answer: bytes) -> None:
    """Zeros in the place of a user would be root, whom a party's socket may admit."""

    class Kernel:
        def getsockopt(self, level: int, option: int, size: int) -> bytes:
            return answer

    own: Any = Kernel()
    with pytest.raises(OSError, match="as macOS states it"):
        peer_of(own, "darwin")


# Users of the kernel -----------------------------------------------------------------------------------

root = pytest.mark.skipif(os.getuid() != 0, reason="only root can run a process under another user")
LISTEN = """
import os, socket, sys
path, user = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(user); os.setuid(user)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
os.chmod(path, 0o666)
listener.listen()
print("listens", flush=True)
connection, _ = listener.accept()
print(len(connection.recv(99)), flush=True)
"""


@contextmanager
def process_of(user: int, path: Path) -> Iterator[Callable[[], str]]:
    """A process of this user that listens at `path`. Gives the number of bytes that it was sent."""
    program = [sys.executable, "-c", LISTEN, str(path), str(user)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "listens\n"
            yield other.stdout.readline
        finally:
            other.kill()


@root
def test_a_socket_that_another_user_moved_to_the_path_is_sent_nothing(open_folder: Path) -> None:
    """It owns the socket that it made, so the kernel's word alone would be believed."""
    folder = open_folder / "run"
    folder.mkdir()
    folder.chmod(0o777)
    with process_of(MALLORY, folder / "s") as sent:
        with pytest.raises(RemoteProtocolError, match="chmod go-w"):
            send(folder / "s", b"a model", timeout=5)
        folder.chmod(0o755)
        folder_of(OWNER, folder)
        with pytest.raises(RemoteProtocolError, match=rf"run to belong .* got user {OWNER}"):
            send(folder / "s", b"a model", timeout=5)
        os.chown(folder / "s", OWNER, OWNER)
        with pytest.raises(
            RemoteProtocolError, match=rf"Expected user {OWNER}, who owns .*got user {MALLORY}"
        ):
            send(folder / "s", b"a model", timeout=5)
        assert sent() == "0\n"


def folder_of(user: int, folder: Path) -> None:
    os.chown(folder, user, user)
