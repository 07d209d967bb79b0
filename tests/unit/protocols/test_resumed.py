"""A run that stopped and went on is the uninterrupted one, with whatever server and clients keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_study import plain, run, same_state, study, world

from securefl.algorithm.clients import State
from securefl.study.arm import arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.run import run_arm

OPTIONS = {
    "fedper": "fraction = 0.5",
    "fedrep": "fraction = 0.5\nhead_epochs = 1",
    "fedbabu": "fraction = 0.5\nfine_tune_epochs = 1",
    "feddbe": "fraction = 0.5",
    "pfedme": "fraction = 0.5\nlamda = 2.0\neta = 0.4",
    "fedavg": (
        'fraction = 0.5\naggregation = "partial"\nlocal = { update_bound = 0.02, bound_quantile = 0.5 }'
    ),
    "fedcor": "fraction = 0.5\nwarm_up = 1\ninterval = 1",
    "fedlog": 'body = "private"',
    "fedproto": "",
    "stc": "fraction = 0.5\np = 0.05",
    "cs_fl": "fraction = 0.5\nsparsity = 0.01",
    "cs_fl signs": "fraction = 0.5\nsparsity = 0.01\nmeasurements = 0.3\nsigns = true",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    """Bit for bit, though some clients do not answer."""
    arm = f'[[arm]]\nname = "x"\nprotocol = "{name.split()[0]}"\n{OPTIONS[name]}\n'
    sent = '["update", "loss", "consensus", "statistic", "votes"]'
    of = study(arm, rounds=3, non_private=sent, extra="[network]\ndropout = 0.2\n")
    here = world(of)
    whole = run(of, tmp_path / "whole", here=here)
    for rounds in (1, 2, 3):
        parts = run_arm(of, of.arms[0], here, tmp_path / "parts", lambda record: None, rounds=rounds)
    assert plain(parts.records) == plain(whole.records)
    one, other = (everything(of, tmp_path / part) for part in ("whole", "parts"))
    assert one.keys() == other.keys()
    assert all(same_state(one[k], other[k]) for k in one)
    assert len(one) > (name not in ("fedavg", "fedcor")), "clients keep something"


def everything(of: Any, folder: Path) -> dict[Any, State]:
    """The server's state, and those of the clients."""
    with Checkpoint(checkpoint_file(arm_folder(folder, of.arms[0], 3))) as checkpoint:
        server = checkpoint.load()[0]
        assert server is not None
        nothing = np.zeros(0, np.float32)
        return {"server": server, **{k: State(nothing, own) for k, own in checkpoint.kept().items()}}
