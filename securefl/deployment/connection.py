"""A relay's side of a party's socket: it checks who listens, sends a request, and waits for the reply."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.deployment.framing import Connection, PeerSilent, refusal
from securefl.deployment.messages import REFUSED, Compute, Computed, decode_envelope, encode_envelope
from securefl.deployment.peers import owner_of, peer_of, require_platform

_FULL = 0.05
"""Seconds between two attempts to connect to a party whose queue of connections is full."""


@contextmanager
def reached(
    path: Path | str,
    *,
    timeout: float,
    user: int | None = None,
    peer: Callable[[socket.socket], int] = peer_of,
) -> Iterator[Connection]:
    """Connect to the party at `path`. `timeout`: seconds for all traffic of the connection together.

    user: the number of the party's user, if the relay was told; by default the owner of the socket.
    peer: the number of the user at the other end, from the kernel.

    Raises RemoteProtocolError if no party runs there, or if another user could have put the socket there, or
    listens at it. Nothing was sent then.
    """
    path, until = Path(path), monotonic() + timeout
    owner = _owner(path, user)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        _connect(connection, path, until)
        if (listener := _listener(connection, path, peer)) != owner:
            raise refusal(
                f"Expected user {owner}, who owns {path}, to listen there, got user {listener}: nothing was "
                "sent. Stop that process, and start the party again: securefl party serve."
            )
        yield Connection(connection, patience=timeout, until=until)


def _owner(path: Path, user: int | None) -> int:
    try:
        require_platform()
        return owner_of(path, user)
    except ConfigError as error:
        raise refusal(str(error)) from None
    except PermissionError:
        raise _may_not(path) from None
    except OSError as error:
        raise _nobody(path, error) from None


def _listener(connection: socket.socket, path: Path, peer: Callable[[socket.socket], int]) -> int:
    try:
        return peer(connection)
    except OSError as error:  # macOS does not name the user of a process that is gone
        raise refusal(
            f"Expected the kernel to name the user who listens at {path}, got {error}: nothing was sent. "
            "Start the party again: securefl party serve."
        ) from None


def _connect(connection: socket.socket, path: Path, until: float) -> None:
    while True:
        connection.settimeout(max(until - monotonic(), 0.001))
        try:
            return connection.connect(os.fspath(path))
        except PermissionError:
            raise _may_not(path) from None
        except BlockingIOError as error:  # its queue is full: other connections are being taken
            if monotonic() + _FULL >= until:
                raise _nobody(path, error) from None
            sleep(_FULL)
        except OSError as error:
            raise _nobody(path, error) from None


def _may_not(path: Path) -> Exception:
    return refusal(
        f"Expected a socket that user {os.getuid()} may open, got {path}, which it may not. Put the "
        "user into the group of the party's folder, and name it to securefl party serve with --allow."
    )


def _nobody(path: Path, error: OSError) -> Exception:
    return PeerSilent(f"Expected a party at {path}, got: {error}. Start it: securefl party serve.")


def send(
    path: Path | str,
    request: bytes,
    *,
    timeout: float,
    user: int | None = None,
    compute: Callable[[Compute], Computed | None] = lambda order: None,
) -> bytes:
    """Send a request to the party at `path`, compute for it if it orders that, and return its reply.

        >>> from securefl.deployment import send
        >>> from securefl.errors import RemoteProtocolError
        >>> try:
        ...     send("/nowhere/party.sock", b"", timeout=1)
        ... except RemoteProtocolError as error:
        ...     print(str(error).partition(", got")[0])
        peer in phase line: Expected a party at /nowhere/party.sock

    Args:
        path: of the party's socket.
        request: the bytes of an envelope.
        timeout: seconds for connecting, sending, computing and receiving together.
        user: the number of the party's user; by default the owner of the socket.
        compute: gives the result of an order, or None if there is none. The party is told no reason. By
            default there is no app here, and the party abstains.

    Returns:
        The bytes of the reply.

    Raises:
        RemoteProtocolError: no party runs there, another user could have put that socket there or listens at
            it, the party refuses this user, or it does not reply in time.
    """
    with reached(path, timeout=timeout, user=user) as line:
        reply = line.query(request)
        while (order := _order(reply)) is not None:
            result = compute(order)
            reply = line.query(REFUSED if result is None else encode_envelope(result))
    return reply


def _order(reply: bytes) -> Compute | None:
    """The order to compute that these bytes are, or None for a reply, which the relay does not read."""
    try:
        return decode_envelope(reply, Compute, sender="party")
    except RemoteProtocolError:
        return None
