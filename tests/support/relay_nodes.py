"""Nodes of Flower as processes of other users: each runs the packaged app, without a party's files."""

from __future__ import annotations

from multiprocessing.connection import Connection

from flwr.app import Context, RecordDict

from securefl.flower.studies import client_app
from support import grid_double  # noqa: F401 - without it, Flower lets nobody make a message
from support.other_users import become


def node_as(user: int, groups: list[int], pipe: Connection) -> None:
    """Answer messages that come through the pipe, each with the configuration of its node."""
    become(user, groups)
    while True:
        try:
            message, config = pipe.recv()
        except EOFError:
            return
        pipe.send(client_app(message, Context(1, 2, config, RecordDict(), {})))
