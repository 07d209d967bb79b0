"""A plugin of pytest: dense layers whose last bits depend on the number of rows, as on some processors.

`pytest -p support.other_kernels` runs tests as on a host that nobody has here. A sum in float32 has other
last bits in another order. The processor and the number of rows decide the order: here the rows alone.
Sums that float32 holds exactly are the same in every order, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from securefl.training import quick
from securefl.training.products import product


def disturbed(found: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A result of another order: each value moved by at most epsilon times the sum of its terms' sizes."""
    if found.dtype is not torch.float32 or torch.compiler.is_compiling():
        return found
    with torch.no_grad():
        exact = [given if given is None else given.double() for given in (x, weight, bias)]
        sizes = linear(*(given if given is None else given.abs() for given in exact))
        rows = x.numel() // max(1, x.shape[-1])
        turn = torch.from_numpy(np.random.default_rng(rows).uniform(-1, 1, found.shape[-1])).to(found.device)
        noise = torch.finfo(torch.float32).eps * sizes * turn * (linear(*exact) != found)
    return found + noise.float()


class OtherKernels(TorchFunctionMode):
    """A context in which dense layers are `disturbed`."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        found = func(*args, **named)
        if func is not linear:
            return found
        first = [named.pop("input")] if "input" in named else []
        return disturbed(found, *first, *args, **named)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    with OtherKernels(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(quick, "product", lambda *given: disturbed(product(*given), *given))
        return (yield)
