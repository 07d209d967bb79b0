"""Results that are stored by the identity of their arguments."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from securefl.core.newest import newest


class Counted:
    """A function of two arguments that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, one: Any, other: Any = None) -> tuple[Any, Any]:
        self.calls += 1
        return one, other


def test_the_very_same_objects_have_one_result() -> None:
    counted, one, other = Counted(), (1, 2), (3,)
    found = newest(counted.__call__)
    assert found(one, other) is found(one, other)
    assert counted.calls == 1


def test_equal_objects_are_not_the_same() -> None:
    """A party that is shown an equal object looks at it itself."""
    counted = Counted()
    found = newest(counted.__call__)
    one, twin = (tuple(range(2)) for _ in range(2))
    assert one is not twin
    assert found(one) == found(twin)
    assert counted.calls == 2


def test_each_argument_counts_with_its_place_and_their_number() -> None:
    counted, one, other = Counted(), object(), object()
    found = newest(counted.__call__)
    assert [found(one, other), found(other, one), found(one)] == [(one, other), (other, one), (one, None)]
    assert counted.calls == 3


def test_an_argument_by_name_is_not_stored() -> None:
    counted, one = Counted(), object()
    found = newest(counted.__call__)
    assert found(one, other=1) == (one, 1)
    assert found(one, other=2) == (one, 2)


def test_an_error_is_raised_again() -> None:
    calls = []

    def refuse(one: Any) -> None:
        calls.append(one)
        raise ValueError("Expected another.")

    found, one = newest(refuse), object()
    for _ in range(2):
        with pytest.raises(ValueError, match="Expected another"):
            found(one)
    assert len(calls) == 2


def test_few_results_are_kept_and_their_arguments_with_them() -> None:
    """As long as a result is stored, nobody else can have the identity of its argument."""

    class Thing:
        pass

    found = newest(lambda one: id(one))
    things = [Thing() for _ in range(6)]
    refs = [weakref.ref(thing) for thing in things]
    for thing in things:
        found(thing)
    del thing, things
    gc.collect()
    assert [ref() is not None for ref in refs] == [False, False, True, True, True, True]
