"""Pages of docs/, of documents outside it, of notebooks, and of the files that any of them links to."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHOLE = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "README.md": "readme.md",
    "securefl/secagg/SPEC.md": "reference/masked-sums-spec.md",
    "securefl/linear/SPEC.md": "reference/pads-spec.md",
    "securefl/mechanisms/PROOF.md": "explanation/proof-of-orders.md",
}
"""Documents outside docs/, and their places on the site."""
_CODE = re.compile(r"(^````.*?^````$|^```.*?^```$)", flags=re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s#]+)(?=(?:#[^)\s]*)?\))")
_wanted: set[str] = set()
"""Files that a document links to, from the root."""


def pages() -> Iterator[tuple[str, str | bytes]]:
    """Each such page: its path on the site, and its Markdown; or a picture of a notebook, and its bytes."""
    for path in [*(str(own.relative_to(ROOT)) for own in (ROOT / "docs").rglob("*.md")), *WHOLE]:
        yield place_of(path), linked((ROOT / path).read_text(encoding="utf-8"), path)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        yield from _notebook(path)
    for path in sorted(_wanted):
        if place_of(path).startswith("source/"):
            text = (ROOT / path).read_text(encoding="utf-8")
            yield place_of(path), f"# `{path}`\n\n````{Path(path).suffix[1:]}\n{text}````\n"


def linked(text: str, path: str) -> str:
    """The text of a document whose links lead to pages of the site. path: the document's, from the root."""

    def moved(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(path), link[1]))
        # Neither an address nor a page that is made is a file.
        if not (ROOT / target).is_file():
            return link[0]
        _wanted.add(target)
        return f"]({os.path.relpath(place_of(target), os.path.dirname(place_of(path)) or '.')}"

    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts)


def targets(text: str) -> Iterator[str]:
    """The files and addresses that the links and pictures of a document lead to."""
    for part in _CODE.split(text)[::2]:
        yield from _LINK.findall(part)


def place_of(path: str) -> str:
    """The place on the site of a file of the repository."""
    if path in WHOLE:
        return WHOLE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return f"source/{path}.md"


def _notebook(path: Path) -> Iterator[tuple[str, str | bytes]]:
    place, lines, pictures = place_of(path.relative_to(ROOT).as_posix()), [], 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines.append(linked(source, f"notebooks/{path.name}") + "\n")
            continue
        lines.append(f"````py\n{source}\n````\n")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                pictures += 1
                yield f"notebooks/{path.stem}-{pictures}.png", base64.b64decode(data["image/png"])
                lines.append(f"![What the cell above draws]({path.stem}-{pictures}.png)\n")
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                lines.append(f"````text\n{text.rstrip()}\n````\n")
    yield place, "\n".join(lines)
