"""The page on the baselines: each stands there with a study that has it, and with what bounds its epsilon."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from support.every import every
from support.private_studies import client_level, private
from support.tiny_study import composed

from securefl.core.errors import ConfigError
from securefl.core.release import OTHERS
from securefl.mechanisms.charges import Protection, unbounded
from securefl.study.config import Study, parse
from securefl.study.packaged import packaged

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "sources.md"
LINES = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
ROWS = {line.split("`")[1]: [cell.strip() for cell in line.strip("|").split("|")] for line in LINES[1:]}
OPTIONS = {
    "feddbe": "mean_bound = 1.0",
    "pfedme": "lamda = 2.0\neta = 0.4",
    "fedproto": "client_bound = 20.0",
    "fedbabu": "fine_tune_epochs = 1",
}


def finite(of: Study) -> bool:
    """Whether all that the arm sends has a finite price against other clients."""
    try:
        algorithm, plan = composed(of)
    except ConfigError:
        return False
    return not any(
        unbounded([Protection(plan, own.spec).charge()], (OTHERS,)) for own in algorithm.contributions
    )


def test_all_of_them_stand_there() -> None:
    known = {"lg_fedavg", "fedper", "fedrep", "fedbabu", "feddbe", "pfedme", "fedproto", "stc", "cs_fl"}
    assert ROWS.keys() == known


@every("name", ROWS)
def test_a_row_is_true(name: str) -> None:
    *_, bounds, study = ROWS[name]
    arms = {arm.protocol for arm in parse(packaged()[study.strip("`")]).arms}
    assert name in arms
    assert "Differences from the" in (import_module(f"securefl.protocols.{name}").__doc__ or "")
    more = OPTIONS.get(name, "")
    needs = "" if name in ("lg_fedavg", "fedproto") else "fraction = 1.0\n"
    assert finite(private(name, needs + more)) == ("`[dpsgd]`" in bounds)
    said = "`update_bound`" in bounds or "`client_bound`" in bounds
    assert finite(client_level(name, more=more)) == said


def test_every_preset_stands_there_with_its_keys() -> None:
    rows = re.findall(r"(?m)^\| (\w+), (paper|authors) \| (.*) \|$", PAGE.read_text(encoding="utf-8"))
    found = {
        (name, preset): tomllib.loads("\n".join(re.findall("`(.*?)`", keys))) for name, preset, keys in rows
    }
    kinds = {point.name: point.load() for point in entry_points(group="securefl.protocols")}
    presets = {name: getattr(kind, "presets", {}) for name, kind in kinds.items()}
    assert found == {(name, one): own[one] for name, own in presets.items() for one in own}
