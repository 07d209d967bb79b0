"""Options of a registered protocol whose contributions are changed, as by a client that lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from securefl.algorithm.clients import Algorithm, Contribution
from securefl.study.arm_options import ProtocolOptions
from securefl.training.task import Problem

Change = Callable[[Contribution], Contribution]


@dataclass(frozen=True)
class Changed:
    own: ProtocolOptions
    change: Change

    def build(self, problem: Problem) -> Algorithm:
        return _Changed(self.own.build(problem), self.change)


@dataclass(frozen=True)
class _Changed:
    own: Algorithm
    change: Change

    @property
    def contributions(self) -> tuple[Contribution, ...]:
        return tuple(map(self.change, self.own.contributions))

    def start(self) -> Any:
        return self.own.start()

    def round(self, *given: Any) -> Any:
        return self.own.round(*given)

    def evaluate(self, *given: Any) -> Any:
        return self.own.evaluate(*given)
