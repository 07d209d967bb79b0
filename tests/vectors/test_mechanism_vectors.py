"""Charges, noise and bounds of mechanisms, bit for bit as they were before mechanisms were objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.noises import noise, room
from support.offenders import offenders

from securefl.accounting.events import dump_charge
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ValueSpec
from securefl.core.errors import ConfigError
from securefl.core.grid import Grid
from securefl.core.keys import SecretKey
from securefl.dp.noise import Source
from securefl.mechanisms.charges import Protection, fewest_contributions

ROWS = json.loads((Path(__file__).parent / "mechanisms" / "figures.json").read_text(encoding="utf-8"))["rows"]


def told(figure: Callable[[], Any]) -> Any:
    try:
        return figure()
    except ConfigError as error:
        return {"refused": str(error)}


def without_sentence(figure: Any) -> Any:
    return "refused" if isinstance(figure, dict) and "refused" in figure else figure


def test_figures_are_those_of_before() -> None:
    assert offenders(ROWS, as_before) == []


def as_before(row: dict[str, Any]) -> None:
    words = {name: tuple(own) if isinstance(own, list) else own for name, own in row["plan"].items()}
    plan, given = Plan(**words), row["spec"]
    sensitivity = given["sensitivity"]
    spec = ValueSpec(
        name="own",
        reduction=given["reduction"],
        reveals="it",
        sensitivity={} if sensitivity is None else {(plan.unit, plan.adjacency): sensitivity},
        cohort=given["cohort"],
        depends_on=given["depends_on"],
        grid=Grid(step=given["step"], bound=given["bound"]),
    )
    source = Source(SecretKey(bytes(range(32))))
    figures: dict[str, Callable[[], Any]] = {
        "charge": lambda: json.loads(dump_charge(Protection(plan, spec).charge())),
        "noise": lambda: noise(plan, spec, 4, source).tolist(),
        "deviation": lambda: Protection(plan, spec).mechanism.deviation(7),
        "fewest": lambda: [fewest_contributions(plan, cohort, [spec]) for cohort in (3, 10, 16, 40)],
        "room": lambda: room(plan, spec),
    }
    # Of a refusal the vectors have the sentence of their time, and sentences may be written better.
    stored = {name: without_sentence(row[name]) for name in figures if name in row}
    assert {name: without_sentence(told(figures[name])) for name in stored} == stored
    assert Protection(plan, spec).mechanism.noised == ("noise" in stored)


def test_the_vectors_are_of_every_case() -> None:
    """Of each word some charges and some refusals, and every kind of figure."""
    for word in ("none", "local", "distributed", "central", "key-holder"):
        own = [row for row in ROWS if row["plan"]["noise"] == word]
        assert len(own) >= 16
        assert {"refused" in row["charge"] for row in own} == {True, False}
    for figure in ("noise", "deviation", "fewest", "room"):
        assert sum(figure in row and "refused" not in str(row[figure]) for row in ROWS) > 30
