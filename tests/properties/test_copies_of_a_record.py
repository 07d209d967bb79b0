"""Whatever the table, one record more or less moves one record, and a share of copies is that share."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from securefl.core.keys import SecretKey
from securefl.data import Dataset
from securefl.data.sides import HOLDOUT, Sides, parted

rows = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=40)
keys = st.one_of(st.integers(0, 2**32), st.binary(min_size=32, max_size=32).map(SecretKey))
VALUES = np.array([[0.0, 1.0], [-0.0, 1.0], [np.nan, 2.0], [3.5, np.inf]], np.float32)


def table(content: list[tuple[int, int]]) -> Dataset:
    """Records of four contents, of three clients: two contents differ in the sign of a zero alone."""
    which, owners = (np.array(column, np.int64) for column in zip(*content, strict=True))
    y = which % 2
    return Dataset(name="few", x=VALUES[which], y=y, classes=2, groups=owners, holders=3, lenient=True)


def sides_of(whole: Dataset, sides: Sides) -> Counter[tuple[Any, ...]]:
    """How many copies of each record each client has on each side: test, held out, or trained on."""
    split = parted(whole, 0.4, sides)
    found: Counter[tuple[Any, ...]] = Counter()
    for name, part in (("test", split.test), ("train", split.train)):
        assert part.groups is not None
        for client in range(3):
            own = part.take(np.flatnonzero(part.groups == client))
            out = sides.apart(own.x, own.y, 0.5, HOLDOUT)
            for x, y, held in zip(own.x, own.y, out, strict=True):
                found[client, name, name == "train" and bool(held), x.tobytes(), int(y)] += 1
    return found


@settings(max_examples=60)
@given(content=rows, key=keys, gone=st.integers(0, 39))
def test_one_record_less_moves_one_record_and_no_other_clients(
    content: list[tuple[int, int]], key: SecretKey | int, gone: int
) -> None:
    gone %= len(content)
    whole, kept = table(content), np.delete(np.arange(len(content)), gone)
    before, after = sides_of(whole, Sides(key)), sides_of(whole.take(kept), Sides(key))
    assert not after - before, "a record came to a side"
    [(client, *_, x, y)] = (before - after).elements()
    assert (client, x, y) == (content[gone][1], whole.x[gone].tobytes(), int(whole.y[gone]))


@settings(max_examples=60)
@given(content=rows, key=keys, chance=st.randoms(use_true_random=False))
def test_no_order_of_copies_decides(
    content: list[tuple[int, int]], key: SecretKey | int, chance: Any
) -> None:
    mixed = list(content)
    chance.shuffle(mixed)
    assert sides_of(table(content), Sides(key)) == sides_of(table(mixed), Sides(key))


@settings(max_examples=60)
@given(distinct=st.integers(1, 20), n=st.integers(1, 300), share=st.sampled_from([0.1, 0.3, 0.5]), seed=keys)
def test_a_share_of_a_table_of_copies_is_that_share(
    distinct: int, n: int, share: float, seed: SecretKey | int
) -> None:
    """The bounds are those of 60 tables together: one honest split in 10^7 is outside of them."""
    x = (np.arange(n, dtype=np.float32) % distinct)[:, None]
    count = int(Sides(seed).apart(x, np.zeros(n, np.int64), share, HOLDOUT).sum())
    level = 1e-7 / 60
    assert binom.ppf(level / 2, n, share) <= count <= binom.isf(level / 2, n, share)
