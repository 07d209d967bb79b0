"""Print the comment lines per 100 lines of each module, and the median of the modules.

    python tools/comments.py [FOLDER_OR_FILE ...]      (default: securefl protocols)

Lines are all lines of the file. Orders to tools (noqa, type:, fmt:, pragma) are not comments.
Modules of fewer than 20 lines are left out: one line would decide their figure.
"""

import io
import re
import statistics
import sys
import tokenize
from pathlib import Path

ORDER = re.compile(r"#\s*(noqa|type:|fmt:|pragma|ruff|mypy|!)")
SHORTEST = 20


def comment_lines(text: str) -> int:
    """Count the lines of `text` that hold a comment to a reader."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({t.start[0] for t in tokens if t.type == tokenize.COMMENT and not ORDER.match(t.string)})


def modules(places: list[str]) -> list[Path]:
    """Return the Python files at `places`, folders searched whole."""
    return sorted(
        file for place in map(Path, places) for file in (place.rglob("*.py") if place.is_dir() else [place])
    )


def main(places: list[str]) -> None:
    """Print a line for each module, and the median."""
    densities = []
    for file in modules(places or ["securefl", "protocols"]):
        text = file.read_text(encoding="utf-8")
        length = len(text.splitlines())
        if length < SHORTEST:
            continue
        count = comment_lines(text)
        densities.append(100 * count / length)
        print(f"{densities[-1]:6.1f}  {count:4d} of {length:4d}  {file}")
    print(f"median {statistics.median(densities):.1f} of {len(densities)} modules")


if __name__ == "__main__":
    main(sys.argv[1:])
