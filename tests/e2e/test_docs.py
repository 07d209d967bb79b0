"""What the documents name exists: links, headings and files. `test_site` looks at all other names."""

from __future__ import annotations

import re
from pathlib import Path

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


def prose(text: str) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Headings as the fragments that links name them by."""
    headings = re.findall(r"^#+ (.+)$", prose(path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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


def test_the_readme_can_be_read() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
