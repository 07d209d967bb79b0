"""The clients' devices as an observer sees them, made when they are looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import overload

from securefl.algorithm import Device
from securefl.rounds import Kept
from securefl.study.world import World


class Devices(Sequence[Device]):
    """Test records and kept state of all clients.

    Most algorithms have one model, and test it on the server's records. Nothing is then dealt out.
    """

    def __init__(self, world: World, kept: Mapping[int, Kept]) -> None:
        self._world, self._kept = world, kept

    def __len__(self) -> int:
        return len(self._world.records)

    @overload
    def __getitem__(self, place: int) -> Device: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Device]: ...
    def __getitem__(self, place: int | slice) -> Device | Sequence[Device]:
        if isinstance(place, slice):
            return [self[client] for client in range(len(self))[place]]
        client = range(len(self))[place]  # IndexError beyond the last one ends an iteration
        x, y = self._world.tests[client]
        return Device(x=x, y=y, kept=self._kept.get(client, {}))
