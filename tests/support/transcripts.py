"""What an observer of the network sees of a study: who sent what to whom, in which round, and how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefl.core.wire import peek
from securefl.core.wire.coding import MAGIC
from securefl.engine.drive import Packet
from securefl.engine.network import Network
from securefl.engine.party.computing import Records
from securefl.study.arm import ArmRun
from securefl.study.config import Study
from securefl.study.seeded import World
from support.tiny_study import run

TARGET = 1
"""The client in whose records neighbours differ."""


@dataclass(frozen=True, order=True)
class Seen:
    """One message, as far as it can be seen without its content."""

    place: tuple[int, int, int]
    kind: str
    sender: str
    to: str
    size: int


@dataclass
class Transcript:
    """All messages of a run, and what came of it."""

    seen: list[Seen] = field(default_factory=list)
    finished: ArmRun | None = None

    def pattern(self) -> Counter[Seen]:
        """Who, what, where and how long. When a message came is not promised."""
        return Counter(self.seen)


def transcript(of: Study, here: World, folder: Path) -> Transcript:
    """Run the study's first arm in this world, and watch its network."""
    found = Transcript()
    posted = Network._post

    def watch(network: Network, parcels: Sequence[Packet]) -> None:
        for parcel in parcels:
            at = len(MAGIC) + 1
            kind = parcel.data[at : at + parcel.data[at - 1]].decode()
            place = peek(parcel.data, parcel.sender).place()
            found.seen.append(Seen(place, kind, parcel.sender, parcel.to, len(parcel.data)))
        posted(network, parcels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Network, "_post", watch)
        found.finished = run(of, folder, here=here)
    return found


# Neighbours -----------------------------------------------------------------------------------------


def having(here: World, x: Any, y: Any) -> World:
    """The same world, in which the client has these records."""
    records: list[Records] = list(here.records)
    records[TARGET] = (x, y)
    return replace(here, records=records)


def few(here: World, count: int) -> World:
    """The client has so many of its records left."""
    x, y = here.records[TARGET]
    return having(here, x[:count], y[:count])


def spoilt(here: World, how: str) -> World:
    """One record of the client is replaced by one that cannot be used."""
    x, y = (part.copy() for part in here.records[TARGET])
    match how:
        case "nan" | "inf":
            x[0] = float(how)
        case "huge":
            x[0] = np.float32(1e30)
        case "label":
            y[0] = 2**40
        case "negative label":
            y[0] = -7
        case "code":
            x[0] = 2**30
        case "negative code":
            x[0] = -3
        case "target":
            y[0] = np.nan
    return having(here, x, y)


def all_spoilt(here: World, how: str) -> World:
    """No record of the client can be used."""
    x, y = (part.copy() for part in here.records[TARGET])
    for row in range(len(y)):
        one = spoilt(having(here, x[row : row + 1], y[row : row + 1]), how).records[TARGET]
        x[row], y[row] = one[0][0], one[1][0]
    return having(here, x, y)
