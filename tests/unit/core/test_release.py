"""A release is sealed: it is not copied, printed, or opened without the ledger's permit."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.every import every

from securefl.accounting.events import NO_COST, NON_PRIVATE
from securefl.core.errors import LocalProtocolError, UnaccountedRelease
from securefl.core.release import _LEDGER_ONLY, Permit, Release, ReleaseKey

SECRET = 1234.5678


def release(name: str = "loss") -> Release:
    return Release(
        key=ReleaseKey("client-0001", bytes(32), 1, 0, 0, name),
        unit="record",
        form="open",
        charge=NON_PRIVATE,
        _numbers=np.array([SECRET]),
        _sealed=b"sealed bytes",
    )


@every(
    "leak",
    [copy.copy, copy.deepcopy, pickle.dumps, lambda r: copy.deepcopy((r,)), lambda r: pickle.dumps([r])],
)
def test_a_release_is_not_copied_out(leak: Callable[[Release], Any]) -> None:
    with pytest.raises(LocalProtocolError, match=r"Ledger\.send"):
        leak(release())


@every("show", [repr, str, "{}".format, lambda r: repr([r])])
def test_printing_shows_no_value(show: Callable[[Release], str]) -> None:
    text = show(release())
    assert "client-0001" in text
    assert "1234" not in text
    assert "sealed bytes" not in text


def test_a_release_does_not_change() -> None:
    with pytest.raises(AttributeError):
        release().charge = NO_COST  # type: ignore[misc]


def test_a_release_equals_itself_alone() -> None:
    """Equality of sealed values would tell something about them."""
    one = release()
    assert one == one
    assert one != release()


@every("issuer", [None, object(), "ledger", True, Permit])
def test_nobody_but_the_ledger_makes_a_permit(issuer: Any) -> None:
    with pytest.raises(UnaccountedRelease, match="alone"):
        Permit(frozenset({release().key}), issuer=issuer)
    with pytest.raises(TypeError):
        Permit(frozenset({release().key}))  # type: ignore[call-arg]


def test_keys_differ_in_every_part() -> None:
    parts = ("client-0001", bytes(32), 1, 0, 0, "loss")
    others = ("client-0002", bytes(31) + b"\1", 2, 1, 1, "size")
    for i, other in enumerate(others):
        assert ReleaseKey(*parts) != ReleaseKey(*parts[:i], other, *parts[i + 1 :])  # type: ignore[arg-type]


def test_a_permit_opens_no_other_release() -> None:
    permit = Permit(frozenset({release().key}), issuer=_LEDGER_ONLY)
    assert permit.contents(release())[0] == SECRET
    with pytest.raises(UnaccountedRelease):
        permit.contents(release("size"))
