"""Sums that travel without their zeros: what a peer may send in their place, and who is behind an entry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.every import every

from securefl.algorithm.queries import Sum, ValueSpec
from securefl.core.errors import LocalProtocolError, RemoteProtocolError
from securefl.core.grid import Grid
from securefl.core.release import Delivered
from securefl.core.sparse import sparse
from securefl.sums import clear

MAP = ValueSpec(name="map", reduction="sum", reveals="a map", packed=True, grid=Grid(step=1.0, bound=1.0))
ASKED = (Sum(MAP, 9),)
VECTOR = np.array([1, 0, 0, 0, 1, 0, 0, 1, 0], np.int32)
NONE = np.zeros(0, np.int32)


def added(came: Delivered) -> list[int]:
    found = clear.added(clear.nothing(ASKED), ASKED, {"map": came}, "client-0001")["map"]
    return [int(number) for number in found.numbers]


def test_a_sparse_vector_is_added() -> None:
    assert added(Delivered("map", "sparse", NONE, sparse(VECTOR))) == VECTOR.tolist()


@every(
    "came",
    [
        Delivered("map", "open", VECTOR, b""),
        Delivered("map", "sparse", VECTOR, sparse(VECTOR)),
        Delivered("map", "sparse", NONE, b""),
        Delivered("map", "sparse", NONE, sparse(VECTOR[:8])),
        Delivered("map", "sparse", NONE, sparse(VECTOR) + b"\0"),
        Delivered("map", "sparse", NONE, sparse(2 * VECTOR)),
        Delivered("map", "masked", VECTOR, b""),
    ],
)
def test_anything_else_costs_its_sender_alone(came: Delivered) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        added(came)
    assert refused.value.sender == "client-0001"


def test_a_dense_sum_is_not_taken_sparse() -> None:
    asked = (Sum(replace(MAP, packed=False), 9),)
    with pytest.raises(RemoteProtocolError, match="form 'open'"):
        clear.added(
            clear.nothing(asked), asked, {"map": Delivered("map", "sparse", NONE, sparse(VECTOR))}, "x"
        )


def test_only_sums_are_packed() -> None:
    with pytest.raises(LocalProtocolError, match="a sum if `packed`"):
        ValueSpec(name="loss", reduction="none", reveals="its loss", packed=True)
