"""Dense layers without a gradient, by oneDNN: the packaged stack as torch computes it, and no other model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from securefl.training import ModelConfig, evaluate
from securefl.training.evaluation import outputs_on
from securefl.training.models import MLP
from securefl.training.products import product
from securefl.training.quick import LEAST, reader

X = torch.rand(70, 5, 20, generator=torch.Generator().manual_seed(1))
Change = Callable[[MLP], nn.Module]


def model() -> MLP:
    """A model whose first layer alone is large enough."""
    made = ModelConfig(kind="mlp", hidden=(64, 8)).build((5, 20), 3, seed=2)
    assert isinstance(made, MLP)
    assert 100 * 64 >= LEAST > 64 * 8
    return made


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_the_product_is_that_of_torch(bias: bool, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securefl.training.products.ONEDNN", there)
    weight, own = X[:6, 1], X[0, 2, :6].clone() if bias else None
    torch.testing.assert_close(product(X[:, 0], weight, own), linear(X[:, 0], weight, own))


@pytest.mark.parametrize("rows", [1, 33, 256])
def test_the_product_is_of_float32(rows: int) -> None:
    """Not of bfloat16, in which processors with AMX are faster, and whose errors are 2^16 times larger."""
    drawn = torch.Generator().manual_seed(rows)
    x, weight, bias = (torch.randn(shape, generator=drawn) for shape in ((rows, 784), (64, 784), (64,)))
    exact = linear(x.double(), weight.double(), bias.double())
    sizes = linear(x.double().abs(), weight.double().abs(), bias.double().abs())
    # In any order a sum of 785 terms rounds 785 times. The errors have either sign, and add up as their root.
    assert ((product(x, weight, bias) - exact).abs() <= 4 * 785**0.5 * 2.0**-24 * sizes).all()
    halves = (x.bfloat16() @ weight.bfloat16().t()).double() + bias
    assert ((halves - exact).abs() > 4 * 785**0.5 * 2.0**-24 * sizes).any(), "the bound tells them apart"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the weights of each product."""
    seen: list[tuple[int, ...]] = []

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(tuple(weight.shape))
        return product(x, weight, bias)

    monkeypatch.setattr("securefl.training.quick.product", noted)
    return seen


def test_large_layers_of_the_packaged_stack_are_read_by_it(asked: list[tuple[int, ...]]) -> None:
    own = model()
    with torch.inference_mode():
        for x in (X, X.transpose(0, 1).reshape(70, 5, 20), X[:1], X.flatten(1).t().contiguous().t()):
            torch.testing.assert_close(reader(own)(x), own(x), rtol=1e-5, atol=1e-6)
    assert asked == [(64, 100)] * 4


def test_an_evaluation_is_read_by_it(asked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.random((600, 4, 25), dtype=np.float32), rng.integers(0, 3, 600)
    own = ModelConfig(kind="mlp", hidden=(64,)).build((4, 25), 3, seed=2)
    found = evaluate(own, x, y, "classification")
    assert asked == [(64, 100)] * 3, "batches of 256"
    monkeypatch.setattr("securefl.training.products.ONEDNN", False)
    usual = evaluate(own, x, y, "classification")
    assert found.accuracy == usual.accuracy
    assert found.loss == pytest.approx(usual.loss, rel=1e-5)


class Other(MLP):
    """A class of its own, whose first layer reads twice the input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(2 * x)


def hooked(own: MLP) -> nn.Module:
    own.fc1.register_forward_hook(lambda layer, x, out: 2 * out)
    return own


def strided_bias(own: MLP) -> nn.Module:
    own.fc1.bias = nn.Parameter(torch.arange(128.0).view(64, 2)[:, 0])
    return own


def expanded_bias(own: MLP) -> nn.Module:
    own.fc1.bias = nn.Parameter(torch.ones(1).expand(64))
    return own


def replaced(own: MLP) -> nn.Module:
    own.fc1.forward = lambda x: linear(x, own.fc1.weight)  # type: ignore[method-assign]
    return own


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def parametrized(own: MLP) -> nn.Module:
    torch.nn.utils.parametrize.register_parametrization(own.fc1, "weight", Doubled())
    return own


def another_layer(own: MLP) -> nn.Module:
    own.fc1 = nn.Sequential(nn.Linear(100, 64), nn.Tanh())
    return own


def wrapped(own: MLP) -> nn.Module:
    return nn.Sequential(own)


def of_another_class(own: MLP) -> nn.Module:
    made = Other(100, 3, (64, 8))
    made.load_state_dict(own.state_dict())
    return made


def double(own: MLP) -> nn.Module:
    return own.double()


STRANGE: dict[str, Change] = {
    own.__name__: own
    for own in (
        hooked,
        strided_bias,
        expanded_bias,
        replaced,
        parametrized,
        another_layer,
        wrapped,
        of_another_class,
        double,
    )
}


@pytest.mark.parametrize("case", STRANGE)
def test_what_only_looks_like_it_is_left_to_torch(case: str, asked: list[tuple[int, ...]]) -> None:
    own = STRANGE[case](model())
    x = X.to(next(own.parameters()).dtype)
    with torch.inference_mode():
        assert torch.equal(reader(own)(x), own(x))
    assert not asked


def test_autocast_is_left_to_torch(asked: list[tuple[int, ...]]) -> None:
    own, y = model(), np.zeros(70, np.int64)
    with torch.autocast("cpu", torch.bfloat16):
        found = outputs_on(own, X.numpy(), y, "classification")
        with torch.inference_mode():
            assert np.array_equal(found, own(X).double().numpy())
    assert not asked


def test_records_of_another_width_raise_as_in_torch() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), torch.inference_mode():
        reader(model())(X[:, :4])
