"""Heads on the digits as features: the problem, the study and the world."""

from __future__ import annotations

from functools import cache

from securefl.study.config import Study, parse
from securefl.study.seeded import World
from securefl.study.world import build
from securefl.training.task import Problem
from support.head_studies import on_digits
from support.tiny_problem import tiny_problem


def problem(width: int = 5, classes: int = 3) -> Problem:
    """Records that are their own features."""
    return tiny_problem(width=width, hidden=(), outputs=classes, clients=2, records=100)


def study(
    noise: str = "central", epsilon: float | str = 1.0, options: str = "", *, rounds: int = 1, **changed: str
) -> Study:
    """`changed` are words of the text, such as clients and adjacency."""
    arm = f'name = "heads"\nprotocol = "heads"\n{options}'
    return parse(on_digits("heads", arm, noise=noise, epsilon=epsilon, rounds=rounds, **changed))


@cache
def world() -> World:
    return build(study(), 1)
