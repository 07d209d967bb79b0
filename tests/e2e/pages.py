"""Runs the blocks of a page of docs/ in their order, as its reader would in an empty folder.

| block | what happens |
|---|---|
| any language with `title="FILE"` | it is written as that file; one of the repository must hold the lines |
| `console` | each line `$ COMMAND` is run, and the lines below it are compared with what it prints |
| `py` | it is executed; blocks of a page share their names. A block `text` right behind it is its output |
| `pycon` | a doctest |
| `toml`, `diff`, `text`, without a title | a fragment, which a test of its own compares |

In an expected output `…` stands for any text, and a line `…` for any lines.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from securefl.commands.main import cli
from securefl.core.errors import SecureFLError

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<head>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its language, its `title` or an empty text, its lines, and the page's line of it."""

    language: str
    title: str
    body: str
    line: int


def blocks(page: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found = []
    for match in _FENCE.finditer(page):
        language, _, rest = match["head"].strip().partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        line = page.count("\n", 0, match.start()) + 1
        found.append(Block(language=language, title=title[1] if title else "", body=body, line=line))
    return found


def differs(shown: str, expected: str) -> str:
    """How an output differs from the one that the page shows; empty if it does not."""
    lines = expected.strip().splitlines()
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.rstrip().split("…"))) + r" *\n"
        for line in lines
    )
    if re.fullmatch(pattern, shown.strip() + "\n" if shown.strip() else ""):
        return ""
    return f"expected\n{expected.strip()}\n\ngot\n{shown.strip()}"


def commands(body: str) -> Iterator[tuple[str, str]]:
    """Each command of a block `console`, with the output that stands below it."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        while line.endswith("\\"):
            more, _, output = output.partition("\n")
            line = line[:-1] + more.strip()
        yield line, output


def shell(command: str) -> str:
    """What a command prints. Ours run in this process, since a start takes seconds."""
    words = shlex.split(command, comments=True)
    if words[0] != "securefl" or set(words) & {"|", ">", "&", "&&", ";"}:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr
    for name in list(
        sys.modules
    ):  # another test may have loaded modules of these names from a folder of its own
        top = Path(name.split(".")[0])
        if top.is_dir() or top.with_suffix(".py").is_file():
            del sys.modules[name]
    before = set(sys.modules)
    done_here = CliRunner().invoke(cli, words[1:])
    for name in set(sys.modules) - before:  # the next command reads the reader's modules again
        own = vars(sys.modules[name])  # a package without __init__.py has no file
        places = [own.get("__file__"), *own.get("__path__", ())]
        if any(str(place).startswith(str(Path.cwd())) for place in places):
            del sys.modules[name]
    if isinstance(done_here.exception, SecureFLError):  # as `main` prints it
        return done_here.output + f"securefl: {done_here.exception}\n"
    if done_here.exception is not None and not isinstance(done_here.exception, SystemExit):
        raise done_here.exception
    return done_here.output


def run_page(page: Path) -> list[str]:
    """Run every block of a page in the working folder. Returns what differs from the page, with its lines."""
    found: list[str] = []
    names: dict[str, Any] = {"__name__": "page"}
    printed: str | None = None
    for block in blocks(page.read_text(encoding="utf-8")):
        where = f"{page.name}:{block.line}"
        before, printed = printed, None
        if "/" in block.title and (ROOT / block.title).is_file():  # a reader's own pyproject.toml is none
            if block.body.strip() not in (ROOT / block.title).read_text(encoding="utf-8"):
                found.append(f"{where}: {block.title} has no such lines")
        elif block.title:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.body, encoding="utf-8")
        elif block.language == "console":
            for command, output in commands(block.body):
                if said := differs(shell(command), output):
                    found.append(f"{where}: $ {command}\n{said}")
        elif block.language == "py":
            stream = io.StringIO()
            with contextlib.redirect_stdout(stream):
                exec(compile(block.body, where, "exec"), names)
            printed = stream.getvalue()
        elif block.language == "text" and before is not None:
            if said := differs(before, block.body):
                found.append(f"{where}: {said}")
        elif block.language == "pycon":
            found += _doctest(block, where)
    return found


def _doctest(block: Block, where: str) -> list[str]:
    test = doctest.DocTestParser().get_doctest(block.body, {}, where, where, 0)
    told: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=told.append)
    return ["".join(told)] if told else []
