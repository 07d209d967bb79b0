"""A run of Flower that carries a coordinator's requests to the parties' nodes, and their replies back.

    securefl party coordinate             a run on the SuperLink             a site
    rounds, keys, log, report  <-- socket --> ServerApp  <-- Flower --> ClientApp <-- socket --> party

The coordinator is the same process as over sockets. It submits a packaged app (`submitting`). Its ServerApp
connects to the coordinator's socket and carries one wave after the other. So no process that a SuperLink
starts has the server's keys, and rounds, attendance, resuming and exit codes are those of sockets. The
ServerApp runs on the coordinator's machine, under its user. It ends when the coordinator ends.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Final, Self

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.logs import logger
from securefl.deployment.connection import reached, send
from securefl.deployment.framing import PATIENCE, Connection
from securefl.deployment.gathering import CarrierLost
from securefl.deployment.messages import Carried, Wave, decode_envelope, encode_envelope
from securefl.deployment.peers import peer_of
from securefl.deployment.server import listening
from securefl.flower.exchange import CODE, ENTERING, UNANSWERED, GridExchange, Post, greeted, relay
from securefl.study.interruption import Stop

SOCKET: Final = "socket"
"""The run config's word for the coordinator's socket, and the node config's for a party's."""
PARTY: Final = "party"
"""The node config's word for the party that a node stands for."""
STARTING: Final = 300.0
"""Seconds in which a submitted run must connect. A busy SuperLink starts an app in about a minute."""
_HELLO: Final = 30.0
_LOOK: Final = 0.5
_ASK: Final = 10.0
_EVER: Final = 1e8
_log = logger(__name__)


# On a site ----------------------------------------------------------------------------------------------

client_app = ClientApp()


@client_app.query("securefl_hello")
@client_app.query("securefl_frame")
def pass_on(message: Message, context: Context) -> Message:
    """Relay a message to the party of this node, which its node config names: `party` and `socket`."""
    name, path = (context.node_config.get(key) for key in (PARTY, SOCKET))
    if not name or not path:
        # Not raised: Flower sends the text of an exception to the server.
        _log.warning("Expected %s and %s in the node config, got none: no answer.", PARTY, SOCKET)
        return Message(Error(CODE, UNANSWERED), reply_to=message)
    return relay(message, str(name), partial(send, Path(str(path)), timeout=message.metadata.ttl))


# Beside the coordinator, as a run of Flower ---------------------------------------------------------------

server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Carry waves until the coordinator ends."""
    path = context.run_config.get(SOCKET)
    if not path:
        raise ConfigError(
            f"Expected {SOCKET} in the run config, got none: this app carries the requests of `securefl "
            "party coordinate --flower`, which submits it. Call that command."
        )
    carry(grid, Path(str(path)))


def carry(
    grid: Grid,
    path: Path,
    *,
    clock: Callable[[], float] = monotonic,
    pause: Callable[[float], None] = sleep,
) -> None:
    """Carry waves between the coordinator's socket and this grid, until the coordinator ends the connection.

    Raises RemoteProtocolError if nobody listens at `path`, or another user than the socket's owner.
    """
    nodes = _Nodes(grid, clock, pause)
    with reached(path, timeout=_EVER) as line:

        def looking(seconds: float) -> None:
            if line.ended():
                raise _Over
            pause(seconds)

        try:
            while (order := line.receive()) is not None:
                wave = decode_envelope(order, Wave, sender="coordinator")
                requests = {name: _whole(line.receive()) for name in wave.parties}
                end = clock() + wave.seconds
                notes = nodes.look(wave.parties, wave.seconds, looking) if wave.entering else ()
                left = max(end - clock(), _LOOK)
                exchange = GridExchange(grid, nodes.of, deadline=left, clock=clock, pause=looking)
                replies = exchange(requests)
                line.send(encode_envelope(Carried(parties=tuple(replies), notes=notes)))
                for reply in replies.values():
                    line.send(reply)
        except _Over:
            _log.info("The coordinator has ended.")


class _Over(Exception):
    """The coordinator ended in the middle of a wave, so nobody waits for its replies."""


def _whole(frame: bytes | None) -> bytes:
    if frame is None:
        raise _Over
    return frame


class _Nodes:
    """The parties' nodes, by their own word. A node that Flower lost is forgotten, and may come back anew."""

    def __init__(self, grid: Grid, clock: Callable[[], float], pause: Callable[[float], None]) -> None:
        self._grid, self._clock = grid, clock
        self._known: dict[int, str] = {}

    @property
    def of(self) -> dict[str, int]:
        """The node of each party; none where two nodes name the same party."""
        # Their statements do not show which of them reaches the party.
        names = list(self._known.values())
        return {name: node for node, name in self._known.items() if names.count(name) == 1}

    def look(
        self, parties: tuple[str, ...], seconds: float, pause: Callable[[float], None]
    ) -> tuple[str, ...]:
        """Look for nodes of these parties. Returns a sentence for each party that has none."""
        here = set(self._grid.get_node_ids())
        self._known = {node: name for node, name in self._known.items() if node in here}
        if set(parties) - set(self.of):
            post = Post(self._grid, deadline=min(_HELLO, seconds / 2), clock=self._clock, pause=pause)
            self._known |= greeted(post, here - set(self._known))
        missing = [name for name in parties if name not in self.of]
        twice = [name for name in missing if name in self._known.values()]
        return tuple(
            f"Several nodes name {name}, so none is used: stop all but one."
            if name in twice
            else f"No node of {name} is connected to the SuperLink."
            for name in missing
        )


# At the coordinator ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A run that was submitted. name: for people. ended: why it is over, or empty; it may take seconds."""

    name: str
    ended: Callable[[], str] = lambda: ""


class FlowerExchange:
    """An exchange over a run of Flower, which is submitted with the first request.

    Args:
        path: of the socket at which the coordinator waits for the run. Its folder is the server's.
        submit: submits a run that carries for this socket.
        deadline: seconds for a wave. One wave includes the training.
        entering: the same for a wave of requests to enter, in which nodes are looked for.
        starting: seconds in which the run must connect.
        say: prints a line for the person who runs the server.
        stop: asked while the run starts; it raises `Interrupted` if a request to stop came.
        clock: reads seconds; tests inject another.

    Use it as a context: its end ends the run.
    """

    def __init__(
        self,
        path: Path,
        submit: Callable[[Path], Submitted],
        *,
        deadline: float,
        entering: float = ENTERING,
        starting: float = STARTING,
        say: Callable[[str], None],
        stop: Stop | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._path, self._submit = path, submit
        self._deadline, self._entering, self._starting = deadline, min(entering, deadline), starting
        self._say, self._stop, self._clock = say, stop, clock
        self._open = ExitStack()
        self._line: Connection | None = None
        self._run = Submitted(name="")
        self._noted: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def __call__(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """Send each party its request. Returns the replies that came in time. Raises CarrierLost."""
        return self._carried(requests, self._deadline, entering=False)

    def enter(self, requests: Mapping[str, bytes]) -> dict[str, bytes]:
        """The same for requests to enter."""
        return self._carried(requests, self._entering, entering=True)

    def _carried(self, requests: Mapping[str, bytes], seconds: float, *, entering: bool) -> dict[str, bytes]:
        line = self._line = self._line or self._connected()
        wave = Wave(seconds=seconds, entering=int(entering), parties=tuple(requests))
        try:
            line.send(encode_envelope(wave))
            for request in requests.values():
                line.send(request)
            carried = decode_envelope(_here(line.receive(wait=seconds + PATIENCE)), Carried, sender="flower")
            replies = {name: _here(line.receive()) for name in carried.parties}
        # Not a RemoteProtocolError to the caller, which would take it for a party's.
        except RemoteProtocolError as error:
            raise CarrierLost(
                f"Expected {self._run.name} to carry requests, got: {error} Its log is that of `flwr log`. "
                "Finished rounds are kept."
            ) from None
        if entering:
            self._tell(set(carried.notes))
        return {name: reply for name, reply in replies.items() if name in requests}

    def _tell(self, notes: set[str]) -> None:
        """Print each note once, until it is no longer true."""
        for note in sorted(notes - self._noted):
            self._say(note)
        self._noted = notes

    def _connected(self) -> Connection:
        """Submit the run, and wait until it connects. The listener ends then: nobody else can connect."""
        with listening(self._path) as listener:
            self._run = self._submit(self._path)
            self._say(f"Submitted {self._run.name}. Waiting until it starts, up to {self._starting:g} s.")
            end, ask = self._clock() + self._starting, self._clock() + _ASK
            while True:
                if (found := _accepted(listener, self._say)) is not None:
                    return Connection(self._open.enter_context(found), patience=_EVER)
                if self._stop is not None:
                    self._stop.check()
                why, now = "", self._clock()
                if now >= ask:
                    why, ask = self._run.ended(), self._clock() + _ASK
                if why or now >= end:
                    raise CarrierLost(
                        f"Expected {self._run.name} to connect to {self._path} within {self._starting:g} s, "
                        f"got {why or 'nothing'}. The SuperLink must run on this machine, as this user, with "
                        "securefl installed. Its log, and that of `flwr log`, say why it did not start."
                    )


def _here(frame: bytes | None) -> bytes:
    if frame is None:
        raise RemoteProtocolError("Expected a frame, got the end of the connection.", sender="flower")
    return frame


def _accepted(listener: socket.socket, say: Callable[[str], None]) -> socket.socket | None:
    """A connection of this process's own user, if one comes soon."""
    if not select.select([listener], [], [], _LOOK)[0]:
        return None
    connection, _ = listener.accept()
    if (user := peer_of(connection)) == os.getuid():
        return connection
    connection.close()
    say(
        f"Refused a connection of user {user} to {listener.getsockname()}: the SuperLink must run as user "
        f"{os.getuid()}, as this command does."
    )
    return None
