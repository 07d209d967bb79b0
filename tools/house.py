"""The house as text: its floors, what each room stands on, and the modules with one reader.

    python tools/house.py

A room is a folder of `securefl`, or a module beside them. Its floor is one above the highest room that it
imports. `make check` prints both; `tools/weigh.py` has the size of each room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set

from grimp import build_graph


def floors(wants: Mapping[str, Set[str]]) -> list[set[str]]:
    """What stands on nothing, then what stands on that alone, and so on. ValueError for a circle."""
    left, found = dict(wants), []
    while left:
        free = {one for one, wanted in left.items() if not wanted & set(left)}
        if not free:
            raise ValueError(f"Expected no circle of imports, got one among {', '.join(sorted(left))}.")
        found.append(free)
        left = {one: wanted for one, wanted in left.items() if one not in free}
    return found


def main() -> None:
    graph, wants, lone = build_graph("securefl", cache_dir=None), defaultdict(set), []
    for module in sorted(graph.modules - {"securefl", "securefl.__main__"}):
        room, folder = module.split(".")[1], module.rpartition(".")[0]
        read = graph.find_modules_directly_imported_by(module) - {"securefl"}
        wants[room] |= {one.split(".")[1] for one in read} - {room}
        readers = [one.rpartition(".")[0] for one in graph.find_modules_that_directly_import(module)]
        if readers == [folder] and not graph.find_children(module):
            lone.append(module.removeprefix("securefl."))
    for floor, rooms in reversed(list(enumerate(floors(wants), 1))):
        for room in sorted(rooms):
            print(f"{floor:3}  {room:<12} stands on {', '.join(sorted(wants[room])) or 'the ground'}")
    print(f"{len(lone)} modules that one other of their folder reads, and nobody else: {', '.join(lone)}")


if __name__ == "__main__":
    main()
