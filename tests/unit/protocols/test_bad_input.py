"""What every protocol refuses: options out of their ranges, in Python and in TOML. And few records."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_study import spied, text, world

from securefl.core.errors import ConfigError
from securefl.core.ranges import Range, _allowed
from securefl.study.config import parse

PROTOCOLS = {point.name: point.load() for point in entry_points(group="securefl.protocols")}


def ranged(kind: Any) -> dict[str, tuple[type, Range]]:
    """Each option of a kind that is a number: its class and its range."""
    ways = ((name, way) for name, allowed in _allowed(kind).items() for way in allowed)
    return {name: (of, allowed) for name, (of, allowed) in ways if isinstance(allowed, Range)}


def outside(kind: Any) -> list[tuple[str, Any]]:
    """Values of the kind's options that their ranges do not hold."""
    odd = (-(2.0**41), -1.0, 0.0, 2.0**41, float("nan"))
    found = [(name, one) for name, (_, allowed) in ranged(kind).items() for one in odd if one not in allowed]
    return [*found, *((name, "x") for name in _allowed(kind)), *((name, True) for name in ranged(kind))]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_an_option_out_of_its_range_is_named(name: str) -> None:
    kind = PROTOCOLS[name]
    needed = {"fraction": 0.5} if any(own.name == "fraction" for own in fields(kind)) else {}
    tried = outside(kind)
    assert tried
    for option, value in tried:
        with pytest.raises(ValueError, match=rf"\b{option} in "):
            kind(**{**needed, option: value})
    lines = {option: value for option, value in tried if value in (-1.0, 0.0)}
    for option, value in lines.items():
        given = {**needed, option: ranged(kind)[option][0](value)}
        arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n'
        with pytest.raises(ConfigError, match=option):
            parse(text(arm + "".join(f"{key} = {one}\n" for key, one in given.items())))


def test_no_epochs_are_refused() -> None:
    with pytest.raises(ConfigError, match="epochs"):
        parse(text().replace("epochs = 2", "epochs = 0"))


@pytest.mark.parametrize("name", ["fedavg", "feddrop", "fedper", "fedproto", "stc"])
def test_a_client_of_one_record_trains_beside_one_of_20_000(name: str, tmp_path: Path) -> None:
    fraction = "" if name == "fedproto" else "fraction = 1.0\n"
    arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n{fraction}'
    non_private = '["update", "count", "statistic"]'
    told = text(arm, rounds=1, clients=2, non_private=non_private)
    of = parse(told.replace("delta = 1e-4", "delta = 1e-6"))
    here = world(of)
    (x, y), _ = here.records
    many = np.arange(20_000) % len(x)
    records = [(x[:1], y[:1]), (x[many], y[many])]
    problem = replace(here.problem, records=20_001)
    spy, _ = spied(of, tmp_path, replace(here, records=records, problem=problem))
    assert spy.asks[-1][1].survivors == (0, 1)
