"""Dense layers without a gradient, by oneDNN: as torch computes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from securefl.training import ModelConfig, evaluate
from securefl.training.products import Quick, quick


@pytest.mark.parametrize("shape", [(2, 7), (5, 3, 7), (320, 784)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_the_quick_product_is_that_of_torch(
    shape: tuple[int, ...], bias: bool, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securefl.training.products.ONEDNN", there)
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(shape, generator=generator)
    weight = torch.rand(6, shape[-1], generator=generator)
    own = torch.rand(6, generator=generator) if bias else None
    torch.testing.assert_close(quick(x, weight, own), linear(x, weight, own))


X, WEIGHT = torch.ones(3, 7), torch.ones(4, 7)
STRANGE: dict[str, tuple[Tensor, Tensor, Tensor | None]] = {
    "float64": (X.double(), WEIGHT.double(), None),
    "no rows": (X[:0], WEIGHT, None),
    "no inputs": (X[:, :0], WEIGHT[:, :0], None),
    "no outputs": (X, WEIGHT[:0], None),
    "one vector": (X[0], WEIGHT, None),
    "one bias for all": (X, WEIGHT, torch.ones(1)),
    "one output": (X, WEIGHT[0], None),
}


@pytest.mark.parametrize("case", STRANGE)
def test_what_is_no_usual_product_is_left_to_torch(case: str) -> None:
    torch.testing.assert_close(quick(*STRANGE[case]), linear(*STRANGE[case]))


@pytest.mark.parametrize("wrong", [(X[:, :6], WEIGHT, None), (X, WEIGHT, torch.ones(5))])
def test_shapes_that_do_not_fit_raise_as_in_torch(wrong: tuple[Tensor, ...]) -> None:
    with pytest.raises(RuntimeError):
        quick(*wrong)


def test_layers_of_any_model_are_quick_within_the_context_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.Size] = []

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        asked.append(x.shape)
        return linear(x, weight, bias)

    monkeypatch.setattr("securefl.training.products.quick", counted)
    model, x = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2)), X[:, :5]
    with torch.no_grad(), Quick():
        model(x)
    model(x)
    assert asked == [(3, 5), (3, 3)]


def test_an_evaluation_is_that_of_the_usual_products(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.random((600, 4, 5), dtype=np.float32), rng.integers(0, 3, 600)
    model = ModelConfig(kind="mlp", hidden=(16,)).build((4, 5), 3, seed=2)
    found = evaluate(model, x, y, "classification")
    monkeypatch.setattr("securefl.training.products.ONEDNN", False)
    usual = evaluate(model, x, y, "classification")
    assert found.accuracy == usual.accuracy
    assert found.loss == pytest.approx(usual.loss, rel=1e-5)
