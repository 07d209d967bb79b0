"""Creates, renews, opens and serves a party's folder: plan, keys, ledger, journal, sessions and roster.

party.toml, study.toml      what its owner agreed to (see `plan_file`), and the study that it is from
identity.key                its long-term keys
split.key                   a client's: decides which records it tests on, if a finite epsilon is claimed
ledger.sqlite               a client's: all that it ever released, in every study, its journal, its sessions,
                            refusals, digests of records, and client state
acts.sqlite                 the same of a party without a ledger
roster.jsonl                the pinned roster
run/                        the socket
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from securefl.accounting.store import Terms
from securefl.algorithm.queries import ClientState
from securefl.core.agreement import Identity
from securefl.core.errors import ConfigError, DataError
from securefl.core.release import KEY_HOLDER, SERVER
from securefl.deployment import keys, plan_file
from securefl.deployment.files import Count, Files, held
from securefl.deployment.party import PartySession
from securefl.deployment.party_setup import OwnData, PartyStudy, data_of, files_of, require_agreed
from securefl.deployment.pinning import note_keys, pinned_of
from securefl.deployment.plan_file import USUAL_SESSIONS, HolderTerms, PlanFile
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.server import Served, served
from securefl.deployment.session_cap import by_command
from securefl.deployment.session_store import LEDGER, SessionStore
from securefl.engine.party import Party
from securefl.storage import counter as counters
from securefl.storage import owned
from securefl.storage.counter import Counter
from securefl.storage.files import filling, write
from securefl.storage.folder_lock import locked
from securefl.storage.own_record import OwnRecord
from securefl.study import config, split_key
from securefl.study.config import Arm, Study, note_home
from securefl.study.split_key import Keeper
from securefl.training import single_thread

STUDY = "study.toml"
RUN = "run"
"""The folder of sockets."""
SOCKET = Path(RUN) / "party.sock"


@dataclass(frozen=True, kw_only=True)
class PartyOptions:
    """The choices for one party's folder: name, arm and seed, counter and records.

    counter: a folder outside the party's own; None for the default place. records: a file with the client's
    own records; None if the study deals them to it. sessions: the sessions without noise that the owner
    agrees to; None for as many as before, or 1.
    """

    name: str
    arm: Arm
    seed: int
    counter: Path | None = None
    records: Path | None = None
    sessions: int | None = None


def init(folder: Path, made: PartyStudy, part: PartyOptions) -> PlanFile:
    """Make a party's folder. The caller has shown the terms to the party's owner.

    Either all files are made or none. Raises ConfigError if the folder or counter is not new, or is another
    user's, or the study has no such party, and DataError if the records do not fit the study.
    """
    for place in (folder, *([] if part.counter is None else [part.counter])):
        if place.exists() and not place.is_dir():
            raise ConfigError(f"Expected a new folder, got {place}, which is a file. Choose another name.")
        # Who owns a folder can rename what is in it, such as keys and the number of agreed sessions.
        owned.require_ours(place)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"Expected a new folder, got {folder}, which has files. {_instead(folder, part)}")
    if part.counter is not None:
        _require_new(part.counter, folder)
    own = _data(made, part.name, part.records)
    place = (part.counter or counters.default(secrets.token_hex(16))).absolute()
    content = _content(made, part, place, USUAL_SESSIONS)
    with filling(folder), filling(place):
        # The owner's group may pass through to the socket, and may list nothing.
        folder.chmod(0o710)
        own_keys = keys.make(folder, part.name)
        with held(part.name, folder, Counter(place), _ledger_terms(content), new=True) as files:
            if own is not None:
                files.diary.note_records(own.digest, "as the folder was made")
        note_keys(content, own_keys)
        _keep_key(folder, made, content)
        _write_study(folder, made.study)
        # Last: a folder without this file does not count as a party's.
        plan_file.write(folder, content)
    return content


def _instead(folder: Path, part: PartyOptions) -> str:
    """The advice that ends an error about a folder that is not new."""
    if not (folder / plan_file.NAME).is_file():
        return (
            "They are no party's: if an interrupted init left them, remove them, and the counter that the "
            "init was given. Or choose another folder."
        )
    name = plan_file.read(folder).name
    if name != part.name:
        return f"They are {name}'s. Choose another folder."
    return f"They are {name}'s, whose ledger and keys stay: give it another plan with --again."


def _require_new(place: Path, folder: Path) -> None:
    counters.require_outside(place, folder)
    if Counter(place).there:
        raise ConfigError(f"Expected a new counter, got {place}, which another party has. Name another.")


def renew(folder: Path, made: PartyStudy, part: PartyOptions) -> PlanFile:
    """Give the party of a folder another plan. Its ledger, keys and terms stay.

    Raises ConfigError if `part` names another party or counter, or the study's terms differ from the
    ledger's.
    """
    with locked(folder):
        before = plan_file.read(folder)
        if part.name != before.name:
            raise ConfigError(
                f"Expected {before.name}, whose folder and ledger this is, got {part.name}: a second name's "
                "releases would not be counted with those of the first. Make a folder for it, with other "
                "records."
            )
        if part.counter is not None and part.counter.absolute() != Path(before.counter):
            raise ConfigError(
                f"Expected the counter {before.counter}, got {part.counter}: a new plan does not "
                "move it. Leave --counter out."
            )
        if before.client is not None:
            before.terms.require(made.plan, f"this party's ledger, {folder / LEDGER}")
        made = _with_key(folder, made)
        _data(made, part.name, part.records)
        content = _content(made, part, Path(before.counter), before.sessions)
        content = replace(content, roster=before.roster)
        _keep_key(folder, made, content)
        _write_study(folder, made.study)
        plan_file.write(folder, content)
        return content


def _with_key(folder: Path, made: PartyStudy) -> PartyStudy:
    """The same study, split by the key in the party's folder, if the folder has one."""
    if made.keeper.key is None or not (folder / split_key.NAME).exists():
        return made
    return PartyStudy.of(
        made.study, made.arm, made.world.seed, Keeper(key=split_key.read(folder), dealt=True)
    )


def _keep_key(folder: Path, made: PartyStudy, content: PlanFile) -> None:
    """Write the key of a client's splits into its folder, if its splits use a key."""
    if content.client is not None and made.keeper.key is not None:
        split_key.write_new(folder, made.keeper.key)


def allow(folder: Path, sessions: int) -> PlanFile:
    """Note how many sessions without noise a client's owner agrees to, over all studies.

    Raises ConfigError for a number below 1, for another party than a client, and while the party runs.
    """
    with locked(folder):
        content = plan_file.read(folder)
        if content.client is None:
            raise ConfigError(
                f"Expected a client's folder, got that of the {content.name}, which has no records: only "
                "clients count sessions."
            )
        content = replace(content, sessions=sessions)
        plan_file.write(folder, content)
        return content


def _content(made: PartyStudy, part: PartyOptions, counter: Path, sessions: int) -> PlanFile:
    return PlanFile(
        name=part.name,
        arm=part.arm.name,
        seed=part.seed,
        counter=str(counter),
        terms=HolderTerms.of(made.plan),
        plan=made.plan,
        clients=made.world.problem.clients,
        records="" if part.records is None else str(part.records.absolute()),
        files=files_of(made.world),
        sessions=sessions if part.sessions is None else part.sessions,
    )


def _write_study(folder: Path, study: Study) -> None:
    write(folder / STUDY, study.text, secret=True)
    note_home(folder, study.home)


def _data(made: PartyStudy, name: str, records: Path | None) -> OwnData | None:
    """A client's records; None for the server and the key holder. Raises ConfigError for an unused part."""
    if name.startswith("client-"):
        number = int(name.removeprefix("client-"))
        return data_of(made, number, "" if records is None else str(records.absolute()))
    if name not in made.names:
        raise ConfigError(
            f"Expected a party of this study, {' or '.join(made.names)} or a client, got {name}: this plan "
            "has nothing for it to open. Do not run it."
        )
    if records is not None:
        raise ConfigError(f"Expected records for a client alone, got some for the {name}. Leave them out.")
    return None


def _ledger_terms(content: PlanFile) -> Terms | None:
    """The terms of a client's ledger; None for the server and the key holder, which have no ledger."""
    return None if content.client is None else content.terms.ledger()


def recount(folder: Path) -> Path:
    """Replace a lost counter by a new one. Returns its folder. Raises ConfigError if it is not lost."""
    with locked(folder):
        content = plan_file.read(folder)
        counter = Counter(Path(content.counter))
        if counter.there or counter.ledger.exists():
            raise ConfigError(
                f"Expected a lost counter, got the one at {counter.folder}: it stays, and a party's folder "
                "that is older than it is refused."
            )
        counter.begin()
        note_keys(content, keys.read(folder, content.name))
    # At once, and not with the next reply: until then an older copy of the folder would be taken too.
    with held(content.name, folder, counter, _ledger_terms(content)) as files:
        files.note()
    return counter.folder


# Opening ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OpenParty:
    """An opened party: its files, keys, roster, plan and study. data: a client's records; else None."""

    folder: Path
    content: PlanFile
    made: PartyStudy
    pinned: PinnedRoster
    identity: Identity
    files: Files
    data: OwnData | None

    def session(self) -> PartySession:
        """The long-running party, a client or the key holder, for all its sessions."""
        made, content = self.made, self.content
        return self.files.session(
            made.plan,
            made.work,
            self.pinned,
            made.spec,
            self._made,
            allowed=content.sessions,
            how=by_command(self.folder, content.sessions),
        )

    def _made(self, count: Count, session: bytes, kept: Mapping[int, ClientState]) -> Party:
        made, files, identity = self.made, self.files, self.identity
        if (number := self.content.client) is None or self.data is None or files.ledger is None:
            return made.key_holder(OwnRecord(KEY_HOLDER, files.journal, identity))
        return made.client(number, self.data, files.ledger, files.journal, identity, session, kept, count)


def serve(
    folder: Path,
    socket: Path,
    *,
    ready: Callable[[str], None],
    allow: Collection[int],
    **how: Any,
) -> None:
    """Answer requests on a Unix socket until the process receives a signal to stop (see `server.served`).

    Args:
        folder: of a client or the key holder.
        socket: the path of the socket, which is made here.
        ready: called with the party's name once the socket accepts connections.
        allow: the numbers of the users that may connect.
        how: `new_records` and `trusted` of `opened`.

    Raises:
        ConfigError: if the folder is the server's or cannot be opened, or if the socket cannot be made.
        DataError: as `opened`.
    """
    name = plan_file.read(folder).name
    if name == SERVER:
        raise ConfigError(
            "Expected a client or a key holder, got the server's folder: a server does not serve."
        )
    served(partial(serving, folder, **how), socket, ready=lambda listener: ready(name), allow=allow)


@contextmanager
def serving(folder: Path, **how: Any) -> Iterator[Served]:
    """Open the party of a folder for a `PartyThread`, with the arguments of `opened`."""
    # In the party's thread: torch counts threads for each of them.
    single_thread()
    with opened(folder, **how) as party:
        session = party.session()
        yield Served(lambda relay, request: session.answer(request), session.diary.refuse, session.prepare)


@contextmanager
def opened(folder: Path, *, new_records: str = "", trusted: Sequence[Path] = ()) -> Iterator[OpenParty]:
    """Lock a party's folder and counter, and open the files in it.

    new_records: the owner's reason why the records differ from before; empty if they are the same. trusted:
    the paths of --trust-code.
    Raises ConfigError if the party has no pinned roster, or its plan no longer follows from its study, and
    DataError if its file is lost or an older copy, or if the records changed without a reason.
    """
    content = plan_file.read(folder)
    pinned, identity = pinned_of(folder, content)
    with held(content.name, folder, Counter(Path(content.counter)), _ledger_terms(content)) as files:
        study = config.of_folder(folder / STUDY, trusted)
        keeper = None
        if content.client is not None and split_key.needed(study):
            keeper = Keeper(key=split_key.read(folder), dealt=True)
        made = PartyStudy.of(study, study.arm_of(content.arm), content.seed, keeper)
        require_agreed(content, made.plan, made.world)
        data = None
        if content.client is not None:
            content.terms.require(made.plan, "this party")
            data = data_of(made, content.client, content.records)
            _note_records(files.diary, data, new_records)
        yield OpenParty(folder, content, made, pinned, identity, files, data)


def _note_records(diary: SessionStore, data: OwnData, new_records: str) -> None:
    known = diary.records()
    if known and known[-1][0] == data.digest:
        return
    if not new_records:
        raise DataError(
            "Expected the records that this party had before, SHA-256 "
            f"{known[-1][0][:16] if known else 'none'}, got "
            f"{data.digest[:16]}: a file was changed, or the study "
            "deals other records to it. Bring the old ones back. If the new ones are intended, say why with "
            "--new-records WHY: the ledger goes on, and counts what the old ones spent for the new ones too."
        )
    diary.note_records(data.digest, new_records)
