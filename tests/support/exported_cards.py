"""A small exported model and its card, as an export writes them."""

from __future__ import annotations

from typing import Any

from securefl.training.models import ModelConfig

MODEL: dict[str, Any] = {
    "kind": "mlp",
    "hidden": [4],
    "width": None,
    "options": {},
    "code": None,
    "shape": [6],
    "outputs": 3,
    "task": "classification",
    "reads_text": False,
    "features": None,
    "changes": [],
}
RECORDS: dict[str, Any] = {
    "columns": None,
    "shape": [6],
    "targets": [],
    "labels": [],
    "network": "",
    "features": None,
}
CARD: dict[str, Any] = {
    "study": {"name": "tiny"},
    "arm": "one",
    "seed": 3,
    "client": None,
    "part": "whole",
    "model": MODEL,
    "records": RECORDS,
}


def values() -> dict[str, Any]:
    made = ModelConfig(kind="mlp", hidden=(4,)).build((6,), 3, 7)
    return {name: entry.numpy().copy() for name, entry in made.state_dict().items()}
