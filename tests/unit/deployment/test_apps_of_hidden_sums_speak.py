"""A client of an app is in each hidden sum that asks it, without a bound too: silence would be named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.app_sessions import EQUAL, NAMES, ONE, PLAN, Result, computed, session
from support.every import every

from securefl.algorithm.plan import Plan
from securefl.deployment.status import status
from securefl.deployment.updates import GRID, UPDATE, Updates

MASKED = {
    "sum": "masked",
    "corrupt": 0.0,
    "dropout": 0.0,
    "min_cohort_size": 3,
    "max_cohort_size": 3,
    "min_honest": 1,
    "max_client_weight": 0.85,
}
COUNTED = replace(PLAN, **MASKED, min_num_examples=32)  # type: ignore[arg-type]


@every(
    ("plan", "result", "mean", "cut"),
    [
        (replace(EQUAL, **MASKED), lambda: computed(917.0), (2 * ONE + GRID.bound) / 3, True),  # type: ignore[arg-type]
        (replace(EQUAL, **MASKED), lambda: None, 2 * ONE / 3, False),  # type: ignore[arg-type]
        (COUNTED, lambda: computed(-917.0), (2 * ONE / 2 - GRID.bound) / 1.5, True),
        # A client that adds nothing has no weight: the mean is that of the others.
        (COUNTED, lambda: computed(float("nan")), ONE, False),
        (COUNTED, lambda: None, ONE, False),
    ],
)
def test_a_client_without_a_value_of_use_is_in_the_sum(
    plan: Plan, result: Result, mean: float, cut: bool, tmp_path: Path
) -> None:
    with session(tmp_path, {"client-0001": result}, plan) as ask:
        answers, seen, presence = ask(1)
    assert answers.survivors == (0, 1, 2)
    assert seen.absent == {}
    assert presence.line() == "round 1: 3 of 3 answered"
    found = Updates().read(plan, UPDATE, answers.totals[UPDATE], 2)
    assert found.update == pytest.approx([mean, 0.0], abs=1e-5)
    said = status(tmp_path / "client-0001")
    assert [bool(said["cut"]), bool(said["missing"])] == [cut, not cut]
    assert all(not status(tmp_path / name)["missing"] for name in NAMES if name != "client-0001")
