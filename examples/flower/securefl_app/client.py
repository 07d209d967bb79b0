"""The ClientApp: a relay to the party beside the node. It has none of the party's files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from securefl.deployment import send
from securefl.flower import relay

app = ClientApp()


@app.query("securefl_hello")
@app.query("securefl_frame")
def pass_on(message: Message, context: Context) -> Message:
    name, socket = party_of(context)
    return relay(message, name, partial(send, socket, timeout=message.metadata.ttl))


def party_of(context: Context) -> tuple[str, Path]:
    """The party that this node stands for, and its socket.

    A SuperNode is told both as it is started (`--node-config`). A simulation numbers its nodes: they stand
    for the parties of one folder, in the order of their names.
    """
    config = context.node_config
    if "party" in config:
        return str(config["party"]), Path(str(config["socket"]))
    folders = sorted(
        one.parent.parent for one in Path(str(context.run_config["parties"])).glob("*/run/*.sock")
    )
    found = folders[int(config["partition-id"])]
    return found.name, found / "run" / "party.sock"
