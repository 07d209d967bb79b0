"""The ClientApp: a softmax regression, as for plain Flower but for two lines."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from grid_app.task import records, trained
from securefl.flower import secure

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    x, y, _, _ = records(int(context.node_config["partition-id"]))
    rate = float(message.content["config"]["lr"])
    w, loss = trained(message.content["arrays"]["w"].numpy(), x, y, rate=rate)
    metrics = MetricRecord({"num-examples": len(x), "loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(w)}), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    _, _, x, y = records(int(context.node_config["partition-id"]))
    right = (x @ message.content["arrays"]["w"].numpy()).argmax(1) == y
    metrics = MetricRecord({"num-examples": len(x), "accuracy": float(np.mean(right))})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


app = secure(app)
