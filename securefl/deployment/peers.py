"""Who is at the other end of a Unix socket: the kernel's word, and the owners of the path to the socket.

    platform   parties apart   the kernel names a peer by
    Linux      yes             SO_PEERCRED
    macOS      yes             LOCAL_PEERCRED
    others     no

A relay checks a path before it connects, and the listener before it sends. Otherwise another user who gets a
socket of its own to that path would be given the server's model.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import sys
from pathlib import Path
from typing import Final

from securefl.core.errors import ConfigError
from securefl.deployment.framing import refusal

_LINUX: Final = struct.Struct("3i")
_MACOS: Final = struct.Struct("=IIh2x16I")  # xucred: version, user, number of groups, groups
_MACOS_VERSION, _SOL_LOCAL, _LOCAL_PEERCRED = 0, 0, 1
_WRITE_OTHERS: Final = 0o022
_MOST_LINKS: Final = 40
_ROOT: Final = 0


def require_platform(platform: str = sys.platform) -> None:
    """Raise ConfigError unless the kernel of this platform names the user of a Unix socket's peer."""
    if platform not in ("linux", "darwin"):
        raise ConfigError(
            f"Expected Linux or macOS for a party apart, got {platform}: its kernel does not name the user "
            "at the other end of a socket. Run it on Linux (on Windows: in WSL), or all parties in one "
            "process: securefl run."
        )


def longest_path(platform: str = sys.platform) -> int:
    """The most bytes of a socket's path."""
    return 103 if platform == "darwin" else 107


def peer_of(connection: socket.socket, platform: str = sys.platform) -> int:
    """The number of the user at the other end: who connected, or at a relay's end who listens.

    Raises OSError if the kernel does not name one, such as macOS' of a peer that is gone.
    """
    require_platform(platform)
    if platform == "darwin":
        raw = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _MACOS.size)
        version, user = _MACOS.unpack(raw)[:2] if len(raw) == _MACOS.size else (None, None)
        if version != _MACOS_VERSION:
            raise OSError(errno.EPROTO, "Expected the user of a peer as macOS states it, got other bytes.")
        return int(user)
    _, user, _ = _LINUX.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _LINUX.size))
    return int(user)


def owner_of(path: Path, *, own: int | None = None) -> int:
    """The user who owns the socket at `path`, if no other user could have put another one there.

    The path is walked from the root. Each folder and each link on it belongs to root, to the socket's owner
    or to the relay's own user, and nobody else can write the folder. In a folder that everybody may write,
    such as /tmp, the next entry belongs to root or the relay's own user: others could have made it first.

    own: number of the relay's own user; by default of this process.

    Raises RemoteProtocolError, with the path and what to do, and FileNotFoundError.
    """
    own = os.getuid() if own is None else own
    owner = _socket_at(path)
    _Walk(frozenset({_ROOT, owner, own}), frozenset({_ROOT, own})).follow(path.absolute())
    return owner


def _socket_at(path: Path) -> int:
    found = path.lstat()
    if not stat.S_ISSOCK(found.st_mode):
        raise refusal(
            f"Expected a party's socket at {path}, got another kind of file. Name the socket itself."
        )
    return found.st_uid


class _Walk:
    """A walk along a path, which trusts these users with every folder and link, and fewer below /tmp."""

    def __init__(self, trusted: frozenset[int], close: frozenset[int]) -> None:
        self._trusted, self._close = trusted, close
        self._links = 0

    def follow(self, path: Path) -> None:
        """Walk from the root to `path`, through every link on the way."""
        here, rest = Path("/"), list(path.parts[1:])
        open_to_all = self._folder(here)
        while rest:
            name = rest.pop(0)
            if name == "..":
                # Of a folder that was reached without a link, so its parent was checked on the way.
                here, open_to_all = here.parent, self._folder(here.parent)
                continue
            entry = here / name
            found = entry.lstat()
            if open_to_all and found.st_uid not in self._close:
                raise refusal(
                    f"Expected an entry of user {_names(self._close)} in {here}, where every user may make "
                    f"one, got {entry} of user {found.st_uid}, who may have made it in the party's place. "
                    "Move the party's folder to one that its owner alone may write."
                )
            if stat.S_ISLNK(found.st_mode):
                rest = self._target(entry, found) + rest
                if os.path.isabs(os.readlink(entry)):
                    here, open_to_all = Path("/"), self._folder(Path("/"))
            elif rest:
                here, open_to_all = entry, self._folder(entry)

    def _target(self, link: Path, found: os.stat_result) -> list[str]:
        self._links += 1
        if self._links > _MOST_LINKS:
            raise refusal(f"Expected at most {_MOST_LINKS} links on the way to a socket, got more at {link}.")
        if found.st_uid not in self._trusted:
            raise refusal(
                f"Expected a link of user {_names(self._trusted)}, got {link} of user {found.st_uid}, "
                "who can turn it to another socket. Name the socket by a path without that link."
            )
        return [part for part in Path(os.readlink(link)).parts if part != "/"]

    def _folder(self, folder: Path) -> bool:
        """Check a folder. Returns whether every user may make entries in it, and only their own."""
        found = folder.lstat()
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISDIR(found.st_mode):
            raise refusal(f"Expected a folder at {folder}, got another kind of file. Name the socket's path.")
        if found.st_uid not in self._trusted:
            raise refusal(
                f"Expected a folder of user {_names(self._trusted)}, got {folder} of user {found.st_uid}, "
                f"who can put another socket there. Move the party's folder, or have root own {folder}."
            )
        if not mode & _WRITE_OTHERS:
            return False
        if not mode & stat.S_ISVTX:
            raise refusal(
                f"Expected a folder that its owner alone may write, got {folder} with mode {mode:04o}: "
                f"others can put another socket there. Run chmod go-w {folder}, or move the party's folder."
            )
        return True


def _names(users: frozenset[int]) -> str:
    return " or ".join(map(str, sorted(users)))
