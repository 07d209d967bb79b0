"""What the documents name exists: links, headings, commands, studies, files and tests."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from securefl.core.installed import entry_points
from securefl.study.packaged import packaged

ROOT = Path(__file__).parents[2]
# The home of the site links to pages that are made from the code; its strict build checks those links.
PAGES = [path for path in ROOT.glob("docs/*.md") if path.name != "index.md"]
OTHERS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    ".github/RELEASING.md",
    "benchmarks/README.md",
)
DOCUMENTS = [*(ROOT / name for name in OTHERS), *PAGES]
MADE = ROOT / "docs" / "reference" / "keys.md"
"""A page that is made from the code. The site's strict build checks links to it."""
FIGURES = [ROOT / "docs" / "results.md", ROOT / "README.md"]


def prose(text: str) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Headings as the fragments that links name them by."""
    headings = re.findall(r"^#+ (.+)$", prose(path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[list[str]]:
    """Lines of code, and code in a line, that run something of ours, without the variables in front."""
    fenced = "\n".join(re.findall(r"^```(?:sh)?\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))
    indented = "\n".join(re.findall(r"^    (.+)$", prose(text), flags=re.MULTILINE))
    inline = re.findall(r"`((?:\.venv/bin/)?(?:make|python|securefl) [^`…|]+)`", prose(text))
    for line in (fenced + "\n" + indented).splitlines() + inline:
        for part in line.split("#")[0].split(";"):
            words = [word for word in shlex.split(part) if not re.match(r"[A-Z_]+=", word)]
            if words and Path(words[0]).name in ("make", "python", "securefl"):
                yield [Path(words[0]).name, *words[1:]]


def leads_somewhere(path: Path, link: str) -> bool:
    target, _, fragment = link.partition("#")
    aim = (path.parent / target).resolve() if target else path
    return aim == MADE or (aim.exists() and (not fragment or fragment in anchors(aim)))


def test_links_lead_somewhere_and_files_exist() -> None:
    wrong = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        links = re.findall(r"\]\(([^)]+)\)", text)
        wrong += [(path.name, link) for link in links if not leads_somewhere(path, link)]
        files = re.findall(r"`((?:protocols|securefl|tests|docs|benchmarks)/[\w/.-]+)`", text)
        wrong += [(path.name, file) for file in files if not (ROOT / file).exists()]
    assert wrong == []


def exists(program: str, first: str, *rest: str) -> bool:
    """Whether a line of code runs a target, a file, or a command on a study that there is."""
    if program == "make":
        return f"\n{first}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    if program == "python":
        return (ROOT / first).is_file()
    if first in ("run", "sweep", "plan") and any(
        word not in packaged() for word in rest[:1] if not word.endswith(".toml")
    ):
        return False
    return first in {"--help", *(point.name for point in entry_points(group="securefl.commands"))}


def test_commands_exist() -> None:
    for path in FIGURES:
        text = path.read_text(encoding="utf-8")
        found = list(commands(text))
        assert len(found) > 5
        assert [words for words in found if not exists(*words)] == [], path.name


def test_the_readme_can_be_read() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
