"""Arrays and objects that callers give: taken as they are, or refused by the argument's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from inspect import signature
from typing import Literal

import numpy as np
import pandas as pd
import pytest
import torch
from support.every import every

from securefl.core.arguments import checked, numbers
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


class Own:
    public = 7.0


@checked
def taken(
    one: int, word: Literal["a", "b"] = "a", some: Sequence[Own] = (), rate: float | None = None
) -> tuple[int, str]:
    return one, word


@checked
@dataclass(frozen=True)
class Kept:
    rate: float
    own: Own | None = None


def test_arguments_of_the_stated_types_pass() -> None:
    assert taken(np.int64(3), "b", [Own()], rate=np.float32(2)) == (3, "b")  # type: ignore[arg-type]
    assert taken(one=3, rate=2) == (3, "a")
    assert Kept(2, Own()).rate == 2
    assert str(signature(taken)).startswith("(one: 'int', word: ")


@every(
    ("call", "said"),
    [
        (lambda: taken("3"), "Expected `one` as int, got '3'."),
        (lambda: taken(True), "Expected `one` as int, got True."),
        (lambda: taken(3, "c"), "Expected `word` as a, b, got 'c'."),
        (lambda: taken(3, ["a"]), "Expected `word` as a, b, got ['a']."),
        (lambda: taken(3, "a", [Own(), 3]), "Expected `some` as Sequence"),
        (lambda: taken(3, "a", "ab"), "Expected `some` as Sequence"),
        (lambda: taken(3, rate="2"), "Expected `rate` as float | None, got '2'."),
        (lambda: Kept(2, 3), "Expected `own` as Own | None, got 3."),
        (lambda: Kept(Own()), "Pass its `public`."),
    ],
)
def test_others_are_refused_by_name_with_what_came(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        call()
    assert said in str(refused.value)
