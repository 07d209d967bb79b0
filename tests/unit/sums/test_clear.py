"""Running sums in the clear: exact whatever honest or hostile clients send within the grid."""

from __future__ import annotations

import numpy as np
import pytest
from support.every import every

from securefl.algorithm.queries import Sum, ValueSpec
from securefl.core.errors import RemoteProtocolError
from securefl.core.grid import Grid
from securefl.core.release import Delivered
from securefl.sums import clear

GRID = Grid()
ASKED = (Sum(ValueSpec(name="step", reduction="sum", reveals="a step", grid=GRID), 3),)


def total(vectors: list[list[int]]) -> clear.Running:
    sums = clear.nothing(ASKED)
    for vector in vectors:
        came = Delivered("step", "open", np.array(vector, np.int32), b"")
        sums = clear.added(sums, ASKED, {"step": came}, "client-0001")
    return sums["step"]


def test_small_integers_are_added_in_four_bytes() -> None:
    found = total([[1, -2, 3], [4, 5, -6]])
    assert found.numbers.dtype == np.int32
    assert found.numbers.tolist() == [5, 3, -3]


@every("sign", [1, -1])
def test_no_sum_wraps_around(sign: int) -> None:
    most = sign * GRID.limit
    found = total([[most, 0, -most]] * 5 + [[1, 1, 1]])
    assert found.numbers.tolist() == [5 * most + 1, 1, 1 - 5 * most]


def test_the_edge_of_four_bytes_is_exact() -> None:
    rest = 2**31 - 1 - GRID.limit
    assert total([[GRID.limit] * 3, [rest] * 3]).numbers.tolist() == [2**31 - 1] * 3
    assert total([[GRID.limit] * 3, [rest] * 3, [1] * 3]).numbers.tolist() == [2**31] * 3


def test_a_state_stands_when_a_client_is_refused_or_others_come_after() -> None:
    sums = clear.added(
        clear.nothing(ASKED), ASKED, {"step": Delivered("step", "open", np.ones(3, np.int32), b"")}, "x"
    )
    beyond = Delivered("step", "open", np.array([0, 0, -(2**31)], np.int32), b"")
    with pytest.raises(RemoteProtocolError, match="grid values"):
        clear.added(sums, ASKED, {"step": beyond}, "x")
    clear.added(sums, ASKED, {"step": Delivered("step", "open", np.ones(3, np.int32), b"")}, "y")
    assert sums["step"].numbers.tolist() == [1, 1, 1]


@every("form", ["masked", "encrypted", "sparse"])
def test_a_sum_in_the_clear_takes_no_hidden_integers(form: str) -> None:
    """Under a mask they would be junk in the sum of everybody."""
    came = Delivered("step", form, np.ones(3, np.int32), b"")  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError) as refused:
        clear.added(clear.nothing(ASKED), ASKED, {"step": came}, "x")
    assert refused.value.sender == "x"
