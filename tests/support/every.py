"""One test for many small cases: `@every` in place of `@pytest.mark.parametrize`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from support.offenders import offenders


def every(names: str | Sequence[str], cases: Iterable[Any], ids: object = None) -> Callable[..., Any]:
    """A test without fixtures that is called with each case, and fails with all that fail."""
    known = [name.strip() for name in names.split(",")] if isinstance(names, str) else names

    def decorated(test: Callable[..., None]) -> Callable[[], None]:
        def check(case: Any) -> None:
            test(**dict(zip(known, case if len(known) > 1 else (case,), strict=True)))

        def tested() -> None:
            assert offenders(cases, check) == []

        tested.__name__, tested.__doc__, tested.__module__ = test.__name__, test.__doc__, test.__module__
        return tested

    return decorated
