"""Holders of equal counts are one group, whatever order they were counted in."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from securefl.accounting.grouped_counts import GroupedCounts

ITEMS = [("update", "a"), ("update", "b"), ("loss", "a")]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(ITEMS), st.integers(1, 3)), max_size=40))
def test_groups_are_those_of_a_plain_count(counted: list[tuple[int, tuple[str, str], int]]) -> None:
    alike, plain = GroupedCounts(range(5)), {holder: Counter[tuple[str, str]]() for holder in range(5)}
    for holder, item, times in counted:
        alike.add(holder, item, times)
        plain[holder][item] += times
    expected: dict[frozenset[tuple[tuple[str, str], int]], set[int]] = {}
    for holder, counts in plain.items():
        assert dict(alike.counted(holder)) == counts
        expected.setdefault(frozenset(counts.items()), set()).add(holder)
    assert dict(alike.groups()) == expected
    assert set(alike.histories()) == expected.keys()


def test_a_thousand_rounds_leave_few_histories() -> None:
    """All that a round asks for is asked of the histories that some holder has now."""
    alike = GroupedCounts(range(50))
    for _ in range(1000):
        for holder in range(50):
            alike.add(holder, ITEMS[0])
    assert [(dict(counts), len(holders)) for counts, holders in alike.groups()] == [({ITEMS[0]: 1000}, 50)]


def test_a_stranger_has_no_counts_and_no_group() -> None:
    alike: GroupedCounts[str] = GroupedCounts()
    assert (alike.counted("x"), list(alike.groups())) == (frozenset(), [])
    alike.add("x", ITEMS[0])
    assert len(list(alike.groups())) == 1
