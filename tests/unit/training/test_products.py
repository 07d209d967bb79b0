"""Products in which a row has the same bits wherever it stands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.every import every
from support.other_kernels import disturbed
from torch import Tensor, nn

from securefl.training.devices import one_thread
from securefl.training.products import RowsAlike, dense, widened
from securefl.training.stack import Layout

INPUTS = (1, 5, 21, 30, 64, 97)
OUTPUTS = (1, 2, 3, 5, 10, 33)


@every("dtype", [torch.float32, torch.float64])
@every("inputs", INPUTS)
def test_a_row_has_the_same_bits_in_every_place(inputs: int, dtype: torch.dtype) -> None:
    """Without the zeros this fails on processors of AMD."""
    drawn = torch.Generator().manual_seed(inputs)
    for outputs in OUTPUTS:
        x = torch.randn(64, inputs, generator=drawn, dtype=dtype)
        weight = torch.randn(outputs, inputs, generator=drawn, dtype=dtype)
        order = torch.randperm(64, generator=drawn)
        for product in (lambda rows: dense(rows, weight), lambda rows: both_ways(rows, weight)):  # noqa: B023
            with one_thread():
                assert torch.equal(product(x)[order], product(x[order]))
        vector = np.concatenate([weight.float().numpy().ravel(), np.ones(outputs, np.float32)])
        layout = Layout(3, ((outputs, inputs),))
        (layer,) = layout.layers(layout.place([vector] * 3).to(dtype))
        rows = widened(x.expand(3, -1, -1))
        with one_thread():
            forward = layer.forward(rows)
            assert torch.equal(forward[:, order], layer.forward(rows[:, order]))
            assert torch.equal(layer.back(forward)[:, order], layer.back(forward[:, order]))


def both_ways(x: Tensor, weight: Tensor) -> Tensor:
    """The slope of the inputs behind a product, which is a product too."""
    taken = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(dense(taken, weight).square().sum(), taken)
    return slope


@every("bias", [False, True])
@every("shape", [(), (7,), (7, 3)])
def test_zeros_change_no_result(shape: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(21, 10, bias=bias).double()
    x = torch.randn(*shape, 21, dtype=torch.float64)
    assert torch.allclose(dense(x, layer.weight, layer.bias), layer(x), rtol=0, atol=1e-14)


def test_layers_of_any_model_are_padded_within_the_context_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        seen.append(len(weight))
        return dense(x, weight, bias)

    monkeypatch.setattr("securefl.training.products.dense", noted)
    model: Callable[[Tensor], Tensor] = nn.Sequential(nn.Linear(21, 10), nn.ReLU(), nn.Linear(10, 3))
    with RowsAlike():
        out = model(torch.zeros(4, 21))
    model(torch.zeros(4, 21))
    assert seen == [10, 3]
    out.view(-1)  # as a layer's own output, it can be viewed


def test_a_layer_may_be_called_by_the_names_of_torch() -> None:
    x, layer = torch.ones(2, 5), nn.Linear(5, 3)
    with RowsAlike():
        found = [
            nn.functional.linear(input=x, weight=layer.weight, bias=layer.bias),
            nn.functional.linear(x, weight=layer.weight, bias=layer.bias),
            nn.functional.linear(bias=layer.bias, weight=layer.weight, input=x),
            nn.functional.linear(x, layer.weight, layer.bias),
        ]
    for own in found:
        torch.testing.assert_close(own, layer(x))
    torch.testing.assert_close(nn.functional.linear(input=x, weight=layer.weight), x @ layer.weight.t())


def test_the_double_of_another_processor_rounds_by_the_number_of_rows() -> None:
    """`make hosts` runs the tests with it."""
    drawn = torch.Generator().manual_seed(1)
    x, weight = torch.randn(8, 97, generator=drawn), torch.randn(5, 97, generator=drawn)
    product = disturbed(nn.functional.linear)
    assert not torch.equal(product(x, weight)[:3], product(x[:3], weight))
    torch.testing.assert_close(product(x, weight), nn.functional.linear(x, weight), rtol=0, atol=1e-4)
    assert torch.equal(product(torch.ones(8, 4), torch.ones(5, 4)), torch.full((8, 5), 4.0))
