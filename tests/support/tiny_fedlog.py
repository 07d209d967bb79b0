"""FedLog with a public body, on digits: its study and its world."""

from __future__ import annotations

from functools import cache

from securefl.study.config import Study, parse
from securefl.study.seeded import World
from securefl.study.world import build
from support.head_studies import on_digits

UNIT, BOUNDED = 'clip = { kind = "unit-l2" }', 'clip = { kind = "bounded", bound = 1.0 }'


def study(
    noise: str = "central",
    epsilon: float = 1.0,
    clip: str = UNIT,
    *,
    rounds: int = 1,
    calibration: str = "exact",
    **changed: str,
) -> Study:
    arm = f'name = "FedLog"\nprotocol = "fedlog"\n{clip}'
    extra = f'calibration = "{calibration}"' if noise != "none" else ""
    own = {"seeds": "[1, 2, 3]", "hidden": "[84]", "extra": extra, **changed}
    return parse(on_digits("fedlog", arm, noise=noise, epsilon=epsilon, rounds=rounds, **own))


@cache
def world() -> World:
    return build(study(), 1)
