"""Pages of what stands outside docs/: notebooks, specifications, changes, and files that pages link to."""

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
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def pages() -> Iterator[tuple[str, str | bytes]]:
    """Each such page: its path on the site, and its Markdown; or a picture of a notebook, and its bytes."""
    for path, place in WHOLE.items():
        yield place, linked((ROOT / path).read_text(encoding="utf-8"), path)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        yield from _notebook(path)
    for path in sorted(_linked_files()):
        yield place_of(path), _code(path)


def linked(text: str, path: str) -> str:
    """The text of a document whose links lead to pages of the site. path: the document's, from the root."""
    fenced = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        part if part.startswith("```") else _LINK.sub(lambda link: _moved(link, path), part)
        for part in fenced
    )


def _moved(link: re.Match[str], path: str) -> str:
    target = _target(link[2], path)
    if target is None:
        return link[0]
    here, fragment = os.path.dirname(place_of(path)), link[3] or ""
    return f"{link[1]}{os.path.relpath(place_of(target), here or '.')}{fragment}{link[4]}"


def _target(link: str, path: str) -> str | None:
    """The file that a link leads to, from the root. None for an address, and for a page that is made."""
    if re.match(r"[a-z]+:", link):
        return None
    target = os.path.normpath(os.path.join(os.path.dirname(path), link))
    return target if (ROOT / target).is_file() else None


def place_of(path: str) -> str:
    """The place on the site of a file of the repository."""
    if path in WHOLE:
        return WHOLE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return f"source/{path}.md"


def _linked_files() -> set[str]:
    """Files outside docs/ that a document links to and that no other page shows."""
    documents = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")] + list(WHOLE)
    found = set()
    for path in documents:
        for link in _LINK.finditer((ROOT / path).read_text(encoding="utf-8")):
            target = _target(link[2], path)
            if target is not None and place_of(target).startswith("source/"):
                found.add(target)
    return found


def _code(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    return f"# `{path}`\n\n````{Path(path).suffix[1:]}\n{text}````\n"


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
