"""What an observer of the network sees of a study's run, and worlds in which one client's records differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from securefl.core.release import OTHERS
from securefl.core.wire import peek
from securefl.core.wire.coding import MAGIC
from securefl.engine.drive import Packet
from securefl.engine.network import Network
from securefl.engine.party.computing import Records
from securefl.study.arm import ArmRun
from securefl.study.config import Study
from securefl.study.seeded import World
from support.tiny_study import run

# What an observer of the network sees -------------------------------------------------------------

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


def spoilt(here: World, *hows: str) -> World:
    """So many of the client's first records are replaced by ones that cannot be used."""
    x, y = (part.copy() for part in here.records[TARGET])
    for row, how in enumerate(hows):
        match how:
            case "label":
                y[row] = 2**40
            case "negative label":
                y[row] = -7
            case _:
                x[row] = float(how)
    return having(here, x, y)


def all_spoilt(here: World, how: str) -> World:
    """No record of the client can be used."""
    return spoilt(here, *[how] * len(here.records[TARGET][1]))


SPOILT = ("nan", "inf", "1e30", "label", "negative label")


NEIGHBOURS = {
    "none": lambda here: few(here, 0),
    "one": lambda here: few(here, 1),
    "one less": lambda here: few(here, -1),
    "several spoilt": lambda here: spoilt(here, *SPOILT),
    **{f"one {how}": lambda here, how=how: spoilt(here, how) for how in SPOILT},
    **{f"all {how}": lambda here, how=how: all_spoilt(here, how) for how in SPOILT},
}


# What must be alike ---------------------------------------------------------------------------------


def epsilon(found: Transcript, party: str = OTHERS) -> float:
    assert found.finished is not None
    return float(found.finished.records[-1]["epsilon"][party])


def require_alike(
    of: Study, folder: Path, neighbours: Iterable[str], here: World, base: Transcript | None = None
) -> None:
    """Nothing of a run in these neighbours of a world differs from one in the world itself.

    base: what was seen in this world, if it has run already.
    """
    base = base or transcript(of, here, folder / "base")
    # what the second sum of ADDS holds, and whether there is one, follows from noised counts; the length of a
    # coded change of the model follows from noised updates
    adaptive = of.arms[0].protocol in ("adds", "cs_fl", "stc")
    for name in neighbours:
        other = transcript(of, NEIGHBOURS[name](here), folder / name.replace(" ", "-"))
        places = [{seen.place for seen in own.seen} for own in (base, other)]
        if not adaptive or places[0] == places[1]:
            assert epsilon(other) == epsilon(base) < 100
        if adaptive:
            shared = places[0] & places[1]
            assert shared
            one, two = (
                Counter(replace(seen, size=0) for seen in own.seen if seen.place in shared)
                for own in (base, other)
            )
            assert one == two, name
            require_level(other)
            continue
        assert other.pattern() == base.pattern(), name


def require_level(found: Transcript) -> None:
    """Whatever one client contributes, each client contributes at the same length."""
    sizes: dict[Any, set[int]] = {}
    for seen in found.seen:
        if seen.kind == "contribution":
            sizes.setdefault(seen.place, set()).add(seen.size)
    assert all(len(own) == 1 for own in sizes.values())
