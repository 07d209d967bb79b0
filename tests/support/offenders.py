"""Many cheap cases in one test, which tells all that fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pytest

Case = TypeVar("Case")


def offenders(cases: Iterable[Case], check: Callable[[Case], object]) -> list[str]:
    """The cases in which `check` fails, each with the reason."""
    found = []
    for case in cases:
        try:
            check(case)
        except (AssertionError, pytest.fail.Exception) as failed:
            found.append(f"{case!r}: {failed}")
    return found
