"""A GPU that is not there: its tensors are on the CPU, and what it says is scripted."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass
class FakeGpu:
    """broken: why it cannot be used. None if it can, "" if there is none."""

    broken: str | None = None
    said: str = "Fake 1"
    versions: tuple[str, ...] = ("9.0", "2.13", "13.0", "91000")
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    emptied_times: int = 0

    def fault(self) -> str | None:
        return self.broken

    def name(self) -> str:
        return self.said

    def facts(self) -> tuple[str, ...]:
        return (self.said, *self.versions)

    def emptied(self) -> None:
        self.emptied_times += 1


class Exhausted(torch.nn.Module):
    """A layer without memory: its first pass fails as a full GPU does."""

    times = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.times:
            self.times -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")
        return x
