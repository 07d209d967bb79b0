"""The house as text: its floors, what each room stands on, and how large it is.

    python tools/house.py [--alone]

A room is a folder of `securefl`, or a module beside them. Its floor is one above the highest room that it
imports. "inside" is the number of modules on the longest chain of imports within the room. `--alone` lists
the modules that one module of their own folder imports, and no other one. `make check` prints the floors.
"""

from __future__ import annotations

import argparse
import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
_WIDTH = 118
_MOST_LINES = 600
"""The lines of a module that a reader keeps in mind."""


def sources() -> dict[str, str]:
    """The modules of the product by path."""
    found = sorted(path for room in ("securefl", "protocols") for path in (ROOT / room).rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in found}


@dataclass(frozen=True)
class LocalDeployment:
    """The modules of a checkout, each by its dotted name, and which others each imports."""

    lines: Mapping[str, int]
    imports: Mapping[str, Set[str]]
    packages: Set[str] = field(default_factory=frozenset)

    @cached_property
    def rooms(self) -> dict[str, list[str]]:
        """The modules of each room. `securefl` itself and `__main__` are in none."""
        found = defaultdict(list)
        for module in sorted(self.lines):
            if module not in ("securefl", "securefl.__main__"):
                found[module.split(".")[1]].append(module)
        return dict(found)

    @cached_property
    def stands_on(self) -> dict[str, set[str]]:
        """The rooms that each room imports."""
        found: dict[str, set[str]] = {room: set() for room in self.rooms}
        for room, modules in self.rooms.items():
            wanted = {one.split(".")[1] for module in modules for one in self.imports[module] if "." in one}
            found[room] = wanted - {room}
        return found

    @cached_property
    def floors(self) -> list[list[str]]:
        """The rooms of each floor, from the ground up."""
        return levels(self.stands_on)

    def inside(self, room: str) -> int:
        """The number of modules on the longest chain of imports within a room."""
        own = set(self.rooms[room])
        return len(levels({module: self.imports[module] & own for module in own}))

    def alone(self) -> dict[str, str]:
        """The modules that one module of their own folder imports, and no other one; and that one."""
        readers = defaultdict(set)
        for module, wanted in self.imports.items():
            for one in wanted:
                readers[one].add(module)
        return {
            module: reader
            for module, (reader, *more) in sorted(readers.items())
            if not more and module not in self.packages and _folder(module) == _folder(reader)
        }


def _folder(module: str) -> str:
    return module.rpartition(".")[0]


def levels(wants: Mapping[str, Set[str]]) -> list[list[str]]:
    """What stands on nothing, then what stands on that alone, and so on. ValueError for a circle."""
    left, found = dict(wants), []
    while left:
        free = sorted(one for one, wanted in left.items() if not wanted & set(left))
        if not free:
            raise ValueError(f"Expected no circle of imports, got one among {', '.join(sorted(left))}.")
        found.append(free)
        for one in free:
            del left[one]
    return found


def house_of(texts: Mapping[str, str]) -> LocalDeployment:
    """The house of these modules' texts, each by its path."""
    names = {_module(path): path for path in texts}
    imports = {name: set(_imported(name, texts[path], names)) for name, path in names.items()}
    lines = {name: len(texts[path].splitlines()) for name, path in names.items()}
    packages = {name for name, path in names.items() if path.endswith("__init__.py")}
    return LocalDeployment(lines, imports, packages)


def _module(path: str) -> str:
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(parts if parts[0] == "securefl" else ["securefl", *parts])


def _imported(own: str, text: str, names: Mapping[str, str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                one = f"{node.module}.{alias.name}"
                one = one if one in names else node.module
                if one in names and one != own:
                    yield one
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names and alias.name != own)


def drawn(house: LocalDeployment) -> Iterator[str]:
    """The house from its roof down, a line or more for each room."""
    yield f"{'floor':>5}  {'room':<12}{'modules':>8}{'lines':>8}{'inside':>8}  stands on"
    for floor, rooms in reversed(list(enumerate(house.floors, 1))):
        for room in rooms:
            modules = house.rooms[room]
            size = sum(house.lines[module] for module in modules)
            start = f"{floor:>5}  {room:<12}{len(modules):>8}{size:>8,}{house.inside(room):>8}  "
            on = ", ".join(sorted(house.stands_on[room])) or "the ground"
            yield textwrap.fill(on, _WIDTH, initial_indent=start, subsequent_indent=" " * len(start))
    whole = sum(house.lines.values())
    yield f"{len(house.floors)} floors, {len(house.rooms)} rooms, {len(house.lines)} modules, {whole:,} lines"
    yield f"modules that one other of their folder reads: {len(house.alone())}"
    long = [module for module, lines in house.lines.items() if lines > _MOST_LINES]
    yield f"modules of more than {_MOST_LINES} lines: {', '.join(long) or 'none'}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--alone", action="store_true", help="list the modules with one reader")
    options = parser.parse_args()
    house = house_of(sources())
    if options.alone:
        for module, reader in house.alone().items():
            print(f"{house.lines[module]:5} {module} <- {reader}")
        return
    for line in drawn(house):
        print(line)


if __name__ == "__main__":
    main()
