"""docs/architecture.md names what exists, and its rooms in the order of .importlinter."""

from __future__ import annotations

import re
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
QUOTED = sorted(set(re.findall(r"`([^`\n]+)`", TEXT)))
PATHS = [quoted for quoted in QUOTED if re.fullmatch(r"(securefl|protocols|tests|docs)/[\w./-]*", quoted)]
NAMES = [quoted for quoted in QUOTED if re.fullmatch(r"[a-z_]+(\.\w+)+", quoted)]


def resolve(name: str) -> object:
    """What a dotted name stands for: in the longest module of that name, the attributes that follow."""
    parts = f"securefl.{name.removeprefix('securefl.')}".split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


CONTRACTS = ConfigParser()
CONTRACTS.read(ROOT / ".importlinter")


def layers(contract: str = "layers", room: str = "") -> list[set[str]]:
    """The modules of each layer, from the ground up."""
    lines = CONTRACTS[f"importlinter:contract:{contract}"]["layers"].split("\n")
    return [set(re.findall(rf"securefl\.{room}(\w+)", line)) for line in reversed(lines) if line.strip()]


def modules(home: Path) -> set[str]:
    """The modules and packages of a folder."""
    packages = {path.parent.name for path in home.glob("*/__init__.py")}
    return ({path.stem for path in home.glob("*.py")} | packages) - {"__init__", "__main__"}


def test_it_names_enough() -> None:
    """The tests below would pass for a page without names."""
    assert len(PATHS) > 25
    assert len(NAMES) > 60


def missing(names: list[str]) -> list[str]:
    """The names that stand for nothing."""
    found = []
    for name in names:
        try:
            resolve(name)
        except (AttributeError, ModuleNotFoundError):
            found.append(name)
    return found


def test_every_path_and_name_exists() -> None:
    assert [path for path in PATHS if not (ROOT / path).exists()] == []
    assert missing(NAMES) == []


def test_a_name_that_does_not_exist_is_found() -> None:
    names = ["protect.nothing", "engines.host.Host.nothing", "nothing.at_all"]
    assert missing(names) == names


def test_every_module_stands_in_a_layer() -> None:
    assert modules(ROOT / "securefl") == set.union(*layers())


def test_every_module_of_the_ground_stands_in_a_layer() -> None:
    for room in ("core", "storage"):
        assert modules(ROOT / "securefl" / room) == set.union(*layers(room, rf"{room}\."))


def test_no_room_may_import_the_systems() -> None:
    lines = CONTRACTS["importlinter:contract:protocols"]["source_modules"].split()
    assert {line.removeprefix("securefl.") for line in lines} == set.union(*layers()) - {"protocols"}


def test_its_rooms_are_all_rooms_in_their_order() -> None:
    rows = [
        line.split("|")[1] for line in TEXT.splitlines() if line.startswith(("| `securefl/", "| `protocols/"))
    ]
    assert [set(re.findall(r"`(?:securefl/)?(\w+)[/.]", row)) for row in rows] == layers()
