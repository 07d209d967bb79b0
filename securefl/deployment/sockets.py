"""An exchange over the Unix sockets of parties, for a server that reaches all of them on its own machine.

A party of another machine has its socket here by socat over ssh (docs/deployment.md, "Three machines").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from securefl.core.errors import RemoteProtocolError
from securefl.core.logs import logger
from securefl.deployment.connection import send
from securefl.deployment.framing import PeerSilent

_log = logger(__name__)
ENTERING: Final = 10.0
"""Seconds for a request to enter. A party answers it without training."""


class SocketExchange:
    """Sends each party its request over its socket, all at once, and returns the replies that came in time.

        >>> from securefl.deployment import SocketExchange
        >>> exchange = SocketExchange({"client-0000": "/nowhere/party.sock"}, deadline=5.0)
        >>> exchange({"client-0000": b"a request", "client-0001": b"another"})  # nobody listens
        {}

    Args:
        sockets: the path of each party's socket. A party without one is silent.
        deadline: seconds for one request and its reply. One of them includes the training. A request to
            enter has 10 seconds at most: a party that trains for an earlier request answers later, and is
            asked again.
        say: prints why a party's socket is not used, such as another user who listens: once, until the reason
            is another. It is not called for a party that is merely silent. By default the log gets a warning.

    Raises:
        ValueError: the deadline is not positive and finite.
    """

    def __init__(
        self,
        sockets: Mapping[str, Path | str],
        *,
        deadline: float,
        say: Callable[[str], None] | None = None,
    ) -> None:
        if not 0 < deadline < float("inf"):
            raise ValueError(f"Expected a deadline of some seconds for each request, got {deadline}.")
        self._sockets = dict(sockets)
        self._deadline, self._entering = deadline, min(ENTERING, deadline)
        self._say, self._told = say or _log.warning, dict[str, str]()

    def __call__(self, requests: Mapping[str, bytes], entering: bool = False) -> dict[str, bytes]:
        """The replies to these requests, by party. entering: whether they are requests to enter."""
        seconds = self._entering if entering else self._deadline
        known = [name for name in requests if name in self._sockets]
        if not known:
            return {}
        with ThreadPoolExecutor(len(known)) as pool:
            replies = pool.map(lambda name: self._sent(name, requests[name], seconds), known)
            return {name: reply for name, reply in zip(known, replies, strict=True) if reply is not None}

    def _sent(self, name: str, request: bytes, seconds: float) -> bytes | None:
        try:
            reply = send(self._sockets[name], request, timeout=seconds)
        except PeerSilent as error:
            _log.info("%s: no reply: %s", name, error)
            self._told.pop(name, None)
            return None
        except RemoteProtocolError as error:
            if self._told.get(name) != str(error):
                self._told[name] = str(error)
                self._say(f"{name}: {error}")
            return None
        self._told.pop(name, None)
        return reply
