"""What the prose of a page names in code: commands, options, keys, modules, files. Each must exist.

A name of another tool's stands in pages of docs/coming-from, which are not held to this list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import click
from handbook import commands, keys

from securefl.algorithm import Plan
from securefl.commands.exit_codes import ExitCode
from securefl.deployment import Updates
from securefl.study.packaged import packaged

ROOT = Path(__file__).parents[2]
_FLOWERS = frozenset({"--trusted-entities"})
"""Options of `flower-supernode` that a page names."""
_OTHERS = frozenset(
    [
        *("GetFab", "gcs_server", "FederatedAlgorithm", "simulate_one_user", "FedXgbBagging", "FedXgbCyclic"),
        *("client_fn", "permutation_importance", "reviews"),
    ]
)
"""Names in Flower, Ray, pfl-research and scikit-learn that a page names, and a reader's own file."""
_READ = frozenset({".py", ".toml", ".ipynb", ".csv", ".json", ".c"})
_FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)


def lies(page: str) -> list[str]:
    """The inline code of a page that names what does not exist."""
    prose = _FENCED.sub("", page)
    quoted = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose)
    known = _known() | set(re.findall(r"\w+", "".join(_FENCED.findall(page))))
    found = [
        own
        for own in dict.fromkeys(quoted)
        if any(not holds(own) for holds in _checks(own)) or not _words(own) <= known
    ]
    codes = re.findall(r"(exit codes? (\d+))", prose)
    return found + [said for said, code in codes if int(code) not in {one.value for one in ExitCode}]


def _words(quoted: str) -> set[str]:
    """What only code is called: words with underscores or capitals within, quoted values, names of files."""
    return {
        *re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b|\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b", quoted),
        *re.findall(r"^\"([a-z][\w-]+)\"$", quoted),
        *re.findall(r"([\w-]+)\.(?:csv|json|jsonl|html|sqlite|safetensors|key|pub)\b", quoted),
    }


@cache
def _known() -> frozenset[str]:
    """All words of the code, its studies and its examples, in whole and with hyphens; and names of files."""
    folders = ("securefl", "protocols", "examples", "benchmarks", "tools", "notebooks", "docs/examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in _READ]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    words = {*re.findall(r"\w+", text), *re.findall(r"[\w-]+", text)}
    stems = {path.stem for folder in (*folders, "tests") for path in (ROOT / folder).rglob("*.*")}
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    return frozenset(words | stems | {*re.findall(r"def (test_\w+)\(", tests)} | _OTHERS)


def _checks(quoted: str) -> Iterator[Callable[[str], bool]]:
    if re.match(r"securefl [a-z]", quoted):
        yield is_command
    elif re.match(r"make [a-z][\w-]*$", quoted):
        yield is_target
    elif re.match(r"python [a-z]", quoted):
        yield lambda text: (ROOT / text.split()[1]).is_file()
    elif re.match(r"--[a-z]", quoted):
        yield _is_option
    elif re.match(r"securefl(\.\w+)+$", quoted):
        yield lambda text: text in _others() or _is_name(text)
    elif re.match(r"(securefl|tests|docs|tools|benchmarks|examples)/[\w./-]+$", quoted):
        yield lambda path: (ROOT / path).exists()
    elif re.match(r"tests/[\w./-]+::\w+$", quoted):
        yield is_test
    elif re.match(r"\[\[?[a-z][\w.]*\]?\]( \w+)?$", quoted):
        yield _is_section
    elif re.match(r"[a-z_]+ = (?!True|False)[^{\s]", quoted):
        yield lambda text: text.split(" = ")[0] in _keys()


def is_command(text: str) -> bool:
    """Whether a command of ours has this name and these options, on a packaged study or a file."""
    on = re.match(r"securefl (?:run|sweep|plan) ([a-z_0-9]+)(?: |$)", text)
    if on is not None and on[1] not in packaged():
        return False
    command: click.Command = commands.cli
    for word in text.split()[1:]:
        if not isinstance(command, click.Group):
            break
        found = command.get_command(click.Context(command), word)
        if found is None:
            return False
        command = found
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    return {word.split("=")[0] for word in text.split() if re.match(r"--[a-z]", word)} <= known


def is_test(text: str) -> bool:
    """Whether a file below tests/ has the function of `FILE::FUNCTION`."""
    file, _, function = text.partition("::")
    path = ROOT / file
    return path.is_file() and f"\ndef {function}(" in path.read_text(encoding="utf-8")


def is_target(text: str) -> bool:
    """Whether the Makefile has this target."""
    return f"\n{text.split()[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")


@cache
def _options() -> frozenset[str]:
    found = {name for own in commands.commands() for one in own.command.params for name in one.opts}
    return frozenset(found | {"--help", "--version", "--verbose"})


def _is_option(text: str) -> bool:
    """Whether one of our commands has this option, or one of the programs in the repository names it."""
    name = re.split(r"[ =]", text)[0]
    return name in _options() | _FLOWERS or any(f'"{name}"' in program for program in _programs())


@cache
def _programs() -> tuple[str, ...]:
    files = [path for folder in ("benchmarks", "tools", "examples") for path in (ROOT / folder).rglob("*.py")]
    return tuple(path.read_text(encoding="utf-8") for path in files)


@cache
def _others() -> frozenset[str]:
    """Groups of entry points, the file of an app's terms, and its keys in a run config."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "securefl").rglob("*.py"))
    groups = re.findall(r'"(securefl\.[a-z]+)"', source)
    return frozenset(
        [
            *groups,
            "securefl.toml",
            *(f"securefl.{key}" for key in ("server", "parties", "deadline", "patience")),
        ]
    )


def _is_name(text: str) -> bool:
    try:
        return resolve_name(text) is not None
    except (ModuleNotFoundError, AttributeError):
        return False


@cache
def _keys() -> frozenset[str]:
    kinds = [*(table.kind for table in keys.tables()), Plan, Updates]
    return frozenset(name for kind in kinds for name in kind.__dataclass_fields__) | {
        "name",
        "protocol",
        "terms",
    }


def _is_section(text: str) -> bool:
    section, _, key = text.partition(" ")
    first = section.strip("[]").split(".")[0]
    own = [table for table in keys.tables() if table.place.split(".")[0] == first]
    return bool(own or first in ("sweep", "arm")) and (
        not key
        or key
        in {name for table in own for name in table.kind.__dataclass_fields__}
        | {"grid", "list", "panels", "choice", "name", "protocol"}
    )


def is_key(path: str) -> bool:
    """Whether a dotted path is a section or a key of a study, of an app's terms, or of Flower's own file."""
    first, *_, last = path.split(".") if "." in path else (path, path)
    if first in ("superlink", "plan", "arm"):
        return first in ("superlink", "arm") or last in _keys() | {"plan"} or path.startswith("plan.weights.")
    tables = [table for table in keys.tables() if table.place.split(".")[0] == first]
    if path == first:
        return bool(tables) or first in _keys() | {"sweep", "terms"}
    if first == "sweep":
        return True
    within = {name for table in tables for name in table.kind.__dataclass_fields__}
    # Below `columns` stands a name that the person chose.
    return last in within or ".columns." in f".{path}." or path.split(".")[1] == "options"
