"""What a protocol builds is an algorithm, or is refused by what it lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from support.tiny_problem import tiny_problem

from securefl.core.errors import ConfigError
from securefl.study.composition import built
from securefl.study.config import Arm


@dataclass(frozen=True)
class Half:
    """Options of a protocol of others, whose algorithm has two of the four parts."""

    def build(self, problem: Any) -> Any:
        return self

    def start(self) -> None: ...

    def round(self) -> None: ...


def test_an_algorithm_that_lacks_parts_is_refused_by_their_names() -> None:
    arm = Arm(name="Half", protocol="half", options=Half())
    with pytest.raises(ConfigError, match="contributions, evaluate"):
        built(arm, tiny_problem())
