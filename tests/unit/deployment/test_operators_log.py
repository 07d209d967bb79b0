"""The operator's log of docs/deployment.md is what a federation with four kinds of missing clients prints."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.coordinated import Federation, after
from support.party_folders import build_once, enrolled, made, names, part, pin
from support.tiny_study import text

from securefl.commands.party import status_lines
from securefl.deployment import folder as folders
from securefl.deployment import keys
from securefl.deployment.party_setup import OwnData
from securefl.deployment.roster import line_of
from securefl.deployment.status import status

PAGE = Path(__file__).parents[3] / "docs" / "deployment.md"
ARM = '[[arm]]\nname = "x"\nprotocol = "fedprof"\nfraction = 1.0\nmax_releases = 4\n'
STUDY = text(ARM, clients=6, rounds=4)
OVERFLOWS, REFUSES, DIES, RETIRES = "client-0001", "client-0002", "client-0003", "client-0004"
LATE = ("client-0000", OVERFLOWS, "client-0005")


def block(title: str) -> list[str]:
    """The lines of the page's indented block after this sentence."""
    after = PAGE.read_text().partition(title)[2]
    found = re.match(r"[^\n]*\n\n((?:    [^\n]*\n|\n(?=    ))+)", after)
    assert found is not None, title
    return [line.removeprefix("    ") for line in found[1].splitlines()]


def beyond(own: OwnData) -> OwnData:
    """Records of which training makes an update that no grid holds."""
    x, y = own.records
    return replace(own, records=((np.asarray(x) * 3e4).astype(np.float32), y))


def with_another_plan(root: Path, name: str) -> None:
    """Give a party another study, as if its owner had agreed to another text."""
    other = made(STUDY.replace("rounds = 4", "rounds = 9"))
    shutil.rmtree(root / name)
    shutil.rmtree(root / "counters" / name)
    folders.init(root / name, other, part(other, name, root / "counters"))
    roster = root / "roster.jsonl"
    kept = [line for line in roster.read_text().splitlines() if name not in line]
    roster.write_text("\n".join([*kept, line_of(keys.read(root / name, name).member())]))
    for each in names(made(STUDY)):
        pin(root / each, roster)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with pytest.MonkeyPatch.context() as patch:
        build_once(patch)
        yield coordinated(tmp_path_factory.mktemp("federation"))


def coordinated(root: Path) -> Federation:
    """The federation of the page, after its study."""
    enrolled(root, STUDY)
    with_another_plan(root, REFUSES)
    own = Federation(root, STUDY, change={OVERFLOWS: beyond})
    own.start(REFUSES, DIES, RETIRES)
    fresh = after({1: lambda: own.start(*LATE), 2: lambda: own.stop(DIES)})
    own.coordinate(root / "run", wait=5, fresh=fresh)
    own.stop()
    return own


def test_the_log_is_the_pages(own: Federation) -> None:
    assert own.said == block("The operator reads")


def test_each_owner_reads_the_private_reason_that_the_page_shows(own: Federation) -> None:
    shown = []
    for name in (OVERFLOWS, REFUSES):
        told = status_lines(status(own.root / name))
        reasons = [line for line in told if line.startswith("  ") and " x  " in line]
        shown += [f"{name}: {line.split(' x  ')[1]}" for line in reasons]
    assert [re.sub(r"[0-9a-f]{64}", lambda hit: hit[0][:8] + "...", line) for line in shown] == block(
        "The owners read"
    )


def test_the_log_has_no_private_word(own: Federation) -> None:
    log = "\n".join(own.said)
    for name in (OVERFLOWS, REFUSES):
        said = status(own.root / name)
        for one in (*said["missing"], *said["refusals"]):
            assert one["why"] not in log
    assert "grid" not in log
