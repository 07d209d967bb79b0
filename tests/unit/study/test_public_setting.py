"""What stands around a finite epsilon is public, or marked as outside of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_study import text

from securefl.core.errors import ConfigError
from securefl.data import Split, load
from securefl.data.corruptions import blurred, polluted, salt_and_pepper, sensor_noise
from securefl.study import own_code, world
from securefl.study.config import Study, parse

DPSGD = """
[dpsgd]
clip_norm = 1.0
noise_multiplier = 1.0
sampling_rate = 0.1
expected_batch = 8.0
steps = 2
optimizer = "sgd"
learning_rate = 0.1
"""


def noised(epsilon: float) -> Study:
    study = parse(text())
    return replace(study, privacy=replace(study.privacy, noise="local", epsilon=epsilon))


def fitted(name: str, **settings: Any) -> Split:
    whole = load("digits")
    means = "its pixels were centred by the mean of all images"
    return Split(train=replace(whole.train, fitted=means), test=whole.test)


@every("study", [noised(4.0), parse(text() + DPSGD)])
def test_statistics_over_records_are_refused_under_a_finite_epsilon(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.build(study, 3)
    monkeypatch.setattr(own_code, "load", fitted)
    with pytest.raises(ConfigError, match="got 'digits'"):
        world.build(study, 3)


@every("study", [noised(float("inf")), parse(text())])
def test_without_a_finite_epsilon_they_are_fine(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_code, "load", fitted)
    assert len(world.build(study, 3).records) == study.data.clients


@every("kind", ["noisy", "polluted", "blurred", "pixel"])
def test_a_corruption_spoils_each_record_by_itself(kind: str) -> None:
    """One record more at the end, however extreme, changes none of those before it."""
    x = np.random.default_rng(0).random((6, 1, 8, 8), dtype=np.float32)
    more = np.concatenate([x, np.full((1, 1, 8, 8), 1e6, np.float32)])

    def spoilt(images: Any) -> Any:
        rng = np.random.default_rng(1)
        match kind:
            case "noisy":
                return sensor_noise(images, rng=rng)
            case "polluted":
                return polluted(images, rng)
            case "blurred":
                return blurred(images)
            case _:
                return salt_and_pepper(images, rng=rng)

    assert np.array_equal(spoilt(more)[:6], spoilt(x))
