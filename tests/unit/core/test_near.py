"""Hints at a misspelt word prefer its family, and are the same in every process."""

from __future__ import annotations

from support.every import every

from securefl.core.installed import entry_points
from securefl.core.reading import near

WORDS = [point.name for point in entry_points(group="securefl.protocols")]


@every(
    ("word", "meant"),
    [
        ("fedpro", "fedprof"),
        ("fedproff", "fedprof"),
        ("fedprx", "fedprox"),
        ("FedProf", "fedprof"),
        ("fedavgrp", "fedavg_rp"),
        ("fedav", "fedavg"),
        ("pow-d", "pow_d"),
        ("lgfedavg", "lg_fedavg"),
    ],
)
def test_the_family_comes_first(word: str, meant: str) -> None:
    assert near(word, WORDS) == f" (did you mean `{meant}`?)"
    assert near(word, reversed(WORDS)) == near(word, WORDS)


@every("word", ["", "zzz", "scaffold", "-"])
def test_what_is_not_near_is_not_hinted_at(word: str) -> None:
    assert near(word, WORDS) == ""
