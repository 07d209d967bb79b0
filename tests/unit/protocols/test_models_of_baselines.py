"""Models of the user's own that a baseline cannot train: each is refused before a run, by name."""

from __future__ import annotations

from typing import Any

import pytest
from support.every import every
from support.tiny_problem import tiny_problem
from torch import Tensor, nn

from securefl.core.errors import ConfigError
from securefl.protocols.fedbabu import FedBABU
from securefl.protocols.feddbe import FedDBE
from securefl.protocols.fedlog import FedLog
from securefl.protocols.fedper import FedPer
from securefl.protocols.fedproto import FedProto
from securefl.protocols.fedrep import FedRep
from securefl.protocols.heads import Heads
from securefl.protocols.lg_fedavg import LGFedAvg
from securefl.training import Problem
from securefl.training.own_models import OwnModel

NEED_A_HEAD: dict[str, Any] = {
    "fedrep": FedRep(),
    "fedbabu": FedBABU(fine_tuned="head"),
    "fedproto": FedProto(),
    "feddbe": FedDBE(),
    "fedlog": FedLog(body="private"),
    "fedlog, public body": FedLog(),
    "heads": Heads(head="prototypes"),
}


class Bare(nn.Module):
    """A head without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())  # type: ignore[no-any-return]


class Backwards(nn.Module):
    """The body is listed behind the head."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(8, 3), nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())  # type: ignore[no-any-return]


def problem(factory: Any) -> Problem:
    return tiny_problem(model=OwnModel(factory=factory, name="mine").resolved((6,), 3, 2))


@every("factory", [Bare, Backwards])
@every("name", NEED_A_HEAD)
def test_a_head_that_cannot_be_set_is_refused_before_a_run(name: str, factory: Any) -> None:
    """All clients of FedRep abstained in every round; FedProto and FedLog stopped in round 1."""
    with pytest.raises(ConfigError, match="layer has 3 outputs"):
        NEED_A_HEAD[name].build(problem(factory)).start()


class Behind(nn.Module):
    """Its outputs are those of a layer behind the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.norm = nn.Linear(6, 8), nn.Linear(8, 3), nn.LayerNorm(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.head(self.body(x).relu()))  # type: ignore[no-any-return]


def test_feddbe_refuses_a_model_without_a_place_for_its_bias_before_a_run() -> None:
    with pytest.raises(ConfigError, match="dense layer with a bias"):
        FedDBE().build(problem(Behind))


SHARING: dict[str, Any] = {"fedper": FedPer(), "lg_fedavg": LGFedAvg(), "fedbabu": FedBABU()}


@every("name", SHARING)
def test_a_head_is_shared_or_kept_with_or_without_a_bias(name: str) -> None:
    """But never the body in its place: FedPer kept the bodies of a model that lists them last."""
    shared = SHARING[name].build(problem(Bare)).start().broadcast
    assert len(shared) == (24 if name == "lg_fedavg" else 56)
    with pytest.raises(ConfigError, match="the head behind the body"):
        SHARING[name].build(problem(Backwards)).start()
