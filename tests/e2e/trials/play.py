"""Run one kind of trial, and print what each found as JSON: `tests/e2e/test_endurance.py`.

    PYTHONPATH=tests python -m e2e.trials.play kills 60 [CASE ...]
    PYTHONPATH=tests python -m e2e.trials.play flips 3000 [CASE ...] | pairs 16 | disk

Kills and flips are drawn from a fixed seed. This is no `__main__.py`: Python does not import one anew in the
workers of a sweep, whose draws would then not be the trial's.
"""

from __future__ import annotations

import json
import sys

from e2e.trials import disk, flips, kills, pairs
from e2e.trials.cases import TURNS
from e2e.trials.victim import prepare

if __name__ == "__main__":
    prepare()
    match sys.argv[1:]:
        case ["kills", count, *cases]:
            found = list(kills.trials(int(count), cases or TURNS))
        case ["flips", count, *bases]:
            found = list(flips.trials(int(count), bases or flips.BASES))
        case ["pairs", count]:
            found = list(pairs.trials(int(count)))
        case _:
            found = list(disk.trials())
    print(json.dumps(found))
