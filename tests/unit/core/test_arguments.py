"""Arrays and objects that callers give: taken as they are, or refused by the argument's name."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from support.every import every

from securefl.core.arguments import numbers, require
from securefl.core.errors import ConfigError, DataError


@every(
    "values",
    [
        [1, 2.5],
        np.array([1, 2.5], np.float16),
        pd.Series([1, 2.5], index=["a", "b"]),
        torch.tensor([1, 2.5], requires_grad=True),
        torch.tensor([1, 2.5], dtype=torch.bfloat16),
        [torch.tensor(1.0), torch.tensor(2.5)],
    ],
)
def test_arrays_of_numbers_are_copied(values: object) -> None:
    found = numbers("x", values)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [1, 2.5])
    found[0] = 9
    np.testing.assert_array_equal(numbers("x", values), [1, 2.5])


@every(
    "values",
    [
        "12",
        None,
        ["1", "2"],
        [True, False],
        [1j],
        [[1], [1, 2]],
        np.array([1, None], object),
        [Decimal(1)],
        np.ma.masked_array([1.0, 2.0], [True, False]),
        torch.tensor([1.0]).to_sparse(),
    ],
)
def test_what_is_no_array_of_numbers_is_refused_by_name(values: object) -> None:
    with pytest.raises(DataError, match="Expected mean as"):
        numbers("mean", values)


def test_an_object_of_another_kind_is_refused_with_what_came() -> None:
    require(a=(1, int), b=(None, int | None))
    with pytest.raises(ConfigError, match="Expected `b` as int or None, got str"):
        require(a=(1, int), b=("1", int | None))
