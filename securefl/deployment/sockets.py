"""An exchange over the Unix sockets of parties, for a server that reaches all of them on its own machine.

A party of another machine has its socket here if an SSH connection forwards it
(`ssh -N -L HERE:THERE host`).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from securefl.core.errors import RemoteProtocolError
from securefl.core.logs import logger
from securefl.deployment.connection import send
from securefl.deployment.framing import MOST

_log = logger(__name__)


class SocketExchange:
    """Sends each party its request over its socket, all at once, and returns the replies that came in time.

        >>> from securefl.deployment import SocketExchange
        >>> exchange = SocketExchange({"client-0000": "/nowhere/party.sock"}, deadline=5.0)
        >>> exchange({"client-0000": b"a request", "client-0001": b"another"})  # nobody listens
        {}

    Args:
        sockets: the path of each party's socket. A party without one is silent.
        deadline: seconds for one request and its reply. One of them includes the training.
        most: the longest reply in bytes.

    Raises:
        ValueError: the deadline is not positive and finite.
    """

    def __init__(self, sockets: Mapping[str, Path | str], *, deadline: float, most: int = MOST) -> None:
        if not 0 < deadline < float("inf"):
            raise ValueError(f"Expected a deadline of some seconds for each request, got {deadline}.")
        self._sockets, self._deadline, self._most = dict(sockets), deadline, most

    def __call__(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """The replies to these requests, by party."""
        known = [name for name in requests if name in self._sockets]
        if not known:
            return {}
        with ThreadPoolExecutor(len(known)) as pool:
            replies = pool.map(lambda name: self._sent(name, requests[name]), known)
            return {name: reply for name, reply in zip(known, replies, strict=True) if reply is not None}

    def _sent(self, name: str, request: bytes) -> bytes | None:
        try:
            return send(self._sockets[name], request, timeout=self._deadline, most=self._most)
        except RemoteProtocolError as error:
            _log.info("%s: no reply: %s", name, error)
            return None
