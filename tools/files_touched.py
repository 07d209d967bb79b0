"""How many files a value touches on its way: the code that runs with it in hand.

    python tools/files_touched.py [--json]

Plays one round of a tiny study under a trace. A file counts if one of its functions is given a carrier of the
value, or gives one back: an object that holds the value, or what it has become. Two ways are followed: a
profile from its client to the score (FedProf, encrypted scores), and FedLog's phi from its client to the head
eta (sums in the clear, and masked). A test holds the counts (tests/architecture/test_files_touched.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
ROOMS = (ROOT / "securefl", ROOT / "protocols")

STUDY = """
[study]
name = "Files"
rounds = 1
[data]
source = "digits"
clients = 5
partition = {{ kind = "iid" }}
[model]
kind = "mlp"
hidden = [8]
[local]
optimizer = "sgd"
learning_rate = 0.1
epochs = 1
batch_size = 32
[privacy]
{privacy}
noise = "none"
unit = "record"
adjacency = "replace-one"
delta = 1e-5
budget = inf
against = ["server", "key-holder", "others"]
unprotected = ["update", "profile", "statistic"]
least_cohort = 2
least_honest = 2
largest_share = 0.5
[[arm]]
name = "x"
{arm}
"""
MASKED = 'sum = "masked"\nscores = "clear"\ndropout = 0.2\ncorrupt = 0.0'
CLEAR = 'sum = "clear"\nscores = "{}"'
PROFILE = ("Profile", "Features", "Split")
VALUE = ("Value", "Concealed", "Release", "Delivered", "Contribution")
SCORE = ("OpenRequest", "OpenReply", "Blinded", "Score")
SUM = ("MaskedInput", "Summed", "Opened", "Total")
WAYS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "profile to score": (
        STUDY.format(privacy=CLEAR.format("ckks"), arm='protocol = "fedprof"\nfraction = 0.4\nalpha = 10.0'),
        (*PROFILE, *VALUE, *SCORE),
    ),
    "phi to eta": (
        STUDY.format(privacy=CLEAR.format("clear"), arm='protocol = "fedlog"'),
        (*VALUE, *SUM),
    ),
    "phi to eta, masked": (STUDY.format(privacy=MASKED, arm='protocol = "fedlog"'), (*VALUE, *SUM)),
}


def held(value: Any, depth: int = 2) -> Iterator[Any]:
    """A value, and what stands in it where it is a collection."""
    yield value
    if depth and isinstance(value, Mapping):
        value = tuple(value.values())
    if depth and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for one in value[:64]:
            yield from held(one, depth - 1)


def touched(study: str, carriers: Sequence[str]) -> list[str]:
    """The files whose functions have a carrier in hand, below the root."""
    from securefl.study import world
    from securefl.study.config import parse
    from securefl.study.run import run_arm

    found: set[str] = set()

    def trace(frame: FrameType, event: str, result: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if not any(room in file.parents for room in ROOMS) or event not in ("call", "return"):
            return
        given = [result] if event == "return" else list(frame.f_locals.values())
        if any(type(one).__name__ in carriers for value in given for one in held(value)):
            found.add(str(file.relative_to(ROOT)))

    of = parse(study)
    here = world.build(of, 0)
    with tempfile.TemporaryDirectory() as folder:
        sys.setprofile(trace)
        try:
            run_arm(of, of.arms[0], here, Path(folder), lambda record: None)
        finally:
            sys.setprofile(None)
    return sorted(found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    counted = {name: touched(*way) for name, way in WAYS.items()}
    if options.json:
        print(json.dumps(counted, indent=2))
        return 0
    for name, files in counted.items():
        print(f"{name}: {len(files)} files")
        for file in files:
            print(f"    {file}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
