"""Each rule has one home: twins drift apart."""

from __future__ import annotations

import re

from support.sources import sources

HOMES = {
    "how many clients a share is": (r"Fraction\(str\(", "securefl/core/cohort.py"),
    "what is near a budget": (r"\* NEAR\b", "securefl/accounting/composition.py"),
    "the bisection for rounds left": (r"\(low \+ high\) // 2", "securefl/accounting/budget.py"),
    "why epsilon is infinite": (r"so it is not noised", "securefl/mechanisms/charges.py"),
    "opening SQLite": (r"sqlite3\.connect\(", "securefl/storage/database.py"),
    "an infinite epsilon as text": ("∞", "securefl/accounting/figures.py"),
    "an infinite number in JSON": (r"\bstr\(float\(|return \"-?inf\"", "securefl/accounting/figures.py"),
    "names of presets": (r"\"emnist_v1\"", "securefl/study/cost.py"),
}


def test_a_rule_stands_in_one_module() -> None:
    found = {
        rule: [path for path, text in sources().items() if re.search(pattern, text)]
        for rule, (pattern, _) in HOMES.items()
    }
    assert found == {rule: [home] for rule, (_, home) in HOMES.items()}


def test_an_encrypted_sum_lives_in_one_folder() -> None:
    """No module outside knows its machines, its messages or its arithmetic."""
    home = "securefl/sums/encrypted/"
    inside = [path.removeprefix(home).removesuffix(".py") for path in sources() if path.startswith(home)]
    names = [f"sums.encrypted.{name}" for name in inside if name != "__init__"]
    assert len(names) >= 5
    outside = {path: text for path, text in sources().items() if not path.startswith(home)}
    assert [path for path, text in outside.items() if any(name in text for name in names)] == []
