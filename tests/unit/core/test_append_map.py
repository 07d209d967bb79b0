"""A mapping that grows costs one entry an entry, and none of its versions changes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefl.core.append_map import AppendMap


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=30))
def test_every_version_stays_as_it_is(steps: list[tuple[int, int]]) -> None:
    """From any earlier version, as often as one likes: a state that is received on twice is not changed."""
    versions: list[tuple[AppendMap[int, int], dict[int, int]]] = [(AppendMap(), {})]
    for back, key in steps:
        state, plain = versions[-1 - back % len(versions)]
        if key in plain:
            with pytest.raises(ValueError, match="again"):
                state.having(key, back)
            continue
        versions.append((state.having(key, back), {**plain, key: back}))
    for state, plain in versions:
        assert dict(state) == plain == state
        assert (list(state), len(state)) == (list(plain), len(plain))
        assert all((key in state) == (key in plain) and state.get(key) == plain.get(key) for key in range(10))


def test_growing_copies_nothing() -> None:
    """Every version of a run shares one table."""
    first: AppendMap[int, str] = AppendMap()
    tables = {id(first._table)}
    state = first
    for key in range(100):
        state = state.having(key, "")
        tables.add(id(state._table))
    assert len(tables) == 1
    assert first.having(7, "x")._table is not first._table, "a second branch has its own"
