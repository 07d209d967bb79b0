"""Each rule has one home, and each module one idea: twins drift apart, and long modules hide things."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "longest.py"
SPEC = importlib.util.spec_from_file_location("longest", TOOL)
assert SPEC is not None
assert SPEC.loader is not None
longest = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(longest)
TEXTS = longest.sources()

HOMES = {
    "how many clients a share is": (r"Fraction\(str\(", "securefl/core/cohort.py"),
    "what is near a budget": (r"\* NEAR\b", "securefl/accounting/composition.py"),
    "the bisection for rounds left": (r"\(low \+ high\) // 2", "securefl/accounting/budget.py"),
    "why epsilon is infinite": (r"so it is not noised", "securefl/mechanisms/charges.py"),
    "opening SQLite": (r"sqlite3\.connect\(", "securefl/storage/connection.py"),
    "an infinite epsilon as text": ("∞", "securefl/accounting/figures.py"),
    "an infinite number in JSON": (r"\bstr\(float\(|return \"-?inf\"", "securefl/accounting/figures.py"),
    "names of presets": (r"\"emnist_v1\"", "securefl/study/cost.py"),
}


@pytest.mark.parametrize(("rule", "home"), HOMES.values(), ids=list(HOMES))
def test_a_rule_stands_in_one_module(rule: str, home: str) -> None:
    assert [path for path, text in TEXTS.items() if re.search(rule, text)] == [home]


def test_no_module_is_long() -> None:
    assert len(TEXTS) > 150, "the modules were not found"
    assert longest.long_modules(TEXTS) == []


def test_a_long_module_is_found() -> None:
    assert longest.long_modules({"a.py": "x\n" * 601, "b.py": "x\n" * 600}) == [(601, "a.py")]
