"""Sums in the clear: the server adds clients' open integers as they arrive."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from securefl.algorithm.queries import CohortQuery, Sum, Total
from securefl.core.errors import RemoteProtocolError
from securefl.core.release import Delivered
from securefl.core.sparse import dense


@dataclass(frozen=True)
class Running:
    """A running sum (d,) in units of its grid. No entry is larger than `reach` in magnitude.

    It is int32 while `reach` fits, which halves the memory traffic for each client.
    """

    numbers: NDArray[np.int32] | NDArray[np.int64]
    reach: int = 0

    def having(self, numbers: NDArray[np.int32], largest: int) -> Running:
        """The sum with these numbers added, none larger than `largest` in magnitude."""
        reach = self.reach + largest
        wide = self.numbers if reach <= _MOST else self.numbers.astype(np.int64, copy=False)
        # A new array, never in place: if another vector of the client is refused, this state stays valid.
        return Running(wide + numbers, reach)


Totals = Mapping[str, Running]
"""The running sums by name."""
_MOST: Final = 2**31 - 1


def nothing(asked: Sequence[Sum]) -> Totals:
    """Empty running sums, before any client's vector."""
    return {wanted.spec.name: Running(np.zeros(wanted.size, np.int32)) for wanted in asked}


def added(
    totals: Totals,
    asked: Sequence[Sum],
    came: Mapping[str, Delivered],
    sender: str,
    whole: Container[str] = (),
) -> Totals:
    """The sums with one client's vectors added.

    Args:
        totals: the sums so far.
        asked: the sums of the query.
        came: the client's vectors by name, int32 (size,) or sparse bytes.
        sender: the client's name, for refusals.
        whole: names of packed values that travel with their zeros under this plan.

    Returns:
        New totals. The given ones stay as they are.

    Raises:
        RemoteProtocolError: a vector outside its grid, of another size or in another form.
    """
    return {
        wanted.spec.name: totals[wanted.spec.name].having(
            *_checked(wanted, came[wanted.spec.name], sender, wanted.spec.name in whole)
        )
        for wanted in asked
    }


def answers(
    totals: Totals, asked: Sequence[Sum], ask: CohortQuery, survivors: Sequence[int]
) -> dict[str, Total]:
    """The answer to each sum of a query."""
    return {
        wanted.spec.name: ask.total(wanted, totals[wanted.spec.name].numbers, survivors) for wanted in asked
    }


def _checked(wanted: Sum, came: Delivered, sender: str, whole: bool) -> tuple[NDArray[Any], int]:
    """The vector, and its largest magnitude."""
    form = "sparse" if wanted.spec.packed and not whole else "open"
    if came.form != form or (form == "open" and came.sealed) or (form == "sparse" and came.numbers.size):
        raise RemoteProtocolError(
            f"Expected a sum in form {form!r}, got a value in form {came.form!r}.",
            sender=sender,
            phase="contribution",
        )
    numbers = came.numbers
    if form == "sparse":
        try:
            numbers = dense(came.sealed, wanted.size)
        except ValueError as bad:
            raise RemoteProtocolError(str(bad), sender=sender, phase="contribution") from None
    return numbers, wanted.spec.grid.check(numbers, wanted.size, sender)
