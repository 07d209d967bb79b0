"""tinyshakespeare as next-character prediction, with one group for each speaking role."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from securefl.data.dataset import Dataset, Split

WINDOW = 80
"""Characters that a model reads before it predicts the next one (as in LEAF, arXiv:1812.01097)."""

STRIDE = 10
"""Characters between the starts of neighbouring windows. With a window at every character, the windows would
need half a gigabyte."""

FEWEST = 2_000
"""The fewest characters of a role that becomes a client."""

TEST_SHARE = 0.2


def speeches(text: str) -> dict[str, str]:
    """The text of each role by its name: its speeches in order, joined by line breaks, without the name."""
    spoken: dict[str, list[str]] = {}
    for block in re.split(r"\n\n+", text.strip("\n")):
        name, colon, words = block.partition(":\n")
        if colon and "\n" not in name:
            spoken.setdefault(name, []).append(words)
    return {name: "\n".join(parts) for name, parts in spoken.items()}


def large_roles(spoken: Mapping[str, str]) -> list[str]:
    """The sorted names of the roles with at least FEWEST characters."""
    return sorted(name for name, words in spoken.items() if len(words) >= FEWEST)


def windows(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All windows of a text, STRIDE apart: x of shape (n, WINDOW) and the character after each, (n,)."""
    if len(codes) <= WINDOW:
        return np.empty((0, WINDOW), np.int64), np.empty(0, np.int64)
    view = np.lib.stride_tricks.sliding_window_view(codes, WINDOW + 1)[::STRIDE]
    return view[:, :WINDOW], view[:, WINDOW]


Part = tuple[NDArray[np.int64], NDArray[np.int64], int]
"""Windows of a role, the characters after them, and the role's group."""


def split(text: str, rng: np.random.Generator) -> Split:
    """The records of the large roles of `text`. A record's group is its role's position in `large_roles`.

    A fifth of each role's text is its test part. It is contiguous and starts at a random character. No window
    crosses the border, so training sees no test character.
    """
    spoken = speeches(text)
    # The vocabulary is computed from all roles, so one role can change the codes of the others. `fitted` says
    # so.
    vocabulary = np.array(sorted(set(text)))
    train: list[Part] = []
    test: list[Part] = []
    for group, name in enumerate(large_roles(spoken)):
        codes = np.searchsorted(vocabulary, np.array(list(spoken[name]))).astype(np.int64)
        held = round(TEST_SHARE * len(codes))
        start = int(rng.integers(len(codes) - held + 1))
        test.append((*windows(codes[start : start + held]), group))
        train += [(*windows(codes[:start]), group), (*windows(codes[start + held :]), group)]
    return Split(train=_joined(train, len(vocabulary)), test=_joined(test, len(vocabulary)))


def _joined(parts: Sequence[Part], classes: int) -> Dataset:
    x, y, groups = zip(*parts, strict=True)
    return Dataset(
        name="shakespeare",
        x=np.concatenate(x),
        y=np.concatenate(y),
        classes=classes,
        groups=np.repeat(groups, [len(own) for own in y]),
        fitted="its vocabulary, and which roles are large enough, were read off the whole text",
    )
