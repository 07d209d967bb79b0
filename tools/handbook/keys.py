"""Every key of a study: its type, default, meaning and an example, from the classes that read it.

A table of a study is read into a dataclass. The docstring of the class says what each key means, in the form
`key: meaning.`. An example is a line of a packaged study, or else of a study below docs/examples.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import tomli_w

from securefl.data.columns import Column
from securefl.study.config import _SECTIONS, ArmSection
from securefl.study.packaged import packaged
from securefl.sweep.choice import Trials
from securefl.training.own_models import OwnModelSection

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


class Table(NamedTuple):
    """A table of a study: its heading in TOML, its place in a parsed study, and the class that reads it.

    place: dotted. A part that begins with `=` must be the value of `protocol`, and `*` stands for any key.
    """

    heading: str
    place: str
    kind: type[Any]


def tables() -> Iterator[Table]:
    """Every table that a study may have, in the order of the sections; tables inside a table follow it."""
    for name, kind in _SECTIONS.items():
        yield from _with_inner(Table(f"[{name}]", name, kind))
        if name == "data":
            yield Table("[data.columns.NAME]", "data.columns.*", Column)
        if name == "model":
            yield Table("[model] of your own", "model", OwnModelSection)
    yield Table("[[arm]]", "arm", ArmSection)
    for point in sorted(entry_points(group="securefl.protocols"), key=lambda one: one.name):
        yield from _with_inner(Table(f"[[arm]] {point.name}", f"arm.={point.name}", point.load()))
    yield Table("[sweep.choice]", "sweep.choice", Trials)


def _with_inner(table: Table) -> Iterator[Table]:
    yield table
    for name, hint in get_type_hints(table.kind).items():
        for kind in (hint, *get_args(hint)):
            if is_dataclass(kind) and isinstance(kind, type):
                yield Table(f"{table.heading} {name}", f"{table.place}.{name}", kind)


def meanings(kind: type[Any]) -> dict[str, str]:
    """What the docstring of a class, or of the class that it extends, says of its fields."""
    found: dict[str, str] = {}
    word = "|".join(sorted((field.name for field in fields(kind)), key=len, reverse=True))
    for base in reversed(kind.__mro__):
        # Names stand at the start of a line or behind a sentence, and a colon ends them.
        marks = re.split(
            rf"(?:^|(?<=\.)\s|\n)\s*((?:{word})(?:,\s+(?:{word}))*):\s", inspect.getdoc(base) or ""
        )
        for names, meaning in zip(marks[1::2], marks[2::2], strict=True):
            found.update(dict.fromkeys(re.split(r",\s+", names), " ".join(meaning.split("\n\n")[0].split())))
    return found


def default_words(field: Field[Any]) -> str:
    """A key's default as TOML, or that it must be given."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if default is MISSING:
        return "It must be given."
    if default is None or default in ((), {}) or is_dataclass(default):
        return "It may be left out."
    return f"By default `{line('x', default).removeprefix('x = ')}`."


def line(key: str, value: Any) -> str:
    """A key and its value as TOML on one line."""
    text = tomli_w.dumps({"x": [[{key: value}]]})  # inside of lists, tables stand inline
    return re.sub(r"\n\s*", " ", re.sub(r"(?<=\[)\n\s*|,\n\s*(?=\])", "", text))[8:-5]


@cache
def studies() -> list[dict[str, Any]]:
    """The tables of all packaged studies, and of those below docs/examples."""
    texts = [*packaged().values(), *(path.read_text("utf-8") for path in sorted(EXAMPLES.glob("*.toml")))]
    return [tomllib.loads(text) for text in texts]


def example_of(place: str, key: str) -> str:
    """The first line that sets a key in a study. LookupError if no study sets it."""
    for study in studies():
        for table in _tables_at(study, place.split(".")):
            if key in table:
                return line(key, table[key])
    raise LookupError(f"No study has an example of `{key}` in {place}: add one below {EXAMPLES}.")


def _tables_at(table: Any, parts: list[str]) -> Iterator[Mapping[str, Any]]:
    match table, parts:
        case list(), _:
            for entry in table:
                yield from _tables_at(entry, parts)
        case dict(), []:
            yield table
        case dict(), [first, *rest]:
            same = first.startswith("=") and first[1:] == table.get("protocol")
            for own in [table] if same else table.values() if first == "*" else [table.get(first)]:
                yield from _tables_at(own, rest)


_SWEEP = """## [sweep]

The cells of a sweep. `securefl sweep STUDY` runs the study once for each.

### `grid` {#sweep-grid}

A table of lists: the values of each swept key, a dotted path in quotes. Every combination is a cell.

### `list` {#sweep-list}

A list of tables: cells whose keys change together, one entry a table, beside each cell of the grid.

### `panels` {#sweep-panels}

A list of texts: swept keys that divide the plot into panels. The axis stays the epsilon.

### `choice` {#sweep-choice}

A table: how one value of a key is chosen on validation records, see `[sweep.choice]`.
"""


def page() -> str:
    """The page of all keys. LookupError if a class does not say what a key means, or no study sets it."""
    parts = [
        "# Every key of a study\n\nA study is a TOML file. This page is made from the classes that read it. "
        "An unknown key is an error that names the nearest one.\n"
    ]
    for heading, place, kind in tables():
        first = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
        # "The section [study]." says no more than the heading above it.
        parts.append(f"## {heading}\n\n" + re.sub(r"^The section \[\w+\]\.$", "", first) + "\n")
        said, hints = meanings(kind), get_type_hints(kind)
        for field in (own for own in fields(kind) if own.init):
            name, meaning = field.name, said[field.name]
            anchor = re.sub(r"[^a-z0-9]+", "-", f"{heading} {name}".lower()).strip("-")
            hint = re.sub(r"[\w.]+\.(\w+)", r"\1", inspect.formatannotation(hints[name]))
            parts.append(f"### `{name}` {{#{anchor}}}\n\n`{hint}`. {default_words(field)}\n")
            parts.append(f"{meaning[:1].upper()}{meaning[1:]}\n\n```toml\n{example_of(place, name)}\n```\n")
    return "\n".join([*parts, _SWEEP])
