"""Each range that a type states is kept by the class that has it, from Python and from TOML."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from dataclasses import MISSING, fields
from importlib import import_module
from math import inf, isinf, nan, nextafter
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from support.every import every, offenders

from securefl.core.errors import ConfigError
from securefl.core.ranges import Range, Ranged, _allowed, _number
from securefl.core.reading import convert
from securefl.protocols.fedavg import FedAvg
from securefl.study.data_section import DataSection

BESIDE: dict[str, dict[str, Any]] = {
    "Partition": {"kind": "iid"},
    "LocalTraining": {"epochs": 1},
    "LossSection": {"class_weights": (1.0,)},
    "StudySection": {"name": "tiny", "seeds": (1,)},
    "DataSection": {"clients": 3},
    "Trials": {"trials": "negative-binomial"},
    "Draw": {},
    "DPSGDSection": {
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "sampling_rate": 0.1,
        "expected_batch": 16.0,
        "steps": 1,
        "learning_rate": 0.1,
    },
    "PrivacySection": {
        "sum": "clear",
        "scores": "clear",
        "noise": "none",
        "delta": 1e-5,
        "budget": inf,
        "adversaries": ("server",),
        "non_private": ("update",),
    },
}
"""What a class needs beside its required numbers."""


def kinds() -> list[type[Any]]:
    """Every class of the package whose numbers have ranges, but those of a model's file."""
    for place in ("protocols", "data", "dp", "engine", "study", "training"):
        package = import_module(f"securefl.{place}")
        for found in pkgutil.walk_packages(package.__path__, f"securefl.{place}."):
            import_module(found.name)
    found = {kind.__name__: kind for kind in Ranged.__subclasses__()}
    return [found[name] for name in sorted(found.keys() - {"Bodies", "WeightsSection"})]


def ends(allowed: Range) -> tuple[float, float]:
    low, high = map(_number, allowed.words[1:-1].split(","))
    return low, high


def inside(allowed: Range, whole: bool) -> float:
    low, high = ends(allowed)
    middle = (1 if isinf(low) else low + 1) if isinf(high) else (low + high) / 2
    return max(int(low), 1) if whole else middle


def outside(allowed: Range, whole: bool) -> Iterator[Any]:
    low, high = ends(allowed)
    yield from (True, "no number")
    if whole:
        yield from (int(low) - 1, inside(allowed, whole) + 0.5, *(() if isinf(high) else (int(high) + 1,)))
        return
    yield low if allowed.words[0] == "(" else nextafter(low, -inf)
    if allowed.words[-1] == ")" or not isinf(high):
        yield high if allowed.words[-1] == ")" else nextafter(high, inf)
    yield nan


def made(kind: type[Any], /, **changes: Any) -> dict[str, Any]:
    """Values from which the class can be made, but for these changes."""
    hints = get_type_hints(kind)
    given = dict(BESIDE.get(kind.__name__, {}))
    for one in fields(kind):
        if one.default is MISSING and one.default_factory is MISSING and one.name not in given:
            hint = hints[one.name]
            (_, allowed), *_ = _allowed(kind).get(one.name, [(hint, ())])
            if get_origin(hint) is Literal:
                given[one.name] = get_args(hint)[0]
            elif isinstance(allowed, Range):
                number = inside(allowed, hint is int)
                given[one.name] = (number,) if get_origin(hint) is tuple else number
    return given | changes


def cases() -> list[tuple[type[Any], str, Any]]:
    found = []
    for kind in kinds():
        hints = get_type_hints(kind)
        for name, ways in _allowed(kind).items():
            many = get_origin(hints[name]) is tuple
            for of, allowed in ways:
                bads = outside(allowed, of is int) if isinstance(allowed, Range) else ["no such word", nan]
                found += [(kind, name, (bad,) if many else bad) for bad in bads]
    return found


def test_a_value_outside_of_its_range_is_refused_by_its_name() -> None:
    def refused(case: tuple[type[Any], str, Any]) -> None:
        kind, name, bad = case
        with pytest.raises(ValueError, match=rf"Expected {name} in "):
            kind(**made(kind, **{name: bad}))
        table = {key: list(own) if isinstance(own, tuple) else own for key, own in made(kind).items()}
        with pytest.raises(ConfigError, match=rf"^\[here\].*{name}"):
            convert(kind, table | {name: list(bad) if isinstance(bad, tuple) else bad}, "here")

    every = cases()
    assert len(every) > 250
    assert offenders(every, refused) == []


def test_what_is_inside_makes_the_class() -> None:
    assert offenders(kinds(), lambda kind: kind(**made(kind))) == []


@every(
    ("words", "within", "beyond"),
    [
        ("(0, 1]", (5e-324, 1.0), (0.0, -0.0, 1.0000000000000002, nan)),
        ("[0, 1)", (0.0, 0.9999999999999999), (-5e-324, 1.0, nan)),
        ("[2^-10, 2^10]", (2.0**-10, 1024.0), (0.0009, 1024.1)),
        ("[1, inf)", (1, 10**400, 1e308), (0, inf, nan)),
    ],
)
def test_a_range_is_read_as_mathematics_writes_it(
    words: str, within: tuple[float, ...], beyond: tuple[float, ...]
) -> None:
    assert [value for value in within if value not in Range(words)] == []
    assert [value for value in beyond if value in Range(words)] == []


def test_a_truth_beside_other_types_is_no_word() -> None:
    """Its own class reads such a union: `classes` of a table are true or a list of words."""
    assert "classes" not in _allowed(DataSection)
    assert _allowed(FedAvg)["stale"] == [(bool, (False, True))]
