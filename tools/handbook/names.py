"""The public names of each face, from their docstrings: signature, parameters, errors and example."""

from __future__ import annotations

import html
import importlib
import re

from public import documented, faces, names, signature

_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):")
_ENTRY = re.compile(r"(\*{0,2}[\w.]+(?:, [\w.*]+)*): (.*)")


def title(face: str) -> str:
    return f"`{face}`"


def file_name(face: str) -> str:
    """The page's name, such as `securefl.algorithm.md`."""
    return f"{face}.md"


def page(face: str) -> str:
    """The page of one face: every public name of it."""
    module = importlib.import_module(face)
    lines = [f"# {title(face)}", "", (module.__doc__ or "").strip().splitlines()[0], ""]
    for name in sorted(names(face)):
        lines += [f"## `{name}` {{#{name}}}", "", "```py", _wrapped(signature(face, name)), "```", ""]
        lines += [markdown(documented(face, name)), ""]
    return "\n".join(lines)


def index() -> str:
    """The page that lists every face with its names."""
    lines = [
        "# Public names",
        "",
        "Import from these modules alone. All else is private, and may change.",
        "",
    ]
    for face in faces():
        module = importlib.import_module(face)
        links = ", ".join(f"[`{name}`]({file_name(face)}#{name})" for name in sorted(names(face)))
        lines += [
            f"## [`{face}`]({file_name(face)})",
            "",
            (module.__doc__ or "").strip().splitlines()[0],
            "",
            links,
            "",
        ]
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    """A signature with a parameter a line, if it is longer than a line."""
    if " = Literal[" not in text:
        text = re.sub(r"'([^']*)'", r"\1", text)  # annotations that are texts
    if len(text) <= 88:
        return text
    head, _, rest = text.partition("(")
    body, _, tail = rest.rpartition(")")
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(body):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if letter == "," and depth == 0:
            parts.append(body[start:at].strip())
            start = at + 1
    parts.append(body[start:].strip())
    return f"{head}(\n" + "".join(f"    {part},\n" for part in parts if part) + f"){tail}"


def markdown(text: str) -> str:
    """A docstring of this project as Markdown: examples as code, sections as lists."""
    lines: list[str] = []
    source = text.splitlines()
    at = 0
    while at < len(source):
        line = source[at]
        if line.lstrip().startswith(">>>"):
            at = _example(source, at, lines)
        elif (section := _SECTION.fullmatch(line)) is not None:
            at = _section(section[1], source, at + 1, lines)
        else:
            lines.append(_safe(line.strip()))
            at += 1
    return "\n".join(lines)


def _example(source: list[str], at: int, lines: list[str]) -> int:
    lines += ["", "```pycon"]
    while at < len(source) and source[at].strip():
        lines.append(source[at].strip())
        at += 1
    lines += ["```", ""]
    return at


def _section(name: str, source: list[str], at: int, lines: list[str]) -> int:
    lines += ["", f"**{name}**", ""]
    while at < len(source) and (source[at].startswith("    ") or not source[at].strip()):
        line = source[at]
        entry = (
            _ENTRY.fullmatch(line.strip())
            if line.startswith("    ") and not line.startswith("     ")
            else None
        )
        if not line.strip():
            lines.append("")
        elif entry is not None:
            lines.append(f"- `{entry[1]}`: {_safe(entry[2])}")
        elif name in ("Returns", "Yields") or not lines[-1].startswith(("- ", "  ")):
            lines.append(_safe(line.strip()))
        else:
            lines.append(f"  {_safe(line.strip())}")
        at += 1
    lines.append("")
    return at


def _safe(text: str) -> str:
    """Text whose angle brackets outside code are no HTML, and whose stars are no emphasis."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part
        if part.startswith("`")
        else html.escape(part, quote=False).replace("*", "\\*").replace("_", "\\_")
        for part in parts
    )
