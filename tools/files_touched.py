"""How many files a value touches on its way: the code that runs with it in hand.

    python tools/files_touched.py

Plays the first Ask of a tiny study, or a round over Flower, under a trace. A file counts if one of its
functions is given the value or gives it back: an object that carries it, or an array or bytes that were made
of it. Followed are a profile from its client to the score (FedProf, encrypted scores), FedLog's phi from its
client to the head eta (sums in the clear, and masked), that phi's charge from its plan to the ledger, and an
update from a client's Flower app, behind its party, to the strategy. `make check` prints the files.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np

import securefl
from securefl.deployment.local import LocalDeployment
from securefl.engine.inprocess import InProcess

ROOT = Path(__file__).parents[1]
ROOMS = (ROOT / "securefl", ROOT / "protocols")

STUDY = """
[study]
name = "Files"
rounds = 1
[data]
source = "digits"
clients = 5
partition = {{ kind = "iid" }}
[model]
kind = "mlp"
hidden = [8]
[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 32
[privacy]
sum = "clear"
scores = "ckks"
noise = "none"
unit = "record"
adjacency = "replace-one"
delta = 1e-5
budget = inf
adversaries = ["server", "key-holder", "others"]
min_cohort_size = 2
min_honest = 2
max_client_weight = 0.5
non_private = {}
[[arm]]
name = "x"
{}
"""
PROFILE = STUDY.format(["update", "profile"], 'protocol = "fedprof"\nfraction = 0.4\nalpha = 10.0')
STATISTIC = STUDY.format(["statistic"], 'protocol = "fedlog"')
MASKED = STATISTIC.replace('sum = "clear"', 'sum = "masked"\ndropout = 0.2\ncorrupt = 0.0')
CARRIERS = """Profile Features Split Value Release Delivered Contribution OpenRequest OpenReply
Score MaskedInput Summed Opened Total Message RecordDict ArrayRecord"""
WALKS = {
    "profile to score": (CARRIERS, PROFILE),
    "phi to eta": (CARRIERS, STATISTIC),
    "phi to eta, masked": (CARRIERS, MASKED),
    "charge to ledger": ("Charge", STATISTIC),
    "update over Flower": (CARRIERS, ""),
}
"""What carries the value, and the study that is played."""


class Trace:
    """Follows a value: what a function makes of what it is given is followed too.

    Followed are carriers, and arrays and bytes that a function returns which was given something followed.
    """

    def __init__(self, carriers: str) -> None:
        self._carriers = carriers.split()
        self._followed: dict[int, Any] = {}
        self._given: set[int] = set()
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event not in ("call", "return") or not any(room in file.parents for room in ROOMS):
            return
        given, made = id(frame) in self._given, event == "return"
        if made and given:
            self._given.remove(id(frame))
            self._follow(result)
        elif not self._follows(result if made else tuple(frame.f_locals.values())):
            return
        elif not made:
            self._given.add(id(frame))
        self.files.add(str(file.resolve().relative_to(ROOT)))

    def _follows(self, value: Any) -> bool:
        every = list(held(value))
        found = [one for one in every if type(one).__name__ in self._carriers]
        for one in found:
            self._follow(list(getattr(one, "__dict__", {}).values()))
        return bool(found) or any(id(one) in self._followed for one in every)

    def _follow(self, value: Any) -> None:
        for one in held(value):
            if isinstance(one, np.ndarray | bytes) and len(one) > 8:
                self._followed[id(one)] = one  # kept, so that no other object gets its number


def held(value: Any, depth: int = 3) -> Iterator[Any]:
    """A value, and what stands in it where it is a collection."""
    yield value
    if depth and isinstance(value, Mapping):
        with suppress(AttributeError):  # a mapping that is being made
            value = tuple(value.values())
    if depth and isinstance(value, tuple | list):
        for one in value[:64]:
            yield from held(one, depth - 1)


def touched(trace: Trace, study: str) -> None:
    """Follow the value through the first Ask: FedProf's is for profiles, before there are updates."""
    query = InProcess.query

    def traced(*given: Any) -> Any:
        sys.setprofile(None if trace.files else trace)
        try:
            return query(*given)
        finally:
            sys.setprofile(None)

    with tempfile.TemporaryDirectory() as folder, patch.object(InProcess, "query", traced):
        securefl.run(study, out=folder, progress=False)


def over_flower(trace: Trace) -> None:
    """Follow an update of three clients behind their parties, in one process and its threads."""
    sys.path.append(str(ROOT / "tests"))
    from flwr.app import ConfigRecord
    from flwr.serverapp.strategy import FedAvg
    from support import flower_apps as apps

    logging.getLogger("flwr").setLevel(logging.ERROR)
    own, rate = FedAvg(fraction_evaluate=0.0), ConfigRecord({"lr": 0.5})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        threading.setprofile(trace)
        with LocalDeployment(apps.CLEAR, apps.UPDATES, clients=apps.CLIENTS, folder=folder) as house:
            grid = apps.grid_of(house, own, apps.secured(folder))
            sys.setprofile(trace)
            own.start(grid, apps.start(), num_rounds=1, train_config=rate)
            sys.setprofile(None)
        threading.setprofile(None)


if __name__ == "__main__":
    for walk, (carriers, study) in WALKS.items():
        trace = Trace(carriers)
        touched(trace, study) if study else over_flower(trace)
        print(f"{walk}: {len(trace.files)} files: {', '.join(sorted(trace.files))}")
