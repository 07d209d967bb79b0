"""What bars show at every width: rounds, time left, accuracy and the epsilon of each party."""

from __future__ import annotations

import io
import re
from typing import Any

from rich.console import Console
from support.every import every
from support.tiny_study import FEDAVG, study

from securefl.study.config import Arm
from securefl.study.progress import Bars

NAME = "FedProf with full matching under pads"
RECORD: dict[str, Any] = {
    "round": 3,
    "accuracy": 0.935,
    "bytes_up": 2_000_000,
    "bytes_down": 1_000_000,
    "wall_seconds": 0.5,
    "epsilon": {"server": 101.25, "key-holder": 0.5, "others": float("inf")},
}


def shown(width: int, name: str = NAME) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    bars = Bars(study(FEDAVG, rounds=40), console)
    first = study(FEDAVG).arms[0]
    bars.tell(Arm(name=name, protocol="fedavg", options=first.options), 3, RECORD)
    bars.observe("all records in one place", 20, 20)
    with console.capture() as captured:
        console.print(bars._progress.get_renderable())
    return captured.get()


@every("name", [NAME, "FedProf with full matching", "FedAvg"])
@every("width", [60, 80, 120])
def test_nothing_is_elided(width: int, name: str) -> None:
    text = shown(width, name)
    assert "…" not in text
    words = text.split()
    figures = ["3/40", "left", "acc", "0.935", "ε", "server=101.25", "key-holder=0.50", "others=∞", "20/20"]
    for figure in [*figures, *name.split()]:
        assert figure in words, figure
    assert re.search(r"left -:--:--|left \d:\d\d:\d\d", text)
    assert max(map(len, text.split("\n"))) <= width


def test_bytes_stand_where_there_is_room() -> None:
    assert "3.00 MB" in shown(120)
    assert "MB" not in shown(80)


def test_without_a_terminal_every_tenth_round_has_a_line() -> None:
    out = io.StringIO()
    bars = Bars(study(FEDAVG, rounds=40), Console(file=out, width=60))
    for number, accuracy in ((9, 0.5), (10, 0.5), (40, None)):
        bars.tell(study(FEDAVG).arms[0], 3, {**RECORD, "round": number, "accuracy": accuracy})
    bars.observe("all records in one place", 1, 2)
    bars.observe("all records in one place", 2, 2)
    lines = out.getvalue().splitlines()
    assert [line.split("  acc")[0].split() for line in lines[:2]] == [
        ["FedAvg", "round", "10", "of", "40"],
        ["FedAvg", "round", "40", "of", "40"],
    ]
    assert "server=101.25 key-holder=0.50 others=∞" in lines[0]
    assert "acc 0.500" in lines[0]
    assert "acc -    " in lines[1]
    assert lines[2:] == ["all records in one place: trained for comparison by the observer"]
