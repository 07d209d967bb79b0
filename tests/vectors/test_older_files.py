"""Files and folders of releases are read as they were meant, or refused with their version and the way on.

`releases/VERSION.tar.xz` has one of each, made by that release (`older/make.py`), and
`releases/VERSION.sessions.tar.xz` parties in the middle of a session. `releases/VERSION.json` has what that
release itself finds in both. Once a format has another version, its files are refused by theirs, and the
archives stay where they are. `older/COMMIT.tar.xz` is from before the first release: refused, and left as it
is.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.archived import OLDER, REFUSALS, RELEASED, of_release, require_advice, unpacked, version_came
from support.cheap_runs import blank_pictures, brief_observer, coarse_figures
from support.coordinated import federation
from support.offenders import offenders
from support.tiny_study import FEDAVG, text

from securefl.commands.main import cli

__all__ = ["blank_pictures", "brief_observer", "coarse_figures"]

HOME = Path(__file__).parent
BEFORE, RELEASES = HOME / "older", HOME / "releases"
STATES = sorted(path.name.split(".")[0] for path in BEFORE.glob("*.tar.xz"))
READ = sorted(path.stem for path in RELEASES.glob("*.json"))
COMMANDS = {
    "run study.toml --out run": "no version",
    "run other.toml --out new": "version 1",
    "report run": "no version",
    "report run --out new": "no version",
    "export run -o new.safetensors": "no version",
    "compare run sweep/cells/epsilon-8": "no version",
    "report sweep/cells/epsilon-8": "no version",
    "sweep sweep.toml --out sweep": "no version",
    "ledger show summing/ledger.sqlite": "version 7",
    "ledger show run/private/arms/x/seed-3/ledger.sqlite": "version 7",
    "ledger runs shared.sqlite": "version 1",
    "predict model.safetensors table.csv -o new.csv": "model 2",
    "plan study.toml": "version 1",
    "party status parties/client-0000": "no version",
    "party enrol parties/client-0000": "no version",
    "party serve parties/client-0000": "no version",
    "party rotate parties/client-0000": "no version",
    "party recount parties/client-0000 --yes": "no version",
    "party allow parties/client-0000 --sessions 2 --yes": "no version",
    "party pin parties/client-0000 parties/roster.jsonl": "no version",
    "party init parties/client-0000 clear.toml --client 0 --again --yes": "no version",
    "party coordinate parties/client-0000 --out new": "no version",
    "declare --public K/public.key --evaluator V/evaluator.key --baseline b.json -o new": "version '4'",
    "encrypt --public K/public.key --evaluator V/evaluator.pub --profile p1.json -o new": "version '4'",
    "match --public K/public.key --evaluator V/evaluator.key --baseline b.json p1.enc -o new": "version '4'",
    "reveal --secret K/secret.key --evaluator V/evaluator.pub scores.enc": "version '4'",
}
READ_BY = {
    "report run": "Report: run/report.html",
    "statement run": "epsilon",
    "table run": "x",
    "export run -o new.safetensors": "new.safetensors",
    "compare run sweep/cells/epsilon-8 -o new.html": "new.html",
    "run study.toml --out run": "Report: run/report.html",
    "sweep sweep.toml --out sweep": "Page: sweep/sweep.html",
    "plan study.toml": "8.00 before",
    "ledger show summing/ledger.sqlite": "head after 8 entries",
    "ledger show run/private/arms/x/seed-3/ledger.sqlite": "head after",
    "ledger runs shared.sqlite": "1 run; a budget of epsilon 20",
    "predict model.safetensors records.npy -o new.csv": "new.csv",
    "party status parties/client-0000": "refusals: none",
    "party enrol parties/client-0000": "fingerprint",
    "party allow parties/client-0000 --sessions 2 --yes": "2 sessions",
    "party pin parties/client-0000 parties/roster.jsonl --yes": "pinned 4 parties",
    "party serve parties/client-0000": "client-0000 serves on",
    "party rotate parties/client-0000": "pin the new roster",
    "declare --public K/public.key --evaluator V/evaluator.key --baseline b.json --params compact "
    "-o new.pub": "new.pub",
    "encrypt --public K/public.key --evaluator V/evaluator.pub --profile p1.json --declared declared.pub "
    "--key C-p1/client.key -o new.enc": "new.enc",
    "match --public K/public.key --evaluator V/evaluator.key --baseline b.json p1.enc p2.enc "
    "-o new-scores.enc": "2 scores",
    "reveal --secret K/secret.key --evaluator V/evaluator.pub --client C-p1/client.pub --client "
    "C-p2/client.pub scores.enc": "p1",
    "features records-x.npy --network doubled:Doubled --out again.npz": "again.npz",
}
"""Commands over a release's files, with a part of what each prints."""
WHERE = {**dict.fromkeys(("declare", "encrypt", "match", "reveal"), "compact"), "features": "features"}
"""The folders of commands that look for their files beside them."""


@pytest.fixture
def older(tmp_path: Path) -> Callable[[str], Path]:
    def of_state(state: str) -> Path:
        root = tmp_path / state
        for archive in (*BEFORE.glob(f"{state}.tar.xz"), *RELEASES.glob(f"{state}.*tar.xz")):
            unpacked(archive, root)
        # A party's file has the whole path of its counter.
        for plan in root.glob("*/*/party.toml") if state in READ else ():
            counter = plan.parents[1] / "counters" / plan.parent.name
            plan.write_text(re.sub('(?m)^counter = ".*"', f'counter = "{counter}"', plan.read_text()))
        return root

    return of_state


def noted(release: str) -> Any:
    return json.loads((RELEASES / f"{release}.json").read_text())


def came(release: str) -> str:
    return version_came(noted(release)["version"])


def contents(folder: Path) -> dict[Path, bytes]:
    """All files, but SQLite's logs, which a look into a database makes."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in found if not path.name.endswith(("-wal", "-shm", ".lock"))}


def answered(opening: Any, socket: Path, *, ready: Callable[[Path], None], allow: object) -> None:
    """Open a party as `served` does, and end where it would wait for requests."""
    with opening():
        ready(socket)


@pytest.mark.parametrize("state", STATES)
def test_every_reader_refuses_what_an_older_release_wrote(state: str, older: Callable[[str], Path]) -> None:
    root = older(state)
    before = contents(root)

    def check(name: str) -> None:
        where, came, read = OLDER[name]
        found = sorted(root.glob(where))
        assert found, "the archive has none"
        for path in found:
            with pytest.raises(REFUSALS) as refusal:
                read(path)
            require_advice(refusal.value, came)

    assert offenders(OLDER, check) == []
    assert contents(root) == before


@pytest.mark.parametrize("state", STATES)
def test_every_command_refuses_what_an_older_release_wrote(
    state: str, older: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = older(state)
    study = (root / "study.toml").read_text()
    (root / "other.toml").write_text(study.replace("rounds = 1", "rounds = 2"))
    (root / "clear.toml").write_text(text(FEDAVG))
    (root / "table.csv").write_text("a\n1\n")
    before = contents(root)

    def check(words: str) -> None:
        at_matching = words.split()[0] in ("declare", "encrypt", "match", "reveal")
        monkeypatch.chdir(root / "pads" if at_matching else root)
        require_advice(CliRunner().invoke(cli, words.split()).exception, COMMANDS[words])

    assert offenders(COMMANDS, check) == []
    assert contents(root) == before


@pytest.mark.parametrize("release", READ)
def test_every_reader_finds_what_a_release_wrote(release: str, older: Callable[[str], Path]) -> None:
    root, stood = older(release), noted(release)["found"]

    def check(name: str) -> None:
        found = of_release(root, name)
        assert found
        assert found.keys() == stood[name].keys()
        for path, content in found.items():
            if isinstance(content, Exception):
                require_advice(content, came(release))
            else:
                assert content == stood[name][path], f"{path} has another meaning than it had"

    assert offenders(RELEASED, check) == []


LATER = """
import sys
from pathlib import Path
from securefl.core import formats

formats.VERSION = int(sys.argv[2]) + 1
formats.LABEL = f"securefl/{formats.VERSION}|".encode()

from support.archived import RELEASED, of_release, require_advice, version_came

for name in RELEASED:
    for path, content in of_release(Path(sys.argv[1]), name).items():
        assert isinstance(content, Exception), f"{name}: {path} is read"
        require_advice(content, version_came(int(sys.argv[2])))
print("all refused")
"""


@pytest.mark.parametrize("release", READ)
def test_a_later_version_refuses_every_file_of_a_release_by_its_version(
    release: str, older: Callable[[str], Path]
) -> None:
    """In a process of its own: most modules take the number as they are imported."""
    words = [sys.executable, "-c", LATER, str(older(release)), str(noted(release)["version"])]
    found = {**os.environ, "PYTHONPATH": str(HOME.parent)}
    at = HOME.parents[1]  # Python finds the package there
    done = subprocess.run(words, env=found, cwd=at, capture_output=True, text=True, check=False)
    assert done.stdout == "all refused\n", done.stderr


@pytest.mark.parametrize("release", READ)
def test_every_command_reads_what_a_release_wrote(
    release: str, older: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = older(release)
    np.save(root / "records.npy", np.ones((2, 1, 8, 8), np.float32))
    monkeypatch.setattr("securefl.deployment.folder.served", answered)
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "features"))
    refused = []

    def check(words: str) -> None:
        monkeypatch.chdir(root / WHERE.get(words.split()[0], ""))
        ended = CliRunner().invoke(cli, words.split())
        if ended.exception is not None:
            require_advice(ended.exception, came(release))
            refused.append(words)
        else:
            assert READ_BY[words] in ended.output, ended.output

    assert offenders(READ_BY, check) == []
    kept = root / "features/securefl/features"
    assert refused or len(list(kept.glob("*.npz"))) == 1, "computed again, and kept under another name"


@pytest.mark.usefixtures("built_once", "blank_pictures", "brief_observer", "coarse_figures")
@pytest.mark.parametrize("release", READ)
def test_the_parties_of_a_release_go_on_with_their_session(
    release: str, older: Callable[[str], Path]
) -> None:
    root = older(release) / "session"
    try:
        with federation(root, (root / "server/study.toml").read_text()) as own:
            own.coordinate(root / "run")
    except REFUSALS as refusal:
        require_advice(refusal, came(release))
    else:
        assert [(number, len(who)) for number, who in own.rounds] == [(1, 3), (2, 3), (3, 3), (4, 3)]
        assert own.rounds[1][1] == own.rounds[3][1] != own.rounds[2][1], "clients rest for one round"


def test_the_archives_have_one_of_each_format(older: Callable[[str], Path]) -> None:
    """Without a reader's file the tests above would say nothing of it."""
    unread = {"study.toml", "sweep.toml", "b.json", "p1.json", "p2.json", "ledger.sqlite.clients"}
    unread |= {"README.txt", "split.txt", "records-x.npy", "records-y.npy", "doubled.py"}
    # notes of a ledger, and files that only people read
    beside = (".sqlite-head", ".json", ".head", ".csv", ".parquet")
    inside = {"counters", "securefl"}  # counters and kept features, which commands read
    for state in (*STATES, *READ):
        root = older(state)
        places = [where for where, _, _ in OLDER.values()]
        if state in READ:
            places += [where for several, _ in RELEASED.values() for where in several]
        found = {path for where in places for path in root.glob(where)}
        found |= {inner for path in found if path.is_dir() for inner in path.glob("*")}
        files = {path for path in contents(root) if path.name not in unread and path.suffix not in beside}
        assert {path for path in files - found if not inside & {*path.relative_to(root).parts}} == set()


@pytest.mark.parametrize("release", READ)
def test_each_table_of_a_release_has_a_row(release: str, older: Callable[[str], Path]) -> None:
    """A table without rows would say nothing of how they are written."""
    counts = Counter[str]()
    for path in older(release).rglob("*.sqlite"):
        with closing(sqlite3.connect(path)) as db:
            for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                counts[table] += db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
    assert min(counts.values()) > 0, counts
