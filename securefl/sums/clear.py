"""Sums in the clear: the server of the exchange adds open integers as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from securefl.core.errors import RemoteProtocolError
from securefl.core.release import Delivered
from securefl.core.sparse import dense
from securefl.rounds import Ask, Sum, Total

Totals = Mapping[str, NDArray[np.int64]]
"""The running sums by name, in units of their grids."""


def nothing(asked: Sequence[Sum]) -> Totals:
    """Sums of nobody yet."""
    return {question.sends.name: np.zeros(question.size, np.int64) for question in asked}


def added(totals: Totals, asked: Sequence[Sum], came: Mapping[str, Delivered], sender: str) -> Totals:
    """The sums with one client's vectors added. RemoteProtocolError for a vector outside its grid."""
    # New arrays, never in place: if one vector is refused, the state before it stands whole.
    return {
        question.sends.name: totals[question.sends.name]
        + _checked(question, came[question.sends.name], sender)
        for question in asked
    }


def answers(totals: Totals, asked: Sequence[Sum], ask: Ask, survivors: Sequence[int]) -> dict[str, Total]:
    """What the ask is answered with."""
    return {
        question.sends.name: ask.total(question, totals[question.sends.name], survivors) for question in asked
    }


def _checked(question: Sum, came: Delivered, sender: str) -> NDArray[np.int64]:
    form = "sparse" if question.sends.packed else "open"
    if came.form != form or (form == "open" and came.sealed) or (form == "sparse" and came.numbers.size):
        raise RemoteProtocolError(
            f"Expected a sum in form {form!r}, got a value in form {came.form!r}.",
            sender=sender,
            phase="contribution",
        )
    numbers = came.numbers
    if form == "sparse":
        try:
            numbers = dense(came.sealed, question.size)
        except ValueError as bad:
            raise RemoteProtocolError(str(bad), sender=sender, phase="contribution") from None
    return question.sends.grid.check(numbers, question.size, sender)
