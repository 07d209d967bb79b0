"""A secure wrapper of a Flower ClientApp: its results leave the client only through the client's party.

    app = ClientApp()            # any app, with @app.train() and @app.evaluate()
    ...
    app = secure(app)

The wrapper carries frames between the server and the party. While the party answers a frame, it may order
training: the inner app trains here, and its result goes to the party, which charges, clips, weighs, noises
and masks it. A message that asks the inner app directly gets a constant error.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from copy import copy
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp

from securefl.core.errors import ConfigError
from securefl.core.logs import logger
from securefl.deployment.connection import send
from securefl.deployment.messages import Compute, Computed
from securefl.deployment.peers import user_of
from securefl.flower.exchange import SIMULATION, relay, stating
from securefl.flower.records import Task
from securefl.storage.files import folder_at

PARTY: Final = "securefl-party"
SOCKET: Final = "securefl-socket"
USER: Final = "securefl-user"
"""Keys of a node's `--node-config`: the party that it relays for, that party's socket, and the user who
serves it, by name or number; by default the relay's own."""
LOCAL: Final = "securefl-local"
"""The record of an app's state with the integers and booleans of its model, which stay local."""
PARTIES: Final = "securefl.parties"
"""The key of a run config for a simulation's folder of parties."""
Beside = Callable[[Context], tuple[str, Path]]
"""Gives the party that a node relays for, and the party's socket."""
_log = logger(__name__)


def by_context(context: Context) -> tuple[str, Path]:
    """The party that a node relays for, and its socket.

    They stand in the node's configuration. A simulated node has neither: its party is that of its partition,
    in the folder of the run (`simulated`).

    Raises ConfigError if the node names no party, or the folder is another user's.
    """
    name, path = (context.node_config.get(key) for key in (PARTY, SOCKET))
    if isinstance(name, str) and isinstance(path, str):
        return name, Path(path)
    if name is not None or path is not None or _partition(context) is None:
        raise ConfigError(
            f"Expected {PARTY} and {SOCKET} in the node's configuration, got {sorted(context.node_config)}. "
            f'Start the node with --node-config \'{PARTY}="client-0000" {SOCKET}="/run/.../party.sock"\'.'
        )
    return _in_simulation(context)


def _partition(context: Context) -> int | None:
    """The number of a simulated node, as Flower's simulation gives it."""
    number, count = (context.node_config.get(key) for key in ("partition-id", "num-partitions"))
    return number if type(number) is int and type(count) is int and 0 <= number < count else None


def _in_simulation(context: Context) -> tuple[str, Path]:
    # Imported here, because it takes seconds to load, stock nodes load this module for every message, and a
    # node in a deployment does not need it.
    from securefl.core.messages import client_name
    from securefl.core.release import KEY_HOLDER
    from securefl.deployment.local import socket_of

    folder, number = simulated(context), _partition(context)
    own_folder(folder)
    assert number is not None
    # The key holder is the last node. A simulation without one has as many clients as nodes.
    name = client_name(number) if socket_of(folder, client_name(number)).exists() else KEY_HOLDER
    return name, socket_of(folder, name)


def simulated(context: Context) -> Path:
    """The folder of a simulation's parties: that of the run config, or a passing one of this run."""
    said = context.run_config.get(PARTIES)
    if isinstance(said, str) and said:
        return Path(said)
    return Path(tempfile.gettempdir()) / f"securefl-{os.getuid()}-{context.run_id}"


def own_folder(path: Path, *, make: bool = False) -> None:
    """Raise ConfigError unless the folder is this user's alone. make: create it if it does not exist."""
    # Others may create folders of this name in a shared place such as /tmp, and listen in them.
    if make:
        folder_at(path, mode=0o700)
    try:
        found = path.lstat()
    except OSError as error:
        raise ConfigError(
            f"Expected the parties of a simulation in {path}, got {error.strerror}. The server app makes it: "
            "wrap its strategy by `secure_strategy`."
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"Expected a folder {path} that user {os.getuid()} alone can write to, got one of user "
            f"{found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}. Name another in {PARTIES}."
        )


def secure(inner: ClientApp, *, beside: Beside = by_context) -> ClientApp:
    """Wrap a ClientApp, so that its results leave the node only through the node's party.

        >>> from flwr.clientapp import ClientApp
        >>> from securefl.flower import secure
        >>> app = secure(ClientApp())
        >>> isinstance(app, ClientApp)
        True

    Guarantees, if the node runs this code:
        - A result of `inner` goes only to the party, and only if the party asks for it.
        - Without a party, or before a session, every message gets one constant error.
        - No text of `inner` or of its errors reaches the server.

    Args:
        inner: has train and evaluate functions as for Flower's FedAvg. It returns one ArrayRecord in the
            layout of the received one, and one MetricRecord with the number of examples.
        beside: gives the party that the node relays for, and its socket.

    Returns:
        The wrapped app. After an error it replies with one constant error, and the reason is in the node's
        log.

    Raises nothing.
    """
    return _SecureApp(inner, beside)


def inner_of(app: object) -> ClientApp | None:
    """The app that `secure` wrapped, or None if this is no such app."""
    return app.inner if isinstance(app, _SecureApp) else None


class _SecureApp(ClientApp):
    """The wrapped app. Flower calls it with every message of every type, so no message bypasses it."""

    def __init__(self, inner: ClientApp, beside: Beside) -> None:
        super().__init__()
        self.inner, self._beside = inner, beside

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == SIMULATION and _partition(context) is not None:
            return Message(stating(nodes=int(context.node_config["num-partitions"])), reply_to=message)
        name, path, user = self._party(context)
        compute = partial(self._computed, message, context)
        ask = partial(send, path, timeout=message.metadata.ttl, user=user, compute=compute)
        return relay(message, name, ask)

    def _party(self, context: Context) -> tuple[str, Path, int]:
        try:
            user = user_of(str(context.node_config.get(USER, os.getuid())))
            return (*self._beside(context), user)
        except Exception as error:
            # Logged and not raised, because Flower sends an exception's text to the server.
            _log.warning("Expected a party beside this node: %s", error)
            return "", Path(os.devnull), os.getuid()

    def _computed(self, message: Message, context: Context, compute: Compute) -> Computed | None:
        """The inner app's result, or None after an error. The reason is only in this node's log."""
        try:
            task = Task.decoded(compute.task)
            kept = context.state.array_records.get(LOCAL, ArrayRecord())
            local = {**task.local, **task.layout.own(kept)}
            # The app's message has the source and the destination of the server's, as in plain Flower.
            metadata = copy(message.metadata)
            metadata.message_type = compute.kind
            content = task.content(compute.broadcast, local)
            asked = Message(content=content, metadata=metadata)  # type: ignore[call-overload]
            reply = self.inner(asked, context)
            result = result_of(reply, task, compute)
            if compute.kind == "train" and task.layout.local:
                trained = next(iter(reply.content.array_records.values()))
                context.state[LOCAL] = ArrayRecord({**local, **task.layout.own(trained)})
            return result
        except Exception:  # foreign code may raise anything, and its text must stay on this node
            _log.exception("The app gave no result to %s in round %d.", compute.kind, compute.round)
            return None


def result_of(reply: Message, task: Task, compute: Compute) -> Computed:
    """The numbers of an app's reply. Raises ValueError or KeyError for a reply of another kind."""
    records = reply.content.metric_records
    if len(records) != 1:
        raise ValueError(f"Expected one MetricRecord of the app, got {len(records)}.")
    (metrics,) = records.values()
    values = np.zeros(0)
    if compute.kind == "train":
        arrays = reply.content.array_records
        if len(arrays) != 1:
            raise ValueError(f"Expected one ArrayRecord of the app, got {len(arrays)}.")
        values = task.layout.flat(next(iter(arrays.values())))
    return Computed(
        values=values,
        metrics=np.array([_number(metrics, name) for name in compute.metrics], dtype=np.float64),
        examples=_number(metrics, task.weight_key),
    )


def _number(metrics: MetricRecord, name: str) -> float:
    found = metrics[name]
    if isinstance(found, list):
        raise ValueError(f"Expected one number {name!r} of the app, got a list.")
    return float(found)
