"""The noise that an epsilon needs, of a caller who gives something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.every import every

import securefl
from securefl.core.errors import ConfigError


@every(
    "odd",
    [
        {"epsilon": "2"},
        {"epsilon": None},
        {"epsilon": np.array([1.0, 2.0])},
        {"epsilon": True},
        {"delta": "1e-5"},
        {"releases": 1.5},
        {"releases": "3"},
        {"sensitivity": "1"},
    ],
)
def test_other_values_than_numbers_are_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"Expected `{next(iter(odd))}` as (float|int)"):
        securefl.calibrate(**{"epsilon": 2.0, "delta": 1e-5, **odd})


def test_a_huge_epsilon_needs_little_noise_and_warns_of_nothing() -> None:
    assert securefl.calibrate(1e9, 1e-5) == pytest.approx(1 / np.sqrt(2e9), rel=1e-3)
