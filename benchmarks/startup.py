"""What the command line takes to say something, beside `import click, numpy`: CPU time, as ratios in one run.

    python benchmarks/startup.py [--rounds 9] [--against PATH]

PATH is a folder with another checkout, whose commands are timed in the same run.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parents[1]
WORDS = ("--help", "studies", "keygen --help", "match --help")
PLAIN = "import click, numpy"
OURS = "from securefl.commands.main import main; main()"


def cpu(code: str, words: str, checkout: Path) -> float:
    """Seconds of CPU of a new interpreter that runs `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        cwd=checkout,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", type=lambda path: Path(path).resolve())
    options = parser.parse_args()
    checkouts = [("this", HERE)] + ([("former", options.adversaries)] if options.adversaries else [])
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(options.rounds):
        plain = cpu(PLAIN, "", HERE)
        for which, checkout in checkouts:
            for words in WORDS:
                found.setdefault((words, which), []).append(cpu(OURS, words, checkout) / plain)
    for (words, which), ratios in sorted(found.items()):
        print(f"securefl {words:16} {which:8}{median(ratios):>7.1f} x `{PLAIN}`")


if __name__ == "__main__":
    main()
