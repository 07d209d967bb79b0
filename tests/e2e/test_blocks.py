"""Every block of every page is run, or held to what exists. `test_pages` runs the pages of four folders."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from e2e.named import is_command, is_key, is_target
from e2e.pages import Block, blocks

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
RUN = ("tutorials", "how-to", "explanation", "coming-from")
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if path.parent.name not in RUN),
]
EXECUTED: Mapping[tuple[str, str], str] = {
    ("README.md", "py"): "tests/e2e/test_new_user.py",
    ("own-data.md", "py"): "tests/e2e/test_own_data_page.py",
    ("own-data.md", "csv"): "tests/e2e/test_own_data_page.py",
    ("python.md", "py"): "tests/e2e/test_new_user.py",
    ("deployment.md", "console"): "tests/e2e/test_three_machines.py",
    ("deployment.md", "py"): "tests/e2e/test_three_machines.py",
    ("flower-strategies.md", "diff"): "tests/e2e/test_flower_secure_grid_app.py",
    ("flower-strategies.md", "python"): "tests/e2e/test_shipped_plans.py",
}
"""Blocks of one language on one page, and the test that runs or compares them."""
COMPARED: Mapping[tuple[str, str], str] = {
    ("flower-strategies.md", "round 1: 7 of 8 answered"): "tests/e2e/test_flower_operator_log.py",
}
"""The begin of a block without a language, and the test that prints the same."""
SHELL = frozenset({"export", "python3.11", "python3.12", "sha256sum", "source", "tar"})
PROGRAMS = SHELL | {"pip", "flwr", "flower-superlink", "flower-supernode", "pytest", "ruff", "mypy"}


def commands(body: str) -> Iterator[list[str]]:
    """The words of each command, without variables in front and comments behind."""
    for line in body.replace("\\\n", " ").splitlines():
        for part in re.sub(r"(^|\s)#.*", "", line.removeprefix("$ ")).split(";"):
            words = [word for word in shlex.split(part) if not re.match(r"[A-Z_]+=", word)]
            if words:
                yield words


def holds(words: list[str]) -> bool:
    """Whether a command can be typed: its program, its options and its files in the repository exist."""
    program, *rest = words
    paths = [word for word in rest if re.match(r"(examples|benchmarks|tools|docs)/", word)]
    if not all((ROOT / path).exists() for path in paths):
        return False
    match Path(program).name:
        case "securefl":
            return is_command(" ".join(["securefl", *rest]))
        case "make":
            return is_target(" ".join(words))
        case "python" if rest[:1] == ["-m"]:
            return any(
                (ROOT / home / f"{rest[1].replace('.', '/')}.py").is_file() for home in ("tests", "tools")
            )
        case "python":
            source = (
                (ROOT / rest[0]).read_text(encoding="utf-8") if rest and (ROOT / rest[0]).is_file() else ""
            )
            options = [word.split("=")[0] for word in rest[1:] if word.startswith("--")]
            # A program of an example hands options that it does not know to Flower's node.
            return bool(source) and (all(one in source for one in options) or "parse_known_args" in source)
        case known:
            return known in PROGRAMS


def is_run(page: str, block: Block) -> bool:
    """Whether a test runs the block, or prints the same."""
    return (page, block.language) in EXECUTED or any(
        page == own and block.body.startswith(begin) for own, begin in COMPARED
    )


def held(page: str, block: Block) -> bool:
    """Whether a test runs the block, or it names only what exists."""
    if is_run(page, block):
        return True
    if block.language == "toml":
        return all(is_key(path) for path in _paths(tomllib.loads(block.body)))
    return block.language in ("", "sh", "console") and all(map(holds, commands(block.body)))


def _paths(table: Mapping[str, object], at: str = "") -> Iterator[str]:
    for key, value in table.items():
        yield f"{at}{key}"
        if isinstance(value, dict) and "." not in key:
            yield from _paths(value, f"{at}{key}.")


def test_every_block_is_held() -> None:
    found = [(path, one) for path in PAGES for one in _of(path)]
    assert [f"{path.name}:{one.line}\n{one.body}" for path, one in found if not held(path.name, one)] == []


def _of(path: Path) -> list[Block]:
    return blocks(path.read_text(encoding="utf-8"))


def test_the_tests_that_run_blocks_name_their_pages() -> None:
    found = [(page, test) for (page, _), test in [*EXECUTED.items(), *COMPARED.items()]]
    assert [own for own in found if own[0] not in (ROOT / own[1]).read_text(encoding="utf-8")] == []


def test_a_block_that_nobody_holds_is_found() -> None:
    wrong = [
        "```sh\nsecurefl runn demo\n```",
        "```\nsecurefl run demo --wrokers 2\n```",
        "```sh\nmake federations\n```",
        "```sh\npython benchmarks/nothing.py\n```",
        "```sh\nflwr run examples/nothing here\n```",
        "```sh\ncurl https://somewhere\n```",
        "```toml\n[privacy]\nbugdet = 1.0\n```",
        "```toml\n[privcy]\nbudget = 1.0\n```",
        "```py\nprint(1)\n```",
        "```\nwhat a command printed once\n```",
    ]
    assert [block for block in wrong if held("warnings.md", *blocks(block))] == []
