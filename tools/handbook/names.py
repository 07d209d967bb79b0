"""The public names of each face: signature, and the docstring that `help` prints."""

from __future__ import annotations

from public import FACES, documented, headline, names, signature


def page(face: str) -> str:
    """The page of one face: every public name of it."""
    parts = [f"# `{face}`\n\n{headline(face)}\n"]
    for name in sorted(names(face)):
        told = f"{signature(face, name)}\n\n{documented(face, name)}".rstrip()
        parts.append(f"## `{name}` {{#{name}}}\n\n````text\n{told}\n````\n")
    return "\n".join(parts)


def index() -> str:
    """The page that lists every face with its names."""
    parts = ["# Public names\n\nImport from these modules alone. All else is private, and may change.\n"]
    for face in FACES:
        links = ", ".join(f"[`{name}`]({face}.md#{name})" for name in sorted(names(face)))
        parts.append(f"## [`{face}`]({face}.md)\n\n{headline(face)}\n\n{links}\n")
    return "\n".join(parts)
