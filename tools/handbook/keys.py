"""Every key of a study: its type, default, meaning and an example, from the classes that read it.

A table of a study is read into a dataclass. The docstring of the class says what each key means, in the form
`key: meaning.`. An example is a line of a packaged study, or else of a study below docs/examples.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tomli_w

from securefl.data.columns import Column
from securefl.study.config import _SECTIONS
from securefl.study.packaged import packaged
from securefl.sweep.choice import Trials
from securefl.training.own_models import OwnModelSection

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
_SWEEP = {
    "grid": (
        "table of lists",
        "The values of each swept key, a dotted path in quotes. Every combination is a cell.",
    ),
    "list": (
        "list of tables",
        "Cells whose keys change together: one entry a table, beside each cell of the grid.",
    ),
    "panels": ("list of texts", "Swept keys that divide the plot into panels. The axis stays the epsilon."),
    "choice": ("table", "How one value of a key is chosen on validation records, see `[sweep.choice]`."),
}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a study: its heading in TOML, its place in a parsed study, and the class that reads it.

    place: dotted. A part that begins with `=` must be the value of `protocol`, and `*` stands for any key.
    """

    heading: str
    place: str
    kind: type[Any]


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a table. example: a line of TOML. source: the study that holds the example."""

    table: Table
    name: str
    type: str
    default: str
    meaning: str
    example: str
    source: str

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", f"{self.table.heading} {self.name}".lower()).strip("-")


def tables() -> Iterator[Table]:
    """Every table that a study may have, in the order of the sections; tables inside a table follow it."""
    for name, kind in _SECTIONS.items():
        yield from _with_inner(Table(heading=f"[{name}]", place=name, kind=kind))
        if name == "data":
            yield Table(heading="[data.columns.NAME]", place="data.columns.*", kind=Column)
        if name == "model":
            yield Table(heading="[model] of your own", place="model", kind=OwnModelSection)
    for point in sorted(entry_points(group="securefl.protocols"), key=lambda one: one.name):
        yield from _with_inner(
            Table(heading=f"[[arm]] {point.name}", place=f"arm.={point.name}", kind=point.load())
        )
    yield Table(heading="[sweep.choice]", place="sweep.choice", kind=Trials)


def _with_inner(table: Table) -> Iterator[Table]:
    yield table
    for name, hint in get_type_hints(table.kind).items():
        for kind in (hint, *get_args(hint)):
            if is_dataclass(kind) and isinstance(kind, type):
                yield Table(heading=f"{table.heading} {name}", place=f"{table.place}.{name}", kind=kind)


def keys(table: Table) -> list[Key]:
    """The keys of a table in the order of its class, and the keys of tables inside it.

    Raises LookupError if the class does not say what a key means, or no study has an example of it.
    """
    return list(_keys(table))


def _keys(table: Table) -> Iterator[Key]:
    said, hints = meanings(table.kind), get_type_hints(table.kind)
    for field in fields(table.kind):
        if not field.init:
            continue
        if field.name not in said:
            raise LookupError(
                f"{table.kind.__module__}.{table.kind.__name__} does not say what `{field.name}` means."
            )
        example, source = example_of(table.place, field.name)
        yield Key(
            table=table,
            name=field.name,
            type=type_words(hints[field.name]),
            default=default_words(field),
            meaning=said[field.name],
            example=example,
            source=source,
        )


def meanings(kind: type[Any]) -> dict[str, str]:
    """What the docstring of a class, or of the class that it extends, says of its fields."""
    found: dict[str, str] = {}
    own = [field.name for field in fields(kind)]
    for base in reversed(kind.__mro__):
        if is_dataclass(base):
            found.update(_said(inspect.cleandoc(base.__doc__ or ""), own))
    return found


def _said(text: str, names: list[str]) -> dict[str, str]:
    word = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    if not word:
        return {}
    # Names stand at the start of a line or behind a sentence, and a colon ends them.
    marks = list(re.finditer(rf"(?:^|(?<=\.)\s|\n)\s*((?:{word})(?:,\s+(?:{word}))*):\s", text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    found = {}
    for mark, end in zip(marks, ends[: len(marks)], strict=True):
        meaning = " ".join(text[mark.end() : end].split("\n\n")[0].split())
        found.update(dict.fromkeys(re.split(r",\s+", mark[1]), meaning))
    return found


def type_words(hint: Any) -> str:
    """A type as TOML's reader knows it: text, number, list of texts."""
    parts = [one for one in get_args(hint) if one is not NoneType]
    origin = get_origin(hint)
    if origin is Literal:
        return " or ".join(json.dumps(word) for word in parts)
    if origin is tuple:
        return f"list of {_plural(type_words(parts[0]))}" if parts[-1] is Ellipsis else "list of two numbers"
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    if isinstance(hint, type):
        if issubclass(hint, Enum):
            return " or ".join(json.dumps(one.value) for one in hint)
        plain = {bool: "true or false", int: "whole number", float: "number", str: "text"}
        return plain.get(hint, "table")
    if parts:
        return " or ".join(dict.fromkeys(type_words(part) for part in parts))
    return type_words(getattr(hint, "__value__", str))


def _plural(word: str) -> str:
    return f"{word}s" if " or " not in word and not word.startswith('"') else f"entries: {word}"


def default_words(field: Field[Any]) -> str:
    """A key's default as TOML, or that it must be given."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if default is MISSING:
        return "It must be given."
    if default is None or default in ((), {}):
        return "It may be left out."
    if is_dataclass(default):
        default = {
            own.name: getattr(default, own.name)
            for own in fields(default)
            if getattr(default, own.name) is not None
        }
    return f"By default `{toml_value(default)}`."


def toml_value(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_bare(key)} = {toml_value(own)}" for key, own in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").strip()


def _bare(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)


@cache
def studies() -> Mapping[str, dict[str, Any]]:
    """The tables of all packaged studies, and of those below docs/examples, by name."""
    found = {name: tomllib.loads(text) for name, text in packaged().items()}
    return found | {
        f"docs/examples/{path.name}": tomllib.loads(path.read_text("utf-8"))
        for path in sorted(EXAMPLES.glob("*.toml"))
    }


def example_of(place: str, key: str) -> tuple[str, str]:
    """The first line that sets a key in a study, and the name of that study.

    Raises LookupError if no study sets it.
    """
    for name, study in studies().items():
        for table in _tables_at(study, place.split(".")):
            if key in table:
                return f"{_bare(key)} = {toml_value(table[key])}", name
    raise LookupError(f"No study has an example of `{key}` in {place}: add one below {EXAMPLES}.")


def _tables_at(table: Any, parts: list[str]) -> Iterator[Mapping[str, Any]]:
    if isinstance(table, list):
        for entry in table:
            yield from _tables_at(entry, parts)
    elif isinstance(table, dict) and not parts:
        yield table
    elif isinstance(table, dict):
        first, *rest = parts
        if first.startswith("="):
            yield from _tables_at(table, rest) if table.get("protocol") == first[1:] else ()
        elif first == "*":
            for own in table.values():
                yield from _tables_at(own, rest)
        elif first in table:
            yield from _tables_at(table[first], rest)


def page() -> str:
    """The page of all keys."""
    lines = [
        "# Every key of a study",
        "",
        "A study is a TOML file. This page is made from the classes that read it. An unknown key is an error "
        "that names the nearest one.",
        "",
    ]
    for table in tables():
        lines += [f"## {table.heading}", "", *_intro(table.kind)]
        for key in keys(table):
            lines += _entry(key)
    lines += [
        "## [sweep]",
        "",
        "The cells of a sweep. `securefl sweep STUDY` runs the study once for each.",
        "",
    ]
    for name, (kind, meaning) in _SWEEP.items():
        lines += [f"### `{name}` {{#sweep-{name}}}", "", f"{kind}. {meaning}", ""]
    return "\n".join(lines)


def _intro(kind: type[Any]) -> list[str]:
    first = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    # "The section [study]." says no more than the heading above it.
    return [] if re.fullmatch(r"The section \[\w+\]\.", first) else [first, ""]


def _entry(key: Key) -> list[str]:
    meaning = key.meaning[:1].upper() + key.meaning[1:]
    return [
        f"### `{key.name}` {{#{key.anchor}}}",
        "",
        f"{_capital(key.type)}. {key.default}",
        "",
        meaning,
        "",
        "```toml",
        key.example,
        "```",
        "",
    ]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
