"""A secure wrapper of a Flower ClientApp: its results leave the client only through the client's party.

    inner = ClientApp()          # any app, with @inner.train() and @inner.evaluate()
    app = secure(inner)

The wrapper carries frames between the server and the party. While the party answers a frame, it may order
training: the inner app trains here, and its result goes to the party, which charges, clips, weighs, noises
and masks it. A message that asks the inner app directly gets a constant error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from securefl.core.errors import ConfigError, RemoteProtocolError
from securefl.core.logs import logger
from securefl.deployment.computing import answered
from securefl.deployment.connection import reached
from securefl.deployment.messages import Compute, Computed
from securefl.flower.exchange import relay
from securefl.flower.records import Task

PARTY: Final = "securefl-party"
SOCKET: Final = "securefl-socket"
"""Keys of a node's `--node-config`: the party that it relays for, and that party's socket."""
Beside = Callable[[Context], tuple[str, Path]]
"""Gives the party that a node relays for, and the party's socket."""
_log = logger(__name__)


def by_node_config(context: Context) -> tuple[str, Path]:
    """The party that the node's configuration names. Raises ConfigError if it names none."""
    name, path = (context.node_config.get(key) for key in (PARTY, SOCKET))
    if not isinstance(name, str) or not isinstance(path, str):
        raise ConfigError(
            f"Expected {PARTY} and {SOCKET} in the node's configuration, got {sorted(context.node_config)}. "
            f'Start the node with --node-config \'{PARTY}="client-0000" {SOCKET}="/run/.../party.sock"\'.'
        )
    return name, Path(path)


def in_house(folder: Path, clients: int) -> Beside:
    """For a simulation: the parties of a `LocalDeployment` in this folder, by partition; the last is the key
    holder.
    """
    # Imported here, because it takes seconds to load, stock nodes load this module for every message, and a
    # node in a deployment does not need it.
    from securefl.core.messages import client_name
    from securefl.core.release import KEY_HOLDER
    from securefl.deployment.local import socket_of

    def beside(context: Context) -> tuple[str, Path]:
        number = int(context.node_config["partition-id"])
        name = client_name(number) if number < clients else KEY_HOLDER
        return name, socket_of(folder, name)

    return beside


def secure(inner: ClientApp, *, beside: Beside = by_node_config, patience: float = 3600.0) -> ClientApp:
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
        patience: seconds for one request, training included.

    Returns:
        The wrapped app. After an error it replies with one constant error, and the reason is in the node's
        log.

    Raises nothing.
    """
    return _SecureApp(inner, beside, patience)


class _SecureApp(ClientApp):
    """The wrapped app. Flower calls it with every message of every type, so no message bypasses it."""

    def __init__(self, inner: ClientApp, beside: Beside, patience: float) -> None:
        super().__init__()
        self._inner, self._beside, self._patience = inner, beside, patience

    def __call__(self, message: Message, context: Context) -> Message:
        name, path = self._party(context)
        return relay(message, name, lambda request: self._asked(path, request, message, context))

    def _party(self, context: Context) -> tuple[str, Path]:
        try:
            return self._beside(context)
        except Exception as error:
            # Logged and not raised, because Flower sends an exception's text to the server.
            _log.warning("Expected a party beside this node: %s", error)
            return "", Path(os.devnull)

    def _asked(self, path: Path, request: bytes, message: Message, context: Context) -> bytes:
        with reached(path, timeout=self._patience) as line:

            def query(frame: bytes) -> bytes:
                line.send(frame)
                reply = line.receive()
                if reply is None:
                    raise RemoteProtocolError("Expected a reply, got the connection's end.", sender="party")
                return reply

            return answered(query, request, lambda compute: self._computed(compute, message, context))

    def _computed(self, compute: Compute, message: Message, context: Context) -> Computed | None:
        """The inner app's result, or None after an error. The reason is only in this node's log."""
        try:
            task = Task.decoded(compute.task)
            content = RecordDict(
                {
                    task.arrays_key: task.layout.record(compute.broadcast),
                    task.config_key: ConfigRecord(dict(task.config)),
                }
            )
            asked = Message(content, reply_to=message)
            asked.metadata.message_type = compute.kind
            return _result(self._inner(asked, context), task, compute)
        except Exception:  # foreign code may raise anything, and its text must stay on this node
            _log.exception("The app gave no result to %s in round %d.", compute.kind, compute.round)
            return None


def _result(reply: Message, task: Task, compute: Compute) -> Computed:
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
