"""One test for many small cases: `@every` in place of `@pytest.mark.parametrize`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import pytest

from support.offenders import offenders


def every(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[..., Any]:
    """A test that is called with each case, and fails with all that fail.

    Each case has a `tmp_path` and a `monkeypatch` of its own. Other fixtures are the same for all, so no case
    may change them.
    """
    known = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    listed = list(enumerate(cases))
    assert listed, "there is no case"
    assert not any(isinstance(case, type(pytest.param())) for _, case in listed), "no case has marks here"

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(test)

        @wraps(test)
        def tested(*of: Any, **fixtures: Any) -> None:
            def check(numbered: tuple[int, Any]) -> None:
                number, case = numbered
                given = dict(fixtures)
                if "tmp_path" in given:
                    given["tmp_path"] = given["tmp_path"] / str(number)
                    given["tmp_path"].mkdir()
                with pytest.MonkeyPatch.context() as patch:
                    if "monkeypatch" in given:
                        given["monkeypatch"] = patch
                    test(*of, **given, **dict(zip(known, case if len(known) > 1 else (case,), strict=True)))

            found = offenders(listed, check)
            assert not found, found

        rest = [one for name, one in own.parameters.items() if name not in known]
        tested.__signature__ = own.replace(parameters=rest)  # type: ignore[attr-defined]
        return tested

    return decorated
