"""What the archives of older versions hold (`tests/vectors/older/make.py`), each file with its reader.

A reader gives the content as JSON, so that a later version can be compared with what a release noted.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import securefl
from securefl.accounting import shared, statements, store
from securefl.accounting.ledger import Ledger
from securefl.accounting.store import Terms
from securefl.core.acts import Begin, RecordAct
from securefl.core.agreement import Question
from securefl.core.errors import ConfigError, DataError, RemoteProtocolError
from securefl.core.keys import SecretKey
from securefl.core.release import SERVER
from securefl.core.wire import Header
from securefl.data import tables
from securefl.deployment import keys, plan_file, roster
from securefl.deployment.messages import Enter, decode_envelope
from securefl.deployment.session_store import SessionStore
from securefl.he.openings import Openings
from securefl.matching import document
from securefl.matching.matched import Matched
from securefl.storage import journal, private_folder
from securefl.storage.database import Database, Kind
from securefl.storage.journal import Journal
from securefl.study import checkpoint, split_key
from securefl.study.checkpoint import Checkpoint
from securefl.study.folder import study_of
from securefl.training import exported

REFUSALS = (ConfigError, DataError, RemoteProtocolError)
Reader = Callable[[Path], object]
Call = tuple[str, str, Sequence[Any]]
"""A file below a folder, a method of its journal, and the arguments."""
CALLS = "calls.json"
LONGEST = 40
"""The longest content, in characters, that is noted as it is. Of a longer one a digest is noted."""


def unpacked(archive: Path, root: Path) -> None:
    with tarfile.open(archive) as file:
        file.extractall(root, filter="data")
    for path in root.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)


# As JSON ------------------------------------------------------------------------------------------------

CLASSES = {one.__name__: one for one in (Begin, RecordAct, Header, Question)}


def plain(value: Any) -> Any:
    """A value as JSON. `made` is the inverse for the arguments of a journal."""
    match value:
        case SecretKey():
            return plain(value.reveal())
        case bytes():
            return {"bytes": value.hex()}
        case np.ndarray():
            return [str(value.dtype), list(value.shape), hashlib.sha256(value.tobytes()).hexdigest()]
        case frozenset():
            return {"set": sorted(value)}
        case tuple() | list():
            return [plain(each) for each in value]
        case Mapping():
            return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (*CLASSES.values(),)):
        return {type(value).__name__: {own.name: plain(getattr(value, own.name)) for own in fields(value)}}
    return value


def made(said: Any) -> Any:
    if isinstance(said, list):
        return tuple(map(made, said))
    if not isinstance(said, dict):
        return said
    ((kind, content),) = said.items()
    if kind in CLASSES:
        return CLASSES[kind](**{name: made(each) for name, each in content.items()})
    return bytes.fromhex(content) if kind == "bytes" else frozenset(content)


def noted(content: object) -> object:
    """What a release notes of content."""
    text = json.dumps(plain(content))
    return json.loads(text) if len(text) <= LONGEST else hashlib.sha256(text.encode()).hexdigest()[:16]


# The acts of parties ------------------------------------------------------------------------------------


@contextmanager
def noting(root: Path) -> Iterator[list[Call]]:
    """All that parties below `root` ask of their journals."""
    found: list[Call] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("record", "lasting", "secrets", "totals", "said", "row"):
            real = getattr(Journal, name)

            def asked(own: Journal, *of: Any, name: str = name, real: Any = real) -> Any:
                call = (str(Path(own._db.path).relative_to(root)), name, [a for a in of if not callable(a)])
                if call not in found:
                    found.append(call)
                return real(own, *of)

            patch.setattr(Journal, name, asked)
        yield found


def others(calls: Sequence[Call]) -> Iterator[Call]:
    """What a party must not do after its acts, and what it still may: further attempts by fewer clients.

    They come before the calls: an act that is repeated is written again, as a later version writes it.
    """
    for where, name, (first, *rest) in calls:
        match name:
            case "record":
                for change in (_joined, _fewer):
                    yield where, name, [[change(act) for act in first]]
            case "totals":
                yield where, name, [first, rest[0], [told + 1 for told in rest[1]]]
            case "row":
                yield where, name, [first, *rest[:2], bytes(32)]


def _joined(act: Begin | RecordAct) -> Begin | RecordAct:
    if isinstance(act, RecordAct):
        return replace(act, digest=bytes(32))
    at = replace(act.header, attempt=act.header.attempt + 1)
    return replace(act, header=at, context=bytes(32), members=(*act.members, "client-0099"))


def _fewer(act: Begin | RecordAct) -> Begin | RecordAct:
    act = _joined(act)
    return act if isinstance(act, RecordAct) else replace(act, members=act.members[1:-1])


def answers(path: Path) -> list[Any]:
    """The answers of a journal to the calls that were noted, in their order."""
    root = next(folder for folder in path.parents if (folder / CALLS).exists())
    calls = json.loads((root / CALLS).read_text())
    found = []
    with Journal(path) as own:
        for where, name, of in calls:
            if root / where == path:
                more = [lambda: b"made anew"] if name == "said" else []
                found.append(plain(getattr(own, name)(*made(of), *more)))
    return found


# Readers ------------------------------------------------------------------------------------------------


def of_kind(kind: Kind) -> Reader:
    def read(path: Path) -> None:
        Database(path, kind).close()

    return read


def of_document(kind: str) -> Reader:
    def read(path: Path) -> object:
        found = document.read(path, kind)
        return found.header, hashlib.sha256(found.body).digest()

    return read


def of_study(path: Path) -> object:
    found = study_of(path)
    return found.study.name, found.study.rounds, found.study.seeds, found.text


def of_ledger(path: Path, terms: Terms | None = None) -> object:
    with Ledger(path, terms or statements.terms_of(path)) as own:
        return own.identity, own.rows()


def of_statement(path: Path) -> object:
    found = statements.statement(path, party=SERVER)
    # no last digits: another version of the accountant may compute others
    releases = [
        (one["holder"], one["name"], one["state"], f"{float(one['epsilon']):.3g}") for one in found.releases
    ]
    return releases, found.head.count, found.head.digest


def of_terms(path: Path) -> object:
    own = statements.terms_of(path)
    return own.unit, own.adjacency, own.delta, own.budget, own.adversaries, own.max_releases


def of_shared(path: Path) -> object:
    runs = shared.runs_of(path)
    return runs.budget, [(run.run, run.what, run.text) for run in runs.entries]


def of_openings(path: Path) -> object:
    with closing(Openings(path)) as own:
        return own.opened


def of_matched(path: Path) -> None:
    Matched(path).close()


def of_journal(path: Path) -> object:
    with Journal(path) as own:
        return own.identity, own.sessions(), [own.newest(session) for session in own.sessions()]


def of_diary(path: Path) -> object:
    with closing(SessionStore(path)) as own:
        sessions = [(session, entry.text, entry.at) for session, entry in own.sessions()]
        refusals = [(entry.text, entry.at, entry.times) for entry in own.refusals()]
        records = [(digest, entry.text, entry.at) for digest, entry in own.records()]
        return own.bound_to("party"), sessions, own.bare(), refusals, records, own.kept(own.newest()[1])


def of_checkpoint(path: Path) -> object:
    with Checkpoint(path) as own:
        state, records = own.load()
        assert state
        return own.nonce(), state.broadcast, state.memory, records, own.kept()


def of_plan(path: Path) -> object:
    found = plan_file.read(path)
    return found.name, found.arm, found.seed, found.clients, found.sessions, found.roster, found.plan.text()


def of_roster(path: Path) -> object:
    return [roster.line_of(member) for member in roster.read(path).members.values()]


def of_keys(path: Path) -> object:
    return roster.line_of(keys.read(path, path.name).member())


def of_request(path: Path) -> object:
    own = decode_envelope(path.read_bytes(), Enter, sender=SERVER)
    return own.plan, own.study, own.work, own.roster, own.nonce, own.signature


def of_model(path: Path) -> object:
    securefl.load(path)
    return exported.read(path)


def of_features(path: Path) -> object:
    found = tables.read_table(path)
    assert isinstance(found, tables.Arrays)
    return found.x, found.y


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
TERMS = Terms(unit="record", adjacency="replace-one", delta=1e-5)
OLDER: dict[str, tuple[str, str, Reader]] = {
    "a run": ("run", "no version", of_study),
    "a run's ledger": ("run/private/arms/*/*/ledger.sqlite", "version 7", of_kind(store.KIND)),
    "a run's journal": ("run/private/arms/*/*/ledger.sqlite", "version 3", of_kind(journal.KIND)),
    "a run's checkpoint": ("run/private/arms/*/*/ledger.sqlite", "version 5", checkpoint.rounds_in),
    "a key of splits": ("**/split.key", "no version", lambda path: split_key.read(path.parent)),
    "a ledger": ("**/ledger.sqlite", "version 7", lambda path: of_ledger(path, TERMS)),
    "a ledger's statement": ("**/ledger.sqlite", "version 7", of_statement),
    "a ledger's terms": ("**/ledger.sqlite", "version 7", of_terms),
    "a ledger's identity": ("**/ledger.sqlite", "version 7", statements.identity_of),
    "a shared ledger": ("shared.sqlite", "version 1", of_shared),
    "openings": ("*/K/openings-*.sqlite", "version 2", of_openings),
    "matched profiles": ("pads/V/matched-*.sqlite", "version 1", of_matched),
    "acts": ("parties/client-0000/acts.sqlite", "version 3", of_journal),
    "sessions": ("parties/client-0000/diary.sqlite", "version ", of_diary),
    "a plan file": ("parties/client-0000", "no version", of_plan),
    "keys of a party": ("parties/client-0000", "no version", of_keys),
    "a roster": ("parties/**/roster.jsonl", "no version", of_roster),
    "a request": ("parties/enter.bin", "version 2", of_request),
    "a model": ("model.safetensors", "model 2", of_model),
    **{
        f"{where}/{name}": (f"{where}/{name}", "version '4'", of_document(kind))
        for where in ("pads", "compact")
        for name, kind in DOCUMENTS.items()
        if where == "compact" or "C-*" not in name
    },
}
"""For what was before the first release: where it is, the version that its refusal names, and its reader."""
_RUNS = ("*/private/arms/*/*/ledger.sqlite", "session/run/private/arms/*/*/ledger.sqlite")
_PLAYED = ("session/client-*", "session/key-holder", "session/server")
_FILES = tuple(f"{at}/{name}.sqlite" for at in _PLAYED for name in ("ledger", "acts"))
_ACTS = (*_FILES, _RUNS[1], "kept/private/arms/*/*/ledger.sqlite")
_PARTIES = ("parties/client-0000", *_PLAYED)
# Of the keys in pads/K an archive has the heads.
RELEASED: dict[str, tuple[Sequence[str], Reader]] = {
    **{name: ((where,), read) for name, (where, _, read) in OLDER.items() if not name.startswith("pads/K")},
    "a run": (("run", "session/run", "sweep/cells/*"), of_study),
    "a run's journal": ((*_RUNS, "parties/client-0000/ledger.sqlite", *_FILES), of_journal),
    "a run's checkpoint": (_RUNS, of_checkpoint),
    "a ledger": (("**/ledger.sqlite",), of_ledger),
    "acts": (_ACTS, answers),
    "sessions": (("parties/client-0000/ledger.sqlite", *_FILES), of_diary),
    "a plan file": (_PARTIES, of_plan),
    "keys of a party": (_PARTIES, of_keys),
    "a roster": (("**/roster.jsonl",), of_roster),
    "a sweep": (("sweep",), lambda path: private_folder.require_format(path, private_folder.SWEEP)),
    "features": (("features/features.npz",), of_features),
}
"""The same of a release. Features had no version before, and archives from before leave out tables."""


def of_release(root: Path, name: str) -> dict[str, object]:
    """What a reader finds in each of its files, or the error by which it refuses it."""
    where, read = RELEASED[name]
    found: dict[str, object] = {}
    for path in sorted({path for each in where for path in root.glob(each)}):
        try:
            found[str(path.relative_to(root))] = noted(read(path))
        except REFUSALS as refusal:
            found[str(path.relative_to(root))] = refusal
    return found


def require_advice(error: object, came: str) -> None:
    """The error says which version came, and behind it what to do."""
    assert isinstance(error, REFUSALS), error
    said = re.search(came, str(error))
    assert said, error
    assert len(str(error)[said.end() :].split()) > 5, error


def version_came(number: int) -> str:
    """How a refusal states the version of what came. In other words it states the one that it expects."""
    return rf"(?:, got '?(?:[\w -]+ of )?|: )(?:version|securefl) '?{number}\b"
