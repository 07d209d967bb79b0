"""How many files a value touches on its way: the code that runs with it in hand.

    python tools/files_touched.py

Plays the first Ask of a tiny study under a trace. A file counts if one of its functions is given the value or
gives it back: an object that carries it, or an array or bytes that were made of it. Two ways are followed: a
profile from its client to the score (FedProf, encrypted scores), and FedLog's phi from its client to the head
eta (sums in the clear, and masked). `make check` prints the files.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np

import securefl
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
{privacy}
noise = "none"
unit = "record"
adjacency = "replace-one"
delta = 1e-5
budget = inf
adversaries = ["server", "key-holder", "others"]
non_private = {values}
min_cohort_size = 2
min_honest = 2
max_client_weight = 0.5
[[arm]]
name = "x"
{arm}
"""
CARRIERS = {
    "Profile",
    "Features",
    "Split",
    "Value",
    "Concealed",
    "Release",
    "Delivered",
    "Contribution",
    "OpenRequest",
    "OpenReply",
    "Blinded",
    "Score",
    "MaskedInput",
    "Summed",
    "Opened",
    "Total",
}
CLEAR, MASKED = (
    'sum = "clear"\nscores = "{}"',
    'sum = "masked"\nscores = "clear"\ndropout = 0.2\ncorrupt = 0.0',
)
FEDPROF, FEDLOG = 'protocol = "fedprof"\nfraction = 0.4\nalpha = 10.0', 'protocol = "fedlog"'
WAYS = {
    "profile to score": (CLEAR.format("ckks"), ["update", "profile"], FEDPROF),
    "phi to eta": (CLEAR.format("clear"), ["statistic"], FEDLOG),
    "phi to eta, masked": (MASKED, ["statistic"], FEDLOG),
}
"""How sums and scores are taken, what is sent without noise, and the arm."""


class Trace:
    """Follows a value: what a function makes of what it is given is followed too.

    Followed are carriers, and arrays and bytes that a function returns which was given something followed.
    """

    def __init__(self) -> None:
        self._followed: dict[int, Any] = {}
        self._given: set[int] = set()
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, result: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event not in ("call", "return") or not any(room in file.parents for room in ROOMS):
            return
        if event == "call" and self.follows(tuple(frame.f_locals.values())):
            self._given.add(id(frame))
        elif event == "return" and id(frame) in self._given:
            self._given.remove(id(frame))
            self.follow(result)
        elif event == "call" or not self.follows(result):
            return
        self.files.add(str(file.resolve().relative_to(ROOT)))

    def follows(self, value: Any) -> bool:
        found = [one for one in held(value) if type(one).__name__ in CARRIERS]
        for one in found:
            self.follow(list(getattr(one, "__dict__", {}).values()))
        return bool(found) or any(id(one) in self._followed for one in held(value))

    def follow(self, value: Any) -> None:
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


def touched(study: str) -> list[str]:
    """The files below the root that have the value in hand."""
    trace, query = Trace(), InProcess.query

    def traced(*given: Any) -> Any:
        """The first Ask alone: FedProf's is for profiles, before there are updates."""
        sys.setprofile(None if trace.files else trace)
        try:
            return query(*given)
        finally:
            sys.setprofile(None)

    with tempfile.TemporaryDirectory() as folder, patch.object(InProcess, "query", traced):
        securefl.run(study, out=folder, progress=False)
    return sorted(trace.files)


if __name__ == "__main__":
    for name, (privacy, values, arm) in WAYS.items():
        files = touched(STUDY.format(privacy=privacy, values=values, arm=arm))
        print(f"{name}: {len(files)} files: {', '.join(files)}")
