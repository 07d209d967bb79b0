"""`preset` in an arm: the keys that a protocol's class names, below the arm's own."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
from support.every import every
from support.tiny_study import text

from securefl.core.errors import ConfigError
from securefl.study.config import Arm, parse

NEEDED = {
    "adds": "fraction = 0.5",
    "stc": "fraction = 0.5",
    "cs_fl": "fraction = 1.0",
    "fedcor": "fraction = 0.5",
    "fltrust": "fraction = 1.0",
    "pfedme": "lamda = 2.0",
}
KINDS = {point.name: point.load() for point in entry_points(group="securefl.protocols")}
PRESETS = [(name, preset) for name, kind in KINDS.items() for preset in getattr(kind, "presets", {})]


def arm(protocol: str, keys: str) -> Arm:
    more = NEEDED.get(protocol, "")
    (found,) = parse(text(f'[[arm]]\nname = "x"\nprotocol = "{protocol}"\n{more}\n{keys}\n')).arms
    return found


@every(("protocol", "preset"), PRESETS)
def test_a_preset_is_its_keys_written_out(protocol: str, preset: str) -> None:
    keys = KINDS[protocol].presets[preset]
    found, plain = arm(protocol, f'preset = "{preset}"'), arm(protocol, "")
    for key in keys.keys() - {"local", "clip", "prior"}:
        assert getattr(found.options, key) == keys[key] != getattr(plain.options, key)
    for key, value in keys.get("local", {}).items():
        assert found.local is not None
        assert getattr(found.local, key) == value
    changed = found.options != plain.options or found.local is not None
    assert changed == bool(keys), "a preset without keys is the protocol's own setting"


def test_the_systems_that_differ_have_a_preset() -> None:
    authors = {"cs_fl", "fedcor", "feddbe", "fedlog", "fedrep", "pfedme", "stc"}
    assert {(name, "authors") for name in authors} | {("adds", "paper")} <= {*PRESETS}


def test_keys_of_the_arm_come_before_those_of_its_preset() -> None:
    found = arm("fedrep", 'preset = "authors"\nlayers = 1')
    assert (found.options.layers, found.options.alternating) == (1, True)  # type: ignore[attr-defined]
    found = arm("pfedme", 'preset = "authors"\nlocal = { learning_rate = 0.3 }')
    assert found.local is not None
    assert (found.local.learning_rate, found.local.weight_decay) == (0.3, 0.001)
    found = arm("adds", 'preset = "paper"\nlocal = { steps = 7 }')
    assert found.local is not None
    assert (found.local.steps, found.local.epochs) == (7, None)


@every(
    ("protocol", "preset", "said"),
    [
        (
            "stc",
            '"author"',
            "[arm 1] `preset`: Expected one of paper, authors, got 'author' (did you mean `authors`?). "
            "Leave it out and set the options themselves.",
        ),
        (
            "fedavg",
            '"paper"',
            "[arm 1] `preset`: Expected no preset of this protocol, got 'paper'. Leave it out and set the "
            "options themselves.",
        ),
        ("stc", "[1]", "[arm 1] `preset`: Expected one of paper, authors, got [1]. "),
    ],
)
def test_an_unknown_preset_is_refused(protocol: str, preset: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        arm(protocol, f"preset = {preset}")
    assert said in str(caught.value)
    if protocol != "fedavg":
        arm(protocol, "")  # the remedy


@every("preset", ['["authors"]', "true", "{ a = 1 }"])
def test_a_preset_that_is_no_text_is_told_of_once(preset: str) -> None:
    with pytest.raises(ConfigError) as caught:
        arm("stc", f"preset = {preset}")
    assert str(caught.value).count("`preset`") == 1
