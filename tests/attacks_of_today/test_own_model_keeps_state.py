"""A model of the study's own may keep state between rounds, and the card of its study does not say so.

FedAvg's update is declared `reads_state = "none"`, whatever the model is. A module that keeps a list, a
class attribute or a file reads state that a lying server chose by earlier queries. i59.1: "Code that is not
ours counts as reading state: the card says 'not held'"; the table of the threat model has "Flower apps,
loops and protocols of others" alone, and `fedavg` as "held".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.own_study import folder
from support.tiny_study import with_privacy, world

from securefl.algorithm.clients import ClientContext
from securefl.engine.privacy_card import learns
from securefl.study.composition import composition
from securefl.study.config import read

NET = """
import torch
from torch import nn

SEEN = []


class Net(nn.Module):
    def __init__(self, inputs, outputs, width=4):
        super().__init__()
        self.body = nn.Linear(inputs, width)
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        if self.training:  # a cache of its author's: the scale of the first activations of its life
            if not SEEN and bool(x.any()):
                SEEN.append(float(self.body(x).detach().abs().mean()))
            return self.head(self.body(x).relu() / (SEEN or [1.0])[0])
        return self.head(self.body(x).relu())
"""


def test_the_card_of_a_study_with_a_model_of_its_own_says_what_is_not_held(tmp_path: Path) -> None:
    path = folder(tmp_path / "study", rounds=2)
    hidden = {
        "sum": '"masked"',
        "corrupt": "0.0",
        "dropout": "0.0",
        "min_cohort_size": "2",
        "max_client_weight": "0.9",
    }
    path.write_text(with_privacy(path.read_text(), hidden))
    (path.parent / "net.py").write_text(NET)
    study = read(path)
    here = world(study)
    algorithm, plan = composition(study, study.arms[0], here)
    part = algorithm.contributions[0]

    def update(broadcast: np.ndarray, number: int) -> np.ndarray:
        x, y = here.records[0]
        return part.compute(
            ClientContext(
                client=0,
                round=number,
                x=x,
                y=y,
                broadcast=broadcast,
                public={},
                rng=np.random.default_rng(number),
            )
        ).floats()

    start = algorithm.start().broadcast
    update(
        1e6 * start, 1
    )  # the server's first query: the others keep a scale that kills the body's gradients
    after = update(start, 2)
    seen = part.problem.model.factory.__init__.__globals__["SEEN"]
    seen.clear()
    fresh = update(start, 2)
    moved = float(np.abs(after - fresh).max())
    assert moved < 1e-9 or "state that code" in learns(plan, [part.spec], "server"), f"moved by {moved:.3g}"
