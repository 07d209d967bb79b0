"""A plugin of pytest: dense layers whose last bits depend on the number of rows, as on some processors.

`pytest -p support.other_kernels` runs tests as on a host that nobody has here. A sum in float32 has other
last bits in another order. The processor and the number of rows decide the order: here the rows alone.
Sums that float32 holds exactly are the same in every order, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

Product = Callable[..., Tensor]


def disturbed(product: Product) -> Product:
    """A product of another order. Each value moves by at most epsilon times the sum of its terms' sizes."""

    def call(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        found = product(input, weight, bias)
        if found.dtype is not torch.float32 or torch.compiler.is_compiling():
            return found
        with torch.no_grad():
            x, w, b = input.double(), weight.double().t(), 0.0 if bias is None else bias.double()
            inexact = x @ w + b != found
            sizes = x.abs() @ w.abs() + abs(b)
            rows = input.numel() // max(1, input.shape[-1])
            turn = torch.sin(rows**2 * torch.arange(1.0, found.shape[-1] + 1, device=found.device))
            noise = torch.finfo(torch.float32).eps * sizes * turn * inexact
        return found + noise.float()

    return call


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, Any, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "linear", disturbed(functional.linear))
        return (yield)
