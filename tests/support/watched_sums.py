"""A study's sums as they are asked for, and what each of its clients puts into them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securefl.algorithm.queries import Answers, CohortQuery, Value
from securefl.core.release import Release, ReleaseKey
from securefl.core.wire import Header
from securefl.engine.inprocess import InProcess
from securefl.engine.observer import Log
from securefl.engine.party import contributing
from securefl.mechanisms.charges import Protection


class Watched:
    """Every ask with its answers, and the grid integers that each client hides, or sends in the clear."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Header, CohortQuery, Answers]] = []
        self._left: dict[tuple[int, int, str, int], NDArray[np.int64]] = {}
        self._ask, self._protect = InProcess.query, contributing.protect
        patch.setattr(InProcess, "query", lambda engine, *asked: self.query(engine, *asked))
        patch.setattr(contributing, "protect", self.protect)

    def left(self, header: Header, name: str, answers: Answers) -> list[NDArray[np.int64]]:
        """What the survivors of an ask put into the sum of this name, one array a client."""
        return [self._left[header.round, header.stage, name, k] for k in answers.survivors]

    def query(
        self, engine: InProcess, query: CohortQuery, header: Header, network: Any
    ) -> tuple[Answers, Log]:
        answers, log = self._ask(engine, query, header, network)
        self.asked.append((header, query, answers))
        return answers, log

    def protect(
        self, protection: Protection, value: Value, *, key: ReleaseKey, conceal: Any, **given: Any
    ) -> Release:
        plan, spec = protection.plan, protection.spec
        place = (key.round, key.stage, spec.name, int(key.holder[-4:]))

        def seen(integers: NDArray[np.int64]) -> Any:
            self._left[place] = integers
            return conceal(integers)

        hidden = spec.reduction == "sum" and plan.hidden
        release = self._protect(protection, value, key=key, conceal=seen if hidden else conceal, **given)
        if spec.reduction == "sum" and not plan.hidden:
            self._left[place] = release._numbers.astype(np.int64)
        return release
