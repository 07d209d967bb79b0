"""The ClientApp: anybody's, in front of which stands the party."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from grid_app.task import CLIENTS, records, trained
from securefl.flower import secure
from securefl.flower.secure_app import PARTY, by_node_config, in_house

inner = ClientApp()


@inner.train()
def train(message: Message, context: Context) -> Message:
    x, y, _, _ = records(number_of(context))
    rate = float(message.content["config"]["lr"])
    w, loss = trained(message.content["arrays"]["w"].numpy(), x, y, rate=rate)
    metrics = MetricRecord({"num-examples": len(x), "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(w)}), "metrics": metrics}), reply_to=message)


@inner.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    _, _, x, y = records(number_of(context))
    right = (x @ message.content["arrays"]["w"].numpy()).argmax(1) == y
    metrics = MetricRecord({"num-examples": len(x), "accuracy": float(np.mean(right))})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def beside(context: Context) -> tuple[str, Path]:
    """The node's party. A node is told it as it is started; a simulation's parties share a house."""
    if PARTY in context.node_config:
        return by_node_config(context)
    return in_house(Path(str(context.run_config["house"])), CLIENTS)(context)


def number_of(context: Context) -> int:
    name, _ = beside(context)
    return int(name.removeprefix("client-"))


app = secure(inner, beside=beside)
