"""Texts that are made from the code: `--write` writes them, without it a text that differs is named."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def main(texts: Mapping[Path, str]) -> None:
    """Write or compare these texts. Exit code 1 where one differs and was not written."""
    stale = [path for path, text in texts.items() if path.read_text(encoding="utf-8") != text]
    for path in stale:
        if "--write" in sys.argv:
            path.write_text(texts[path], encoding="utf-8")
        print(path)
    sys.exit(bool(stale) and "--write" not in sys.argv)
