"""tinyshakespeare as next-character prediction, naturally split by the role that speaks."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from securefl.data.dataset import Dataset, Split

WINDOW = 80
"""Characters a model reads before it predicts the next one (as in LEAF, arXiv:1812.01097)."""

STRIDE = 10
"""Characters between the starts of neighbouring windows. A window at every character would fill half a
gigabyte."""

FEWEST = 2_000
"""Characters a role must speak to become a client."""

TEST_SHARE = 0.2


def speeches(text: str) -> dict[str, str]:
    """The speeches of each role, by name: in order, joined by a line break, without the name."""
    spoken: dict[str, list[str]] = {}
    for block in re.split(r"\n\n+", text.strip("\n")):
        name, colon, words = block.partition(":\n")
        if colon and "\n" not in name:
            spoken.setdefault(name, []).append(words)
    return {name: "\n".join(parts) for name, parts in spoken.items()}


def large_roles(spoken: Mapping[str, str]) -> list[str]:
    """Names, sorted, of the roles with at least FEWEST characters of speech."""
    return sorted(name for name, words in spoken.items() if len(words) >= FEWEST)


def windows(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All windows of a text, STRIDE apart: x of shape (n, WINDOW) and the character after each, (n,)."""
    if len(codes) <= WINDOW:
        return np.empty((0, WINDOW), np.int64), np.empty(0, np.int64)
    view = np.lib.stride_tricks.sliding_window_view(codes, WINDOW + 1)[::STRIDE]
    return view[:, :WINDOW], view[:, WINDOW]


def split(text: str, rng: np.random.Generator) -> Split:
    """Records and groups (position in `large_roles`) of the large roles of `text`.

    A fifth of each role's text is its test part. It is contiguous and starts at a random character. Windows
    never reach across the border, so that no test character was seen in training.
    """
    spoken = speeches(text)
    # read off all roles together, so one role moves the codes of the others: `fitted` says so
    vocabulary = np.array(sorted(set(text)))
    train: list[tuple[NDArray[np.int64], NDArray[np.int64], int]] = []
    test: list[tuple[NDArray[np.int64], NDArray[np.int64], int]] = []
    for group, name in enumerate(large_roles(spoken)):
        codes = np.searchsorted(vocabulary, np.array(list(spoken[name]))).astype(np.int64)
        held = round(TEST_SHARE * len(codes))
        start = int(rng.integers(len(codes) - held + 1))
        test.append((*windows(codes[start : start + held]), group))
        train += [(*windows(codes[:start]), group), (*windows(codes[start + held :]), group)]
    return Split(train=_joined(train, len(vocabulary)), test=_joined(test, len(vocabulary)))


def _joined(parts: list[tuple[NDArray[np.int64], NDArray[np.int64], int]], classes: int) -> Dataset:
    return Dataset(
        name="shakespeare",
        x=np.concatenate([x for x, _, _ in parts]),
        y=np.concatenate([y for _, y, _ in parts]),
        classes=classes,
        groups=np.concatenate([np.full(len(y), group, np.int64) for _, y, group in parts]),
        fitted="its vocabulary, and which roles are large enough, were read off the whole text",
    )
