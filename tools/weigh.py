#!/usr/bin/env python3
"""Weigh the house: code tokens and lines per room, beside the aims in `weights.json`.

    python tools/weigh.py [CHECKOUT]

A token is one of Python's own (names, numbers, strings, operators). Comments, docstrings, blank
lines, imports and line breaks weigh nothing, so neither long lines nor fewer words of explanation make a room
lighter: only less code does. `make check` prints the rooms above their aim, and fails nothing.
"""

import ast
import json
import sys
import tokenize
from pathlib import Path

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_SILENT = ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER")


def weigh(path: Path) -> tuple[int, int]:
    """Lines and tokens of a module."""
    text, silent = path.read_text(encoding="utf-8"), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            silent.update(range(node.lineno, node.end_lineno + 1))
        elif isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            silent.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    tokens, inside = 0, 0  # an f-string is one token, as before Python 3.12
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        name = tokenize.tok_name[token.type]
        inside += (name == "FSTRING_START") - (name == "FSTRING_END")
        if not inside and name not in _SILENT:
            tokens += token.start[0] not in silent
    return text.count("\n"), tokens


def rooms(root: Path) -> dict[str, list[int]]:
    """Modules, lines and tokens of each room, and of the product and its tests as a whole."""
    found: dict[str, list[int]] = {}
    for top in ("securefl", "protocols", "tests", "benchmarks", "tools"):
        for path in (root / top).rglob("*.py*"):
            parts = path.relative_to(root).parts
            if path.suffix not in (".py", ".pyi") or (root / top / parts[1]).is_symlink():
                continue  # securefl/protocols may be a link
            inner = parts[1] if len(parts) > 2 else "face"
            room = {"securefl": inner, "tests": f"tests/{inner}"}.get(top, top)
            whole = {"securefl": "product", "protocols": "product", "tests": "tests"}.get(top)
            for name in filter(None, (room, whole)):
                row = found.setdefault(name, [0, 0, 0])
                row[:] = (a + b for a, b in zip(row, (1, *weigh(path)), strict=True))
    return found


def main() -> None:
    found = rooms(Path(*sys.argv[1:]).resolve())
    aims = json.loads(Path(__file__).with_name("weights.json").read_text(encoding="utf-8"))
    print(f"{'room':18}{'modules':>8}{'lines':>8}{'tokens':>9}{'aim':>9}")
    for room, (modules, lines, tokens) in sorted(found.items(), key=lambda row: -row[1][2]):
        aim = aims.get(room)
        told = f"{aim:9}{'  above' * (tokens > aim)}" if aim else ""
        print(f"{room:18}{modules:8}{lines:8}{tokens:9}{told}")


if __name__ == "__main__":
    main()
