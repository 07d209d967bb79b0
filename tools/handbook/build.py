"""The documentation site: `python tools/handbook/build.py FOLDER` builds it offline, in FOLDER/site."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from handbook import commands, keys, names, sources

from securefl.commands.exit_codes import MEANINGS

ROOT = Path(__file__).parents[2]


def lay_out(folder: Path) -> None:
    """Write the rules of the site, the files of docs/ and the pages that are made from the code."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("*.py"))
    shutil.copy(ROOT / "zensical.toml", folder)
    codes = "\n".join(f"| `{code.value}` | {meaning} |" for code, meaning in sorted(MEANINGS.items()))
    made = dict(sources.pages()) | {
        "reference/exit-codes.md": f"# Exit codes\n\n| code | meaning |\n|---|---|\n{codes}\n",
        "reference/keys.md": keys.page(),
        "reference/commands.md": commands.page(),
        "reference/names.md": names.index(),
        **{f"reference/{face}.md": names.page(face) for face in names.FACES},
    }
    for path, content in made.items():
        (folder / "docs" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "docs" / path).write_bytes(content if isinstance(content, bytes) else content.encode())


def render(folder: Path) -> None:
    """Render the pages that were laid out. SystemExit if a link or the navigation leads to nothing."""
    # Zensical itself checks the links to pages and their headings, but no picture, and no navigation.
    if wrong := [*_lost(folder)]:
        raise SystemExit("\n".join(f"{place}: no file {target}" for place, target in wrong))
    words = ["build", "--clean", "--strict", "--config-file", str(folder / "zensical.toml")]
    if code := subprocess.run([sys.executable, "-m", "zensical", *words], check=False).returncode:
        raise SystemExit(code)


def _lost(folder: Path) -> Iterator[tuple[str, str]]:
    docs = folder / "docs"
    rules = (folder / "zensical.toml").read_text("utf-8")
    links = [(docs / "the navigation", page) for page in re.findall(r'"([^"]+\.md)"', rules)]
    for page in docs.rglob("*.md"):
        links += [(page, target) for target in sources.targets(page.read_text("utf-8"))]
    for page, target in links:
        if not re.match(r"\w+:", target) and not (page.parent / target).is_file():
            yield page.relative_to(docs).as_posix(), target


if __name__ == "__main__":
    lay_out(Path(sys.argv[1]))
    render(Path(sys.argv[1]))
