"""FedLog and LG-FedAvg with bodies that clients train, on digits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState
from securefl.protocols.class_sums import Featurizer
from securefl.study.arm import ArmRun
from securefl.study.config import Study, parse
from securefl.study.run import run_arm
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.training.run_jobs import run_job

FEDLOG = 'name = "FedLog"\nprotocol = "fedlog"\nbody = "private"'


def study(arm: str = FEDLOG, *, rounds: int = 3, hidden: str = "[32]", **privacy: str) -> Study:
    words = {
        "noise": '"none"',
        "unit": '"record"',
        "non_private": '["statistic", "update"]' if "lg" in arm else '["statistic"]',
        "adversaries": '["server", "others"]',
        "adjacency": '"add-remove"',
        **privacy,
    }
    if "lg" in arm:
        words["non_private"] = '["update"]'
    lines = "\n".join(f"{key} = {value}" for key, value in words.items())
    return parse(
        f"""
[study]
name = "bodies"
rounds = {rounds}
[data]
source = "digits"
clients = 10
partition = {{ kind = "classes", per_client = 2 }}
[model]
kind = "mlp"
hidden = {hidden}
[local]
optimizer = "adam"
learning_rate = 0.003
epochs = 2
batch_size = 10
[privacy]
sum = "clear"
scores = "clear"
delta = 1e-5
budget = inf
{lines}
[[arm]]
{arm}
"""
    )


@cache
def world(hidden: str = "[32]") -> World:
    return build(study(hidden=hidden), 0)


def run(of: Study, folder: Path, here: World | None = None, tell: Any = lambda record: None) -> ArmRun:
    return run_arm(of, of.arms[0], here or world(), folder, tell)


def context(here: World, x: Any, y: Any, model: Any, kept: Mapping[str, Any] | None = None) -> ClientContext:
    rng = np.random.default_rng(1)
    return ClientContext(client=0, round=1, x=x, y=y, broadcast=model, public={}, rng=rng, kept=kept or {})


PLAN = Plan(
    noise="distributed",
    noise_multiplier=3.0,
    dropout=0.2,
    corrupt=0.2,
    adjacency="add-remove",
    delta=1e-5,
    max_rounds=1,
)


def prepared(body: Featurizer, own: ClientContext) -> tuple[nn.Module, ClientState | None]:
    """The client's model as its body's training leaves it."""
    fit = body.fit(own)
    return body.prepared(own, None if fit is None else run_job(fit))
