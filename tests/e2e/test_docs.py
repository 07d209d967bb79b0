"""What the documents name exists: links, headings, commands, studies, files and tests."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from securefl.study.packaged import packaged

ROOT = Path(__file__).parents[2]
# The home of the site links to pages that are made from the code; its strict build checks those links.
PAGES = [path for path in ROOT.glob("docs/*.md") if path.name != "index.md"]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
FIGURES = [ROOT / "docs" / "results.md", ROOT / "README.md"]


def name(path: Path) -> str:
    return path.name


def prose(text: str) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Headings as the fragments that links name them by."""
    headings = re.findall(r"^#+ (.+)$", prose(path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[list[str]]:
    """Lines of code that run something of ours, without the variables in front."""
    fenced = "\n".join(re.findall(r"^```(?:sh)?\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))
    indented = "\n".join(re.findall(r"^    (.+)$", prose(text), flags=re.MULTILINE))
    for line in (fenced + "\n" + indented).splitlines():
        for part in line.split("#")[0].split(";"):
            words = [word for word in shlex.split(part) if not re.match(r"[A-Z_]+=", word)]
            if words and Path(words[0]).name in ("make", "python", "securefl"):
                yield [Path(words[0]).name, *words[1:]]


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        target, _, fragment = link.partition("#")
        aim = (path.parent / target).resolve() if target else path
        assert aim.exists(), link
        if fragment:
            assert fragment in anchors(aim), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_files_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for found in re.findall(r"`((?:protocols|securefl|tests|docs|benchmarks)/[\w/.-]+)`", text):
        assert (ROOT / found).exists(), found


@pytest.mark.parametrize("path", FIGURES, ids=name)
def test_commands_exist(path: Path) -> None:
    words = {point.name for point in entry_points(group="securefl.commands")}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    found = list(commands(text))
    assert len(found) > 5
    found += [["make", target] for target in re.findall(r"`make ([\w-]+)`", text)]
    for program, first, *rest in found:
        if program == "make":
            assert f"\n{first}:" in makefile, first
        elif program == "python":
            assert (ROOT / first).is_file(), first
        else:
            assert first in words, first
            if first in ("run", "sweep", "plan") and rest[0] != "my.toml":
                assert rest[0] in packaged(), rest


def test_the_readme_can_be_read() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
