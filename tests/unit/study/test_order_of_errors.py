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


ARMS = (
    '[[arm]]\nname = "a"\nprotocol = "fedavgg"\n',
    '[[arm]]\nname = "b"\nprotocol = "fedavg"\nfraction = 50\n',
)


def places(written: str) -> list[str]:
    """The place of each mistake, a line each."""
    return [line.partition("]")[0].lstrip("[") for line in message(written).split("\n")]


@every("order", list(permutations(WRONG)))
def test_every_section_and_arm_with_a_mistake_is_named_in_its_order(order: tuple[str, ...]) -> None:
    rest = section("study") + section("model")
    wrong = "".join(WRONG[name] for name in order)
    assert places(rest + wrong + "".join(ARMS)) == [*order, "arm 1", "arm 2"]
    assert places("".join(ARMS) + wrong + rest) == ["arm 1", "arm 2", *order]


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
