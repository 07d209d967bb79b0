"""Files and folders of releases are read by every reader and command. Those from before are refused.

`releases/VERSION.tar.xz` has one of each, made by that release (`older/make.py`). A later version reads them,
or refuses them by their version once its own differs. `older/COMMIT.tar.xz` is from before the first release:
refused, and left as it is.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from support.offenders import offenders
from support.tiny_study import FEDAVG, text

import securefl
from securefl.accounting import shared, statements, store
from securefl.accounting.ledger import Ledger
from securefl.accounting.store import Terms
from securefl.commands.main import cli
from securefl.core.errors import ConfigError, DataError, RemoteProtocolError
from securefl.core.release import SERVER
from securefl.data import tables
from securefl.deployment import keys, plan_file, roster, session_store
from securefl.deployment.messages import Enter, decode_envelope
from securefl.he import openings
from securefl.matching import document, matched
from securefl.storage import journal, private_folder
from securefl.storage.database import Database, Kind
from securefl.study import checkpoint, split_key
from securefl.study.folder import study_of

OLDER, RELEASES = Path(__file__).parent / "older", Path(__file__).parent / "releases"
STATES = sorted(path.name.split(".")[0] for path in OLDER.glob("*.tar.xz"))
READ = sorted(path.name.removesuffix(".tar.xz") for path in RELEASES.glob("*.tar.xz"))
TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)
REFUSALS = (ConfigError, DataError, RemoteProtocolError)
Reader = Callable[[Path], object]


def of_kind(kind: Kind) -> Reader:
    return lambda path: Database(path, kind)


def of_document(kind: str) -> Reader:
    return lambda path: document.read(path, kind)


DOCUMENTS = {
    "K/secret.key": "secret-key",
    "K/public.key": "public-key",
    "V/evaluator.key": "evaluator-key",
    "V/evaluator.pub": "evaluator-public",
    "C-*/client.key": "client-key",
    "C-*/client.pub": "client-public",
    "declared.pub": "declared-baseline",
    "p*.enc": "encrypted-profile",
    "scores.enc": "encrypted-scores",
}
READERS: dict[str, tuple[str, str, Reader]] = {
    "a run": ("run", "no version", study_of),
    "a run's ledger": ("run/private/arms/*/*/ledger.sqlite", "version 7", of_kind(store.KIND)),
    "a run's journal": ("run/private/arms/*/*/ledger.sqlite", "version 3", of_kind(journal.KIND)),
    "a run's checkpoint": ("run/private/arms/*/*/ledger.sqlite", "version 5", checkpoint.rounds_in),
    "a key of splits": ("**/private", "no version", split_key.read),
    "a ledger": ("**/ledger.sqlite", "version 7", lambda path: Ledger(path, TERMS)),
    "a ledger's statement": (
        "**/ledger.sqlite",
        "version 7",
        lambda path: statements.statement(path, party=SERVER),
    ),
    "a ledger's terms": ("**/ledger.sqlite", "version 7", statements.terms_of),
    "a ledger's identity": ("**/ledger.sqlite", "version 7", statements.identity_of),
    "a shared ledger": ("shared.sqlite", "version 1", shared.runs_of),
    "openings": ("*/K/openings-*.sqlite", "version 2", openings.Openings),
    "matched profiles": ("pads/V/matched-*.sqlite", "version 1", matched.Matched),
    "acts": ("parties/client-0000/acts.sqlite", "version 3", journal.Journal),
    "sessions": ("parties/client-0000/diary.sqlite", "version ", session_store.SessionStore),
    "a plan file": ("parties/client-0000", "no version", plan_file.read),
    "keys of a party": ("parties/client-0000", "no version", lambda path: keys.read(path, path.name)),
    "a roster": ("parties/**/roster.jsonl", "no version", roster.read),
    "a request": (
        "parties/enter.bin",
        "version 2",
        lambda path: decode_envelope(path.read_bytes(), Enter, sender=SERVER),
    ),
    "a model": ("model.safetensors", "model 2", securefl.load),
    **{
        f"{where}/{name}": (f"{where}/{name}", "version '4'", of_document(kind))
        for where in ("pads", "compact")
        for name, kind in DOCUMENTS.items()
        if where == "compact" or "C-*" not in name
    },
}
RELEASED = {
    **READERS,
    "a sweep": ("sweep", "", lambda path: private_folder.require_format(path, private_folder.SWEEP)),
    "a sweep's cell": ("sweep/cells/*", "", study_of),
    "features": ("features/features.npz", "", tables.read_table),
}
"""Readers of a release's files. Features had no version before, and archives from before leave out tables."""
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
    def unpacked(state: str) -> Path:
        root = tmp_path / state
        home = OLDER if state in STATES else RELEASES
        with tarfile.open(home / f"{state}.tar.xz") as archive:
            archive.extractall(root, filter="data")
        for path in root.rglob("*"):
            path.chmod(0o700 if path.is_dir() else 0o600)
        return root

    return unpacked


def contents(folder: Path) -> dict[Path, bytes]:
    """All files, but SQLite's logs, which a look into a database makes."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in found if not path.name.endswith(("-wal", "-shm", ".lock"))}


def answered(opening: Any, socket: Path, *, ready: Callable[[Path], None], allow: object) -> None:
    """Open a party as `served` does, and end where it would wait for requests."""
    with opening():
        ready(socket)


def require_refusal(error: BaseException | None, came: str) -> None:
    assert isinstance(error, REFUSALS), error
    assert came in str(error), error
    # what to do stands behind what came
    assert len(str(error).partition(came)[2].split()) > 5, error


@pytest.mark.parametrize("state", STATES)
def test_every_reader_refuses_what_an_older_release_wrote(state: str, older: Callable[[str], Path]) -> None:
    root = older(state)
    before = contents(root)

    def check(name: str) -> None:
        where, came, read = READERS[name]
        found = sorted(root.glob(where))
        assert found, "the archive has none"
        for path in found:
            with pytest.raises(REFUSALS) as refusal:
                read(path)
            require_refusal(refusal.value, came)

    assert offenders(READERS, check) == []
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
        require_refusal(CliRunner().invoke(cli, words.split()).exception, COMMANDS[words])

    assert offenders(COMMANDS, check) == []
    assert contents(root) == before


@pytest.mark.parametrize("release", READ)
def test_every_reader_reads_what_a_release_wrote(release: str, older: Callable[[str], Path]) -> None:
    root = older(release)

    def ledger(path: Path) -> Ledger:
        return Ledger(path, statements.terms_of(path))

    at = "parties/client-0000/ledger.sqlite"
    readers = {
        **RELEASED,
        "a ledger": ("**/ledger.sqlite", "", ledger),
        "acts": (at, "", journal.Journal),
        "sessions": (at, "", session_store.SessionStore),
    }

    def check(name: str) -> None:
        where, _, read = readers[name]
        found = sorted(root.glob(where))
        assert found, "the archive has none"
        for path in found:
            try:
                read(path)
            except REFUSALS as refusal:
                pytest.fail(f"{path}: {refusal}")

    # Of the keys in pads/K the archive has the heads.
    assert offenders((name for name in readers if not name.startswith("pads/K")), check) == []


@pytest.mark.parametrize("release", READ)
def test_every_command_reads_what_a_release_wrote(
    release: str, older: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = older(release)
    np.save(root / "records.npy", np.ones((2, 1, 8, 8), np.float32))
    # A party's file has the whole path of its counter.
    plan, counter = root / "parties/client-0000/party.toml", root / "parties/counters/client-0000"
    plan.write_text(re.sub("(?m)^counter = .*", lambda _: f'counter = "{counter}"', plan.read_text()))
    monkeypatch.setattr("securefl.deployment.folder.served", answered)
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "features"))

    def check(words: str) -> None:
        monkeypatch.chdir(root / WHERE.get(words.split()[0], ""))
        ended = CliRunner().invoke(cli, words.split())
        assert ended.exception is None, f"{ended.exception} {ended.output}"
        assert READ_BY[words] in ended.output, ended.output

    assert offenders(READ_BY, check) == []
    kept = root / "features/securefl/features"
    assert len(list(kept.glob("*.npz"))) == 1, "computed again, and kept under another name"


def test_the_archives_have_one_of_each_format(older: Callable[[str], Path]) -> None:
    """Without a reader's file the tests above would say nothing of it."""
    unread = {"study.toml", "sweep.toml", "b.json", "p1.json", "p2.json", "ledger.sqlite.clients"}
    unread |= {"README.txt", "records-x.npy", "records-y.npy", "doubled.py"}
    # notes of a ledger, and files that only people read
    beside = (".sqlite-head", ".json", ".head", ".csv", ".parquet")
    inside = {"counters", "securefl"}  # counters and kept features, which commands read
    for state in (*STATES, *READ):
        root, readers = older(state), READERS if state in STATES else RELEASED
        read = {path for where, _, _ in readers.values() for path in root.glob(where) if path.is_file()}
        folders = [path for where, _, _ in readers.values() for path in root.glob(where) if path.is_dir()]
        read |= {path for folder in folders for path in folder.glob("*") if path.is_file()}
        found = {path for path in contents(root) if path.name not in unread and path.suffix not in beside}
        assert {path for path in found - read if not inside & {*path.relative_to(root).parts}} == set()
