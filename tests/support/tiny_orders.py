"""Orders as a server gives them, with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from securefl.core.messages import Order
from securefl.engine.calls import SumCall

PLAIN: dict[str, Any] = {
    "sums": (),
    "initial": 0,
    "number": 0,
    "again": 0,
    "cohort": b"",
    "draws": 1,
    "whole": 0,
    "most": 0,
    "records": 0,
    "lengths": (),
}


def order(*wants: str, **changes: Any) -> Order:
    return Order(wants=wants, **{**PLAIN, **changes})


def sum_call(**changes: Any) -> SumCall:
    """A call to the sum of the value "own", of which `changes` say who is called, and the length."""
    good: dict[str, Any] = {
        "draws": (),
        "whole": 0,
        "records": 0,
        "names": ("own",),
        "initial": 0,
        "number": 0,
        "again": 0,
        "task": bytes(32),
    }
    return SumCall(**{**good, **changes})
