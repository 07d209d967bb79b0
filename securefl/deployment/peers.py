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
import pwd
import socket
import stat
import struct
import sys
from pathlib import Path
from typing import Final

from securefl.core.errors import ConfigError
from securefl.storage import owned
from securefl.storage.inputs import kind_word

_LINUX: Final = struct.Struct("3i")
_MACOS: Final = struct.Struct("=IIh2x16I")  # xucred: version, user, number of groups, groups
_MACOS_VERSION, _SOL_LOCAL, _LOCAL_PEERCRED = 0, 0, 1


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


def user_of(text: str) -> int:
    """The number of a user of this machine, by name or number. Raises ConfigError for another text."""
    try:
        return int(text) if text.isdecimal() else pwd.getpwnam(text).pw_uid
    except (KeyError, ValueError):
        raise ConfigError(
            f"Expected a user of this machine, by name or number, got {text!r}. `id USER` says the number."
        ) from None


def owner_of(path: Path, user: int | None = None) -> int:
    """The user who owns the socket at `path`, if nobody else could have put another one there.

    The way to it passes the rule of `storage.owned` for root, the socket's owner and the relay's own user. In
    a sticky folder such as /tmp, where others could have made the next entry first, it belongs to root, to
    the relay's own user, or to `user`.

    user: who must own it, if the relay was told.

    Raises ConfigError, with the path and what to do, and FileNotFoundError.
    """
    found = path.lstat()
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(
            f"Expected a party's socket at {path}, got {kind_word(found.st_mode)}. Name the socket itself."
        )
    if user is not None and found.st_uid != user:
        raise ConfigError(
            f"Expected a socket of user {user}, got {path} of user {found.st_uid}. Start the party as user "
            f"{user}, or name its user in the node's configuration."
        )
    close = owned.ours() | ({user} if user is not None else set())
    owned.walked(path, close | {found.st_uid}, close)
    return found.st_uid
