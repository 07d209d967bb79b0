"""The client of the federation benchmark: it adds a constant to every model, behind its party or plainly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER
from securefl.deployment.local import socket_of
from securefl.flower.secure_app import PARTY, by_context, secure

CLIENTS = 3
inner = ClientApp()


@inner.train()
def train(message: Message, context: Context) -> Message:
    came = message.content.array_records["arrays"]
    own = {name: Array(array.numpy() + np.float32(0.5)) for name, array in came.items()}
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": ArrayRecord(own), "metrics": metrics}), reply_to=message)


def beside(context: Context) -> tuple[str, Path]:
    """A node that was started for a party is told it, as in a deployment; others find it in the house."""
    if PARTY in context.node_config:
        return by_context(context)
    house = context.node_config.get("house") or context.run_config["house"]
    number = int(context.node_config["partition-id"])
    name = client_name(number) if number < CLIENTS else KEY_HOLDER
    return name, socket_of(Path(str(house)), name)


secured = secure(inner, beside=beside)


class Either(ClientApp):
    """The inner app for what plain FedAvg asks, the secured one for all else: nodes serve both in turn."""

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train":
            return inner(message, context)
        return secured(message, context)


app = Either()
