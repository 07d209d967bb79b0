"""A `Part` of a person's own: what its `split` may return, and what its author is told otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.tiny_dpsgd import config
from support.tiny_problem import client_context, tiny_problem

from securefl.algorithm.clients import ClientContext
from securefl.core.errors import ConfigError, DataError, SecureFLError
from securefl.engine.party.computing import of_records
from securefl.protocols.averaging import Part

PROBLEM = tiny_problem()
COUNT = len(PROBLEM.initial)


def context() -> ClientContext:
    x, y = np.zeros((2, 6), np.float32), np.zeros(2, np.int64)
    rng = np.random.default_rng(0)
    return client_context(x, y, broadcast=PROBLEM.initial, rng=rng)


def part(returns: Callable[[Any], Any], **changes: Any) -> Part:
    class Short(Part):
        def split(self, context: ClientContext, trained: Any) -> Any:
            return returns(trained)

    return Short(tiny_problem(**changes))


def _raises(_: Any) -> Any:
    raise ValueError("no such layer")


MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "short": (lambda trained: (trained[:3], None), r"shape \(3,\) of type float32"),
    "text": (lambda _: ("abc", None), r"shape \(\) of type <U3"),
    "no pair": (lambda trained: trained, "ndarray instead of the two"),
    "no state": (lambda trained: (trained, trained), "ndarray for the state"),
    "ragged": (lambda _: ([[1.0], [1.0, 2.0]], None), "ValueError"),
    "raises": (_raises, "ValueError: no such layer"),
}


@every("case", MISTAKES)
def test_a_mistake_in_split_names_the_class_and_what_is_expected(case: str) -> None:
    returns, told = MISTAKES[case]
    expected = f"`split` of .*Short to return {COUNT} numbers, .*state or None, got {told}"
    with pytest.raises(ConfigError, match=expected):
        part(returns).value(context(), PROBLEM.initial)


DP_SGD = config(expected_batch=2, steps=1)


@every("changes", [{"update_bound": 1.0}, {"private": DP_SGD}])
def test_a_mistake_that_follows_from_records_ends_no_protected_run(changes: dict[str, Any]) -> None:
    """A client that must answer then sends zeros."""
    with pytest.raises(DataError, match="`split` of") as error:
        part(MISTAKES["short"][0], **changes).value(context(), PROBLEM.initial)
    assert of_records(error.value)


def test_a_list_of_numbers_and_an_error_of_this_library_pass() -> None:
    value = part(lambda trained: ((trained + 1).tolist(), {"mark": np.ones(1)})).value(
        context(), PROBLEM.initial
    )
    assert np.allclose(value.clear, 1, atol=1e-6)
    assert value.new_state is not None

    def abstains(_: Any) -> Any:
        raise DataError("Expected a state, got none.")

    with pytest.raises(SecureFLError, match=r"^Expected a state, got none"):
        part(abstains).value(context(), PROBLEM.initial)
