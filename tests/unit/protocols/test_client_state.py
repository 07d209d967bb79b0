"""What a client keeps is checked whenever it is read: a damaged state is named, and trains no other model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_study import study, world
from support.trained_bodies import context

from securefl.core.errors import DataError
from securefl.protocols.compression import received
from securefl.protocols.cs_fl import CSFL
from securefl.protocols.fedavg import FedAvg
from securefl.protocols.fedlog import FedLog
from securefl.protocols.fedper import FedPer
from securefl.protocols.fedproto import FedProto
from securefl.protocols.pfedme import PFedMe
from securefl.protocols.stc import STC
from securefl.training.jobs import kept_values

KEEPING: dict[str, tuple[Any, str]] = {
    "stc": (STC(fraction=1.0), "residual"),
    "stc's model": (STC(fraction=1.0), "model"),
    "cs_fl": (CSFL(fraction=1.0), "residual"),
    "stale models": (FedAvg(fraction=1.0, aggregation="full", stale=True), "model"),
    "fedproto": (FedProto(), "model"),
    "fedlog": (FedLog(body="private"), "model"),
    "fedper": (FedPer(), "model"),
}
DAMAGE: dict[str, Callable[[Any], Any]] = {
    "nan": lambda initial: np.full_like(initial, np.nan),
    "shorter": lambda initial: initial[:-1],
    "one number": lambda initial: initial[:1],
    "float64": lambda initial: initial.astype(np.float64),
}


def test_damaged_client_state_is_named() -> None:
    initial = np.zeros(5, np.float32)
    assert kept_values({}, "model", initial) is not initial
    for bad in (
        np.zeros(4, np.float32),
        np.zeros(5),
        np.full(5, np.nan, np.float32),
        np.zeros((1, 5), np.float32),
    ):
        with pytest.raises(DataError, match="'model' to be 5 finite"):
            kept_values({"model": bad}, "model", initial)


@every("name", KEEPING)
def test_no_protocol_reads_a_damaged_state(name: str) -> None:
    """A stale model of one number was subtracted from every value, and a shorter one stopped the party."""
    here: Any = world(study())
    options, key = KEEPING[name]
    algorithm = options.build(here.problem)
    contribution = algorithm.contributions[0]
    x, y = here.records[0]
    broadcast = np.zeros(3, np.float32) if name.startswith(("stc", "cs_fl")) else algorithm.start().broadcast
    for damage in DAMAGE.values():
        kept = {key: damage(here.problem.initial)}
        with pytest.raises(DataError, match=f"'{key}' to be 610"):
            contribution.compute(context(here, x, y, broadcast, kept))


def test_a_damaged_personal_model_is_named_when_it_is_tested() -> None:
    here: Any = world(study())
    own = {"personal": np.full_like(here.problem.initial, np.nan)}
    algorithm = PFedMe(lamda=2.0, eta=0.4).build(here.problem)
    with pytest.raises(DataError, match="client state 'personal'"):
        algorithm.learnt(algorithm.start(), 0, own)  # type: ignore[attr-defined]


@every("bad", [np.zeros(0, np.int64), np.array([-1]), np.zeros(1), np.zeros((1, 1), np.int64)])
def test_a_damaged_version_is_named(bad: Any) -> None:
    with pytest.raises(DataError, match=r"client state 'version'|changes since version -1"):
        received(world(study()).problem, np.zeros(3, np.float32), {"version": bad})
