"""Modules load without searches for reference cycles, and their objects are old afterwards. Names that left a
face stay for one release, with a warning."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
from support.every import every

import securefl
from securefl.core import lazy
from securefl.core.lazy import loading


@pytest.fixture(autouse=True)
def searching() -> Iterator[None]:
    gc.enable()
    gc.unfreeze()
    yield
    gc.freeze()  # as the other tests have it
    gc.enable()


def test_searches_pause_while_a_module_loads_and_go_on_after_an_error() -> None:
    def load() -> None:
        with loading("no_module"):
            with loading("another"):
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise ImportError

    with pytest.raises(ImportError):
        load()
    assert gc.isenabled()


def test_what_a_module_made_is_old_and_not_frozen() -> None:
    """Only a full search looks through it, and that one does: a cycle among it is freed."""
    with loading("no_module"):
        made: list[object] = [{"number": number} for number in range(1000)]
    assert gc.get_freeze_count() == 0
    assert any(own is made for own in gc.get_objects(generation=2))


@every("disabled", [False, True])
def test_the_choices_of_the_caller_stay(disabled: bool) -> None:
    if disabled:
        gc.disable()
        with loading("no_module"):
            pass
        assert not gc.isenabled()
    else:
        gc.freeze()
        frozen = gc.get_freeze_count()
        with loading("no_module"):
            pass
        # Thawed, none would be left. Frozen objects of other tests may be freed in between.
        assert 0 < gc.get_freeze_count() <= frozen
        assert gc.isenabled()


def test_a_loaded_module_pauses_nothing() -> None:
    """What is drawn with it goes on being freed."""
    assert "sys" in sys.modules
    young: list[object] = [[]]
    with loading("sys"):
        assert gc.isenabled()
    assert any(own is young for own in gc.get_objects(generation=0))


def test_a_retired_name_warns_and_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lazy.RETIRED, "securefl.old_plan", "securefl.algorithm.Plan")
    with pytest.warns(DeprecationWarning, match=r"securefl\.old_plan is securefl\.algorithm\.Plan") as told:
        assert securefl.old_plan is securefl.Plan  # type: ignore[attr-defined]
    assert told[0].filename == __file__
    assert "old_plan" not in dir(securefl)
    with pytest.raises(AttributeError, match="nothing"):
        _ = securefl.nothing  # type: ignore[attr-defined]
