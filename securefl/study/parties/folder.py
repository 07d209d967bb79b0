"""A party's folder: made from a study, enrolled in a roster, and opened by the process that serves it.

party.toml, study.toml      what its owner agreed to (see `plan_file`), and the study it is from
identity.key                its lasting keys
ledger.sqlite               all that it ever released, in every study: a client's
acts.sqlite                 its journal
diary.sqlite                sessions, refusals, fingerprints of records, what it keeps
roster.jsonl                who takes part, as pinned
run/                        the socket
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from securefl.accounting.ledger import Ledger
from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError, DataError
from securefl.engines.apart.diary import Diary
from securefl.engines.apart.roster import Pinned
from securefl.storage.files import write
from securefl.storage.journal import Journal
from securefl.study import config
from securefl.study.config import Arm, Study
from securefl.study.folder_lock import alone
from securefl.study.home import note_home
from securefl.study.parties import counter as counters
from securefl.study.parties import keys, plan_file
from securefl.study.parties.counter import Counter
from securefl.study.parties.made import Made, OwnData, data_of
from securefl.study.parties.pinning import pinned_of
from securefl.study.parties.plan_file import HolderTerms, PlanFile

LEDGER, JOURNAL, DIARY = "ledger.sqlite", "acts.sqlite", "diary.sqlite"
STUDY = "study.toml"
SOCKET = Path("run") / "party.sock"


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a party is to be: its name, the study's arm and seed, and what it has of its own.

    counter: a folder outside the party's; None for the usual one. records: a file, or none for the study's.
    """

    name: str
    arm: Arm
    seed: int
    counter: Path | None = None
    records: Path | None = None


def arm_of(study: Study, name: str | None) -> Arm:
    """The study's arm of this name, or its only one. Raises ConfigError where that is not clear."""
    found = [arm for arm in study.arms if name in (None, arm.name)]
    if len(found) != 1:
        names = ", ".join(repr(arm.name) for arm in study.arms)
        raise ConfigError(f"Expected one of the study's arms {names}, got {name!r}. Name it with --arm.")
    return found[0]


def init(folder: Path, made: Made, part: Part) -> PlanFile:
    """Make a party's folder. Whoever calls has shown the terms to its owner.

    Raises ConfigError for a folder that is not new, and whatever the study or the records have wrong.
    """
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"Expected a new folder, got {folder}, which has files. Choose another, or give a party that is "
            "there another plan with --again."
        )
    if part.counter is not None:
        _require_new(part.counter, folder)
    own = _data(made, part.name, part.records)
    folder.mkdir(parents=True, exist_ok=True)
    # Its owner's alone, but for the way to the socket: its group may pass, and see nothing.
    folder.chmod(0o710)
    keys.make(folder, part.name)
    journal, diary = Journal(folder / JOURNAL), Diary(folder / DIARY)
    with ExitStack() as stack:
        stack.callback(journal.close)
        stack.callback(diary.close)
        place = (part.counter or counters.default(journal.identity)).absolute()
        counter = Counter(place)
        counter.begin()
        content = _content(made, part, place)
        diary.bound("journal", journal.identity)
        if own is not None:
            ledger = stack.enter_context(_ledger(folder, content, counter))
            diary.bound("ledger", ledger.identity)
            diary.note_records(own.digest, "as the folder was made")
    _write_study(folder, made.study)
    # Last: a folder without it is not taken for a party's.
    plan_file.write(folder, content)
    return content


def _require_new(place: Path, folder: Path) -> None:
    counters.require_outside(place, folder)
    if Counter(place).there:
        raise ConfigError(f"Expected a new counter, got {place}, which another party has. Name another.")


def renew(folder: Path, made: Made, part: Part) -> PlanFile:
    """Give the party of a folder another plan. Its ledger, keys and terms stay.

    Raises ConfigError for another party, and for a study in other terms.
    """
    with alone(folder):
        before = plan_file.read(folder)
        if part.name != before.name:
            raise ConfigError(
                f"Expected {before.name}, whose folder and ledger this is, got {part.name}: under another "
                "name its releases would count apart. Make a folder for it, of other records."
            )
        if part.counter is not None and part.counter.absolute() != Path(before.counter):
            raise ConfigError(f"Expected the counter {before.counter}, got another: it moves with no plan.")
        if before.client is not None:
            before.terms.require(made.plan, f"this party's ledger, {folder / LEDGER}")
        _data(made, part.name, part.records)
        content = replace(_content(made, part, Path(before.counter)), roster=before.roster)
        _write_study(folder, made.study)
        plan_file.write(folder, content)
        return content


def _content(made: Made, part: Part, counter: Path) -> PlanFile:
    return PlanFile(
        name=part.name,
        arm=part.arm.name,
        seed=part.seed,
        counter=str(counter),
        terms=HolderTerms.of(made.plan),
        plan=made.plan,
        clients=made.world.problem.clients,
        records="" if part.records is None else str(part.records.absolute()),
    )


def _write_study(folder: Path, study: Study) -> None:
    write(folder / STUDY, study.text, secret=True)
    note_home(folder, study.home)


def _data(made: Made, name: str, records: Path | None) -> OwnData | None:
    """A client's records, None for others, who have none."""
    if name.startswith("client-"):
        number = int(name.removeprefix("client-"))
        return data_of(made, number, "" if records is None else str(records.absolute()))
    if name not in made.names:
        raise ConfigError(
            f"Expected a part in this study, {' or '.join(made.names)} or a client, got {name}: this plan "
            "has nothing for it to open. Nobody needs to run it."
        )
    if records is not None:
        raise ConfigError(f"Expected records for a client alone, got some for the {name}. Leave them out.")
    return None


def _ledger(folder: Path, content: PlanFile, counter: Counter) -> Ledger:
    return Ledger(folder / LEDGER, content.terms.ledger(), counter=counter.ledger)


def recount(folder: Path) -> Path:
    """Begin a lost counter anew. Returns its folder. Raises ConfigError for one that is not lost."""
    with alone(folder):
        content = plan_file.read(folder)
        counter = Counter(Path(content.counter))
        if counter.there or counter.ledger.exists():
            raise ConfigError(
                f"Expected a counter that is lost, got the one at {counter.folder}: it stays, and a folder "
                "that is behind it is refused."
            )
        counter.begin()
        if content.client is not None:
            _ledger(folder, content, counter).close()
        return counter.folder


# Opening ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Opened:
    """All that a party has, once its process holds it. ledger, data: a client's."""

    content: PlanFile
    made: Made
    pinned: Pinned
    identity: Identity
    journal: Journal
    diary: Diary
    counter: Counter
    ledger: Ledger | None
    data: OwnData | None

    def newest(self, session: bytes) -> int:
        """The newest round of a session that ledger or journal know, or 0."""
        released = 0 if self.ledger is None else self.ledger.newest(session)
        return max(released, self.journal.newest(session))


@contextmanager
def opened(folder: Path, *, new_records: str = "") -> Iterator[Opened]:
    """Hold a party's folder and counter, and open all that is in it.

    new_records: the owner's word why its records are others than before; empty if they are the same.
    Raises ConfigError for a party that is not ready, and DataError for files that do not belong together,
    an older copy, or records that changed.
    """
    content = plan_file.read(folder)
    pinned, identity = pinned_of(folder, content), keys.read(folder, content.name)
    counter = Counter(Path(content.counter))
    counter.place()
    with ExitStack() as stack:
        stack.enter_context(alone(folder))
        stack.enter_context(alone(counter.folder))
        study = config.read(folder / STUDY)
        made = Made.of(study, arm_of(study, content.arm), content.seed)
        made.require(content)
        _require_there(folder, JOURNAL, DIARY, *((LEDGER,) if content.client is not None else ()))
        journal, diary = Journal(folder / JOURNAL), Diary(folder / DIARY)
        stack.callback(journal.close)
        stack.callback(diary.close)
        _require_bound(folder, diary, "journal", journal.identity)
        data = ledger = None
        if content.client is not None:
            content.terms.require(made.plan, "this party")
            ledger = stack.enter_context(_ledger(folder, content, counter))
            _require_bound(folder, diary, "ledger", ledger.identity)
            data = data_of(made, content.client, content.records)
            _note_records(diary, data, new_records)
        party = Opened(content, made, pinned, identity, journal, diary, counter, ledger, data)
        entered = diary.sessions()
        counter.require(len(entered), party.newest(entered[-1][0]) if entered else 0)
        yield party


def _require_there(folder: Path, *names: str) -> None:
    # To open one that is lost would begin it anew, and put an empty one where the newest is to go back.
    lost = [name for name in names if not (folder / name).is_file()]
    if lost:
        raise DataError(
            f"Expected the files that {folder} began with, got no {', '.join(lost)}. Put the newest back, "
            "all of them from one time."
        )


def _require_bound(folder: Path, diary: Diary, name: str, identity: str) -> None:
    if diary.bound(name, identity) != identity:
        raise DataError(
            f"Expected the {name} that this folder began with, got another in {folder}: it was lost, or put "
            "there from another folder. Restore the folder from one backup."
        )


def _note_records(diary: Diary, data: OwnData, new_records: str) -> None:
    known = diary.records()
    if known and known[-1][0] == data.digest:
        return
    if not new_records:
        raise DataError(
            "Expected the records that this party had before, got others: a file was changed, or the study "
            "deals them out otherwise. Bring the old ones back. If they are meant to be new, say why with "
            "--new-records WHY: the ledger goes on, and counts what the old ones spent for the new ones too."
        )
    diary.note_records(data.digest, new_records)
