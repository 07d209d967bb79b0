"""One test for many small cases, which names every case that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def failures(check: Callable[[Any], object], cases: Iterable[Any]) -> list[tuple[str, str]]:
    """The cases, by their first 60 characters, for which the check raises, and what it raises."""
    found = []
    for case in cases:
        try:
            check(case)
        except Exception as error:  # also the one that `pytest.raises` does not expect
            found.append((str(case)[:60], f"{type(error).__name__}: {error}"[:400]))
        except BaseException as error:  # `pytest.fail`, if nothing was raised
            if type(error).__name__ != "Failed":
                raise
            found.append((str(case)[:60], str(error)))
    return found
