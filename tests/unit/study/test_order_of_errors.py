"""Errors in a study come in the order in which a person typed it."""

from __future__ import annotations

import re
from itertools import permutations

import pytest
from support.every import every
from support.tiny_study import text

from securefl.core.errors import ConfigError
from securefl.core.reading import convert
from securefl.study.config import StudySection, parse

WHOLE = text()


def message(written: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(written)
    return str(caught.value)


def section(name: str) -> str:
    return next(part for part in re.split(r"(?m)^(?=\[)", WHOLE) if part.startswith(f"[{name}]"))


WRONG = {
    "data": section("data").replace("clients = 6", 'clients = "six"'),
    "local": section("local").replace("epochs = 2", "epoch = 2"),
    "privacy": section("privacy").replace("delta = 1e-4", "delta = 2"),
}
"""Sections with one mistake each: of type, of name, and of value."""


@every("order", list(permutations(WRONG)))
def test_the_first_section_with_a_mistake_is_named(order: tuple[str, ...]) -> None:
    rest = section("study") + section("model")
    arms = WHOLE[WHOLE.index("[[arm]]") :]
    assert message(rest + "".join(WRONG[name] for name in order) + arms).startswith(f"[{order[0]}]")
    assert message("".join(WRONG[name] for name in order) + rest + arms).startswith(f"[{order[0]}]")


def test_an_arm_before_a_section_is_named_before_it() -> None:
    arm = '[[arm]]\nname = "FedAvg"\nprotocol = "fedavgg"\n'
    head, tail = WHOLE[: WHOLE.index("[privacy]")], WRONG["privacy"]
    assert message(head + arm + tail).startswith("[arm 1]")
    assert message(head + tail + arm).startswith("[privacy]")


@every("order", list(permutations(["rounds", "rond", "target"])))
def test_keys_are_named_in_their_order(order: tuple[str, ...]) -> None:
    wrong = {"rounds": "ten", "rond": 3, "target": "high"}
    table = {"name": "n", **{key: wrong[key] for key in order}}
    with pytest.raises(ConfigError) as caught:
        convert(StudySection, table, "study")
    assert re.findall(r"`(rounds|rond|target)`(?::|\s\(|;)", str(caught.value)) == list(order)


def test_a_misspelt_key_is_not_missing_too() -> None:
    with pytest.raises(ConfigError) as caught:
        convert(StudySection, {"name": "n", "round": 3}, "study")
    assert "Missing" not in str(caught.value)
    with pytest.raises(ConfigError, match="Missing key `rounds`"):
        convert(StudySection, {"name": "n"}, "study")


def test_a_misspelt_section_below_is_named_too() -> None:
    """Here an epsilon is missing because its section's name is wrong."""
    written = WHOLE.replace('noise = "none"', 'noise = "local"')
    told = message(written + "\n[privcy]\nepsilon = 1.0\n")
    assert told.startswith("[privacy] ")
    assert "Unknown section [privcy] (did you mean `privacy`?)" in told


def test_missing_sections_come_last() -> None:
    without = WHOLE.replace(section("data"), "")
    assert message(without).startswith("Missing section [data].")
    assert message(without.replace("rounds = 2", "rounds = 0")).startswith("[study]")
