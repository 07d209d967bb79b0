"""A model of a study's own may keep state from pass to pass: the card of its study says that it is not held.

A lying server chooses such state by earlier queries, as it does with state that a protocol keeps. Nobody can
see it: it may lie in a list, a class or a file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from support.every import every
from support.own_study import folder
from support.tiny_study import study, with_privacy, world
from torch import nn
from who_learns import stance

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.plan import Plan
from securefl.engine.privacy_card import learns
from securefl.study.composition import composition
from securefl.study.config import read
from securefl.training.own_models import OwnModel

HEAD = """
from pathlib import Path

from torch import nn

SEEN = []
"""
BODY = """

class Net(nn.Module):
    largest = 0.0

    def __init__(self, inputs, outputs, width=4):
        super().__init__()
        self.body = nn.Linear(inputs, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        if self.training:  # scaled by the largest activations of its life
            found = float(self.body(x).detach().abs().mean())
            return self.head(self.body(x).relu() / (1.0 + kept(found)))
        return self.head(self.body(x).relu())
"""
KEEPS = {
    "a list": """
def kept(found):
    SEEN[:] = [max([found, *SEEN])]
    return SEEN[0]
""",
    "a class": """
def kept(found):
    Net.largest = max(found, Net.largest)
    return Net.largest
""",
    "a file": """
def kept(found):
    seen = float(Path(PLACE).read_text()) if Path(PLACE).exists() else 0.0
    Path(PLACE).write_text(str(max(found, seen)))
    return max(found, seen)
""",
}
PLAIN = """
def Net(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, outputs))
"""


def composed(root: Path, code: str) -> tuple[Any, Plan, np.ndarray, Any]:
    path = folder(root, rounds=2)
    hidden = {
        "sum": '"masked"',
        "corrupt": "0.0",
        "dropout": "0.0",
        "min_cohort_size": "3",
        "max_client_weight": "0.9",
    }
    path.write_text(with_privacy(path.read_text().replace("fraction = 0.5", "fraction = 1.0"), hidden))
    (path.parent / "net.py").write_text(HEAD + code)
    of = read(path)
    here = world(of)
    algorithm, plan = composition(of, of.arms[0], here)
    part = algorithm.contributions[0]
    return part, plan, algorithm.start().broadcast, here.records[0]


def moved(root: Path, code: str) -> float:
    """How far another history moves client 0's update under one broadcast, and the same draws."""
    found = []
    for history in (True, False):
        (root / str(history)).mkdir(parents=True)
        own = code.replace("PLACE", repr(str(root / str(history) / "scale")))
        part, _, start, (x, y) = composed(root / str(history) / "study", own)

        def update(
            broadcast: np.ndarray, number: int, part: Any = part, x: Any = x, y: Any = y
        ) -> np.ndarray:
            rng = np.random.default_rng(number)
            context = ClientContext(client=0, round=number, x=x, y=y, broadcast=broadcast, public={}, rng=rng)
            return part.compute(context).floats()

        if history:
            update((1e6 * start).astype(np.float32), 1)
        found.append(update(start, 2))
    return float(np.abs(found[0] - found[1]).max())


@every("kept", KEEPS)
def test_the_card_says_that_state_of_a_model_s_own_code_is_not_held(kept: str, tmp_path: Path) -> None:
    assert moved(tmp_path / "played", KEEPS[kept] + BODY) > 1e-3, "otherwise it keeps nothing that tells"
    part, plan, _, _ = composed(
        tmp_path / "study", KEEPS[kept].replace("PLACE", repr(str(tmp_path / "scale"))) + BODY
    )
    assert "not held against a server that lies: state that code" in learns(plan, [part.spec], "server")
    assert stance(plan, [part.spec]) == "not held, said"


def test_listed_layers_keep_nothing_and_the_card_says_nothing_of_it(tmp_path: Path) -> None:
    assert moved(tmp_path / "played", PLAIN) == 0
    part, plan, _, _ = composed(tmp_path / "study", PLAIN)
    assert "state that code" not in learns(plan, [part.spec], "server")
    assert stance(plan, [part.spec]) == "held"


class Counting(nn.ReLU):
    """A layer that only looks like a listed one."""

    passes = 0

    def forward(self, x: object) -> object:
        Counting.passes += 1
        return super().forward(x)


def hooked() -> nn.Module:
    layer = nn.ReLU()
    layer.register_forward_hook(lambda own, given, came: came)
    return layer


@every("layer", [Counting, hooked])
def test_a_subclass_or_a_hook_is_code_of_its_own(layer: type[nn.Module]) -> None:
    problem = world(study()).problem
    assert not problem.own_code

    def made(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 4), layer(), nn.Linear(4, outputs))

    assert replace(problem, model=OwnModel(factory=made, name="made")).own_code
