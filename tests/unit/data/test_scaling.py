"""Records scaled by public constants: in training, in a test, and in an exported model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_study import FEDAVG, text, world

import securefl
from securefl.core.errors import ConfigError
from securefl.data.scaling import Scaling
from securefl.data.schema import Schema
from securefl.study.config import Study, parse

MNIST = "scaling = { mean = [0.1307], deviation = [0.3081] }\n"


def of(more: str = MNIST, source: str = "digits", **changes: Any) -> Study:
    return parse(text(FEDAVG, **changes).replace('"digits"', f'"{source}"\n{more}'))


def test_each_value_is_less_the_mean_over_the_deviation() -> None:
    plain, scaled = world(of("")), world(of())
    for (x, y), (found, same) in zip(plain.records, scaled.records, strict=True):
        np.testing.assert_allclose(found, (x.astype(np.float64) - 0.1307) / 0.3081, rtol=1e-5, atol=1e-6)
        assert found.dtype == np.float32
        assert np.array_equal(y, same)
    np.testing.assert_allclose(
        scaled.problem.server_x, (plain.problem.server_x - 0.1307) / 0.3081, rtol=1e-5, atol=1e-6
    )


def test_channels_have_constants_of_their_own() -> None:
    x = np.ones((2, 3, 4, 4), np.float32)
    found = Scaling(mean=(0.0, 1.0, 2.0), deviation=(1.0, 2.0, 4.0)).of(x)
    assert found.shape == x.shape
    assert found[0, :, 0, 0].tolist() == [1.0, 0.0, -0.25]
    assert Scaling(mean=(1.0,), deviation=(2.0,)).of(np.ones((3, 5), np.float32)).tolist() == [[0.0] * 5] * 3


def test_who_is_held_out_does_not_depend_on_the_scale() -> None:
    plain, scaled = world(of("holdout = 0.3\n")), world(of("holdout = 0.3\n" + MNIST))
    assert [len(x) for x, _ in plain.held or ()] == [len(x) for x, _ in scaled.held or ()]


def test_an_exported_model_scales_what_it_reads(tmp_path: Any) -> None:
    run = securefl.run(of().text, out=tmp_path / "run")
    x, y = run.test_records()
    assert float(x.min()) == 0.0  # as loaded: `predict` scales
    model = securefl.load(run.export(tmp_path / "model.safetensors"))
    table = run.metrics
    last = float(table[table["round"] == table["round"].max()]["accuracy"].iloc[0])
    assert np.mean(model.predict(x) == y) == pytest.approx(last, abs=1e-9)


def test_a_card_without_the_key_is_read_as_before() -> None:
    plain = Schema(columns=None, shape=(1, 8, 8))
    assert "scaling" not in plain.words()
    scaled = Schema(columns=None, shape=(1, 8, 8), scaling=Scaling(mean=(0.5,), deviation=(2.0,)))
    assert Schema.parse(plain.words()) == plain
    assert Schema.parse(scaled.words()) == scaled


def test_a_card_with_constants_for_other_channels_is_refused() -> None:
    words = Schema(columns=None, shape=(1, 8, 8)).words()
    words["scaling"] = {"mean": [0.0, 0.0], "deviation": [1.0, 1.0]}
    with pytest.raises(ConfigError, match="one mean and one dev"):
        Schema.parse(words)


@every(
    ("more", "said"),
    [
        ("scaling = { mean = [0.1, 0.2], deviation = [0.3] }\n", "as many deviations as means"),
        ("scaling = { mean = [0.1], deviation = [0.0] }\n", r"deviation in \(0, inf\), got 0.0"),
        ("scaling = { mean = [nan], deviation = [1.0] }\n", "mean in .-inf, inf., got nan"),
        ("scaling = { mean = [0.1] }\n", "deviation"),
        (MNIST + 'features = "efficientnet_lite0"\n', "`scaling` or `features`"),
    ],
)
def test_unusable_constants_are_refused(more: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        of(more)


def test_constants_must_be_one_or_one_for_each_channel() -> None:
    with pytest.raises(ConfigError, match=r"\[data\].*one mean"):
        world(of("scaling = { mean = [0.1, 0.2], deviation = [0.3, 0.3] }\n"))
