"""Heads on the digits as features: the problem, the study and the world."""

from __future__ import annotations

from functools import cache

import numpy as np

from securefl.study.config import Study, parse
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.training import LocalTraining, ModelConfig
from securefl.training.task import Problem
from support.head_studies import on_digits


def problem(width: int = 5, classes: int = 3, clients: int = 2) -> Problem:
    """Records that are their own features."""
    return Problem(
        model=ModelConfig(kind="mlp", hidden=()),
        local=LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1, batch_size=4),
        kind="classification",
        shape=(width,),
        outputs=classes,
        clients=clients,
        records=100,
        server_x=np.zeros((1, width), np.float32),
        server_y=np.zeros(1, np.int64),
        seed=1,
    )


def study(
    noise: str = "central", epsilon: float | str = 1.0, options: str = "", *, rounds: int = 1, **changed: str
) -> Study:
    """`changed` are words of the text, such as clients and adjacency."""
    arm = f'name = "heads"\nprotocol = "heads"\n{options}'
    return parse(on_digits("heads", arm, noise=noise, epsilon=epsilon, rounds=rounds, **changed))


@cache
def world() -> World:
    return build(study(), 1)
