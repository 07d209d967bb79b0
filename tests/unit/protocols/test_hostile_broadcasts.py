"""A server sends what no server makes: each client abstains or answers, and keeps no broken state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.every import every
from support.tiny_study import study, world
from support.trained_bodies import context

from securefl.algorithm.queries import Value
from securefl.core.errors import DataError
from securefl.protocols.cs_fl import CSFL
from securefl.protocols.fedavg import FedAvg
from securefl.protocols.fedbabu import FedBABU
from securefl.protocols.feddbe import FedDBE
from securefl.protocols.fedlog import FedLog
from securefl.protocols.fedper import FedPer
from securefl.protocols.fedproto import FedProto
from securefl.protocols.fedrep import FedRep
from securefl.protocols.lg_fedavg import LGFedAvg
from securefl.protocols.pfedme import PFedMe
from securefl.protocols.stc import STC

SYSTEMS: dict[str, Any] = {
    "fedper": FedPer(),
    "fedrep": FedRep(head_epochs=1),
    "fedbabu": FedBABU(fine_tune_epochs=1),
    "fedbabu, head": FedBABU(fine_tuned="head", fine_tune_epochs=1),
    "feddbe": FedDBE(mean_bound=1.0),
    "lg_fedavg": LGFedAvg(layers=2),
    "pfedme": PFedMe(lamda=2.0, eta=0.4),
    "fedproto": FedProto(),
    "fedlog": FedLog(body="private"),
    "stc": STC(fraction=1.0),
    "cs_fl": CSFL(fraction=1.0),
    "cs_fl, signs": CSFL(fraction=1.0, signs=True),
    "stale models": FedAvg(fraction=1.0, aggregation="full", stale=True),
}
Vector = NDArray[np.float32]
LIES: dict[str, Callable[[Vector], Vector]] = {
    "nothing": lambda sent: sent[:0],
    "one number": lambda sent: np.ones(1, np.float32),
    "too short": lambda sent: sent[:-1],
    "too long": lambda sent: np.append(sent, np.float32(1)),
    "nan": lambda sent: np.full_like(sent, np.nan),
    "inf": lambda sent: np.full_like(sent, np.inf),
    "one nan": lambda sent: np.where(np.arange(len(sent)) == len(sent) // 2, np.float32(np.nan), sent),
    "huge": lambda sent: np.full_like(sent, 3e38),
    "large": lambda sent: np.full_like(sent, -1e9),
    "noise": lambda sent: np.random.default_rng(0).normal(size=len(sent)).astype(np.float32),
}


def sent(name: str, algorithm: Any) -> Vector:
    """A broadcast of the length that a client expects."""
    if name == "fedproto":
        return np.column_stack([np.ones(10), np.zeros((10, 8))]).astype(np.float32).ravel()
    if name == "fedlog":
        return np.ones(90, np.float32)
    if name.startswith(("stc", "cs_fl")):
        return np.concatenate([np.array([1, 0, 1], np.float32), algorithm.start().broadcast])
    return np.asarray(algorithm.start().broadcast)


@every("bounded", [False, True])
@every("name", SYSTEMS)
def test_a_client_abstains_or_answers_and_keeps_nothing_broken(name: str, bounded: bool) -> None:
    here: Any = world(study())
    bound = 0.5 if bounded else None
    problem = replace(here.problem, local=replace(here.problem.local, epochs=1, update_bound=bound))
    algorithm = SYSTEMS[name].build(problem)
    x, y = (part[:20] for part in here.records[0])
    for lie in LIES.values():
        for contribution in algorithm.contributions:
            with np.errstate(all="ignore"):
                broadcast = lie(sent(name, algorithm))
            try:
                value: Value = contribution.compute(context(here, x, y, broadcast))
            except DataError:
                continue
            assert np.isfinite(value.floats()).all()
            for kept in (value.new_state or {}).values():
                assert np.isfinite(kept).all()
