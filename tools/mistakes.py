"""Typical mistakes of a person at the command line, with the messages that they get (docs/mistakes.md).

    python tools/mistakes.py [--write]    # docs/mistakes.md: is it so, or write it

The list is `tools/mistakes.toml`. `tests/e2e/test_mistakes.py` makes each mistake in an empty folder, and
compares the exit code, the message and the files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import made

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "mistakes.md"
STUDY = """
[study]
name = "tiny"
rounds = 1
seeds = [3]

[data]
source = "digits"
clients = 6
partition = { kind = "iid" }

[model]
kind = "mlp"
hidden = [8]

[local]
optimizer = "sgd"
learning_rate = 0.2
epochs = 1
batch_size = 16

[privacy]
sum = "clear"
scores = "clear"
noise = "none"
unit = "record"
adjacency = "replace-one"
delta = 1e-4
budget = inf
adversaries = ["server", "key-holder", "others"]
non_private = ["update"]
min_cohort_size = 2
min_honest = 1
max_client_weight = 0.5

[[arm]]
name = "FedAvg"
protocol = "fedavg"
fraction = 0.5
"""
"""The study that is right but for the mistake."""
_HEAD = """# Mistakes, and what they say

<!-- made by python tools/mistakes.py --write -->

Each message says what was expected, what came and what to do. No mistake of this page changes a file.
The exit code is 1 for an error of the study, its records or files, and 2 for wrong usage of a command, whose
`--help` the message names. A test makes each mistake and compares the message.
"""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A mistake, and the message.

    area: the heading on the page. typed: the command after `securefl`. code: the exit code.
    said: the message; with " ..." at its end, its beginning. `{here}` stands for the folder.
    shown: what is written wrong, for the page; by default the command, or the lines in place of `old`.
    old, new: a part of STUDY, and what stands in its place in study.toml. files: further files by name;
    `{study}` stands for STUDY. latin: the same, written in Latin-1.
    """

    area: str
    typed: str
    said: str
    code: int = 1
    old: str = ""
    new: str = ""
    shown: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    latin: Mapping[str, str] = field(default_factory=dict)

    def contents(self) -> dict[str, bytes]:
        """The files of the folder in which the mistake is made."""
        if self.old not in STUDY:
            raise ValueError(f"Expected a part of STUDY, got {self.old!r}.")
        texts = {**self.files, **({"study.toml": STUDY.replace(self.old, self.new)} if self.old else {})}
        found = {name: text.replace("{study}", STUDY).encode() for name, text in texts.items()}
        return found | {name: text.encode("latin-1") for name, text in self.latin.items()}

    def message(self, here: Path) -> str:
        """The part of stderr that the message must have, in this folder."""
        return self.said.removesuffix(" ...").replace("{here}", str(here))


def mistakes() -> list[Mistake]:
    """All mistakes, in the order of the page."""
    listed = tomllib.loads((ROOT / "tools" / "mistakes.toml").read_text(encoding="utf-8"))["mistake"]
    return [Mistake(**own) for own in listed]


def page() -> str:
    """The page docs/mistakes.md."""
    parts = [_HEAD]
    for area, own in groupby(mistakes(), key=lambda mistake: mistake.area):
        parts += ["", f"## {area}", "", "| written | message |", "|---|---|"]
        parts += [f"| {_written(one)} | {_cell(one.said)} |" for one in own]
    return "\n".join(parts) + "\n"


def _written(mistake: Mistake) -> str:
    """What was typed: the command, or the changed lines of a study."""
    if mistake.shown:
        return _cell(mistake.shown)
    if mistake.old:
        return _lines(mistake.new) or f"no {_lines(mistake.old)}"
    wrong = [text.removeprefix("{study}") for text in mistake.files.values() if "{study}[" in text]
    return ": ".join([f"`securefl {mistake.typed}`", *map(_lines, wrong)])


def _lines(text: str) -> str:
    return " ".join(f"`{_cell(line)}`" for line in text.splitlines() if line.strip())


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "\\<").split())


if __name__ == "__main__":
    made.main({PAGE: page()})
