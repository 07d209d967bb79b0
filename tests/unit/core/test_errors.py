"""The exception tree is the one its docstring draws, and it says whose fault it was."""

from __future__ import annotations

import inspect
import re

from support.every import every

from securefl.core import errors
from securefl.core.errors import RemoteProtocolError, SecureFLError


def _drawn() -> dict[str, str]:
    """Child to parent, read off the tree in the module's docstring."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ([│ ├└─]*)([A-Z]\w+)", line)
        if found:
            depth = len(found[1]) // 4
            path = [*path[:depth], found[2]]
            if depth:
                parents[path[-1]] = path[-2]
    return parents


def _defined() -> dict[str, str]:
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]
    return {c.__name__: c.__bases__[0].__name__ for c in classes if c is not SecureFLError}


def test_the_docstring_draws_the_tree_that_is_defined() -> None:
    assert len(_defined()) == 11
    assert _drawn() == _defined()


def test_a_remote_error_names_the_peer_and_the_phase() -> None:
    error = RemoteProtocolError("Expected 3 values.", sender="client-0007", phase="contribution")
    assert (error.sender, error.phase) == ("client-0007", "contribution")
    assert str(error) == "client-0007 in phase contribution: Expected 3 values."


@every("name", sorted(_defined()))
def test_every_error_is_one_of_ours(name: str) -> None:
    assert issubclass(getattr(errors, name), SecureFLError)
