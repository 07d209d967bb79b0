"""A party's files: ledger, journal and diary in a folder, and a counter elsewhere. One process holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from securefl.accounting.ledger import Ledger
from securefl.accounting.store import Terms
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState, ValueSpec
from securefl.core.errors import DataError
from securefl.deployment.party import PartySession
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.session_cap import SessionCap
from securefl.deployment.session_store import DIARY, SessionStore
from securefl.engine.party import Party
from securefl.mechanisms.charges import bare
from securefl.storage.counter import Counter, Place, require_outside
from securefl.storage.folder_lock import alone
from securefl.storage.journal import Journal

LEDGER, JOURNAL = "ledger.sqlite", "acts.sqlite"
Count = Callable[[bytes], str]
"""Counts a session without noise, durably. Gives the reason if there may be no more; else an empty text."""


@dataclass(frozen=True, eq=False)
class Files:
    """The open files of one party. ledger: None unless the party is a client."""

    name: str
    journal: Journal
    diary: SessionStore
    counter: Counter
    ledger: Ledger | None

    def newest(self, session: bytes) -> int:
        """The newest round of a session in ledger or journal, or 0."""
        return max(self._released(session), self._acted(session))

    @property
    def place(self) -> Place:
        """The party's progress: its counts in ledger, journal and diary."""
        sessions, last = self.diary.newest()
        return Place(
            sessions=sessions,
            released=self._released(last),
            acted=self._acted(last),
            bare=self.diary.bare_count(),
        )

    def note(self) -> None:
        """Write the party's progress into the counter."""
        self.counter.note(self.place)

    def session(
        self,
        plan: Plan,
        work: bytes,
        pinned: PinnedRoster,
        spec: Mapping[str, ValueSpec],
        make: Callable[[Count, bytes, Mapping[int, ClientState]], Party],
        *,
        allowed: int,
        how: str,
    ) -> PartySession:
        """The party over all its sessions, with these files.

        Args:
            plan, work, pinned: as of `PartySession`.
            spec: the specs of the values that it may be asked for, by name.
            make: makes a session's party from the function that counts sessions without noise, the session,
                and its stored client state.
            allowed, how: as of `SessionCap`.
        """
        counted = self.ledger is not None and any(bare(plan, one) for one in spec.values())
        cap = SessionCap(self.diary, allowed, how, counted)
        return PartySession(
            self.name,
            plan,
            work,
            pinned,
            self.diary,
            partial(make, cap.count),
            newest=self.newest,
            barred=cap.refusal,
            note=self.note,
        )

    def _released(self, session: bytes) -> int:
        return 0 if self.ledger is None else self.ledger.newest(session, self.name)

    def _acted(self, session: bytes) -> int:
        return self.journal.newest(session, self.name)


def there(folder: Path) -> bool:
    """Whether this folder has any file of a party."""
    return any((folder / name).exists() for name in (LEDGER, JOURNAL, DIARY))


@contextmanager
def begun(name: str, folder: Path, counter: Counter, terms: Terms | None) -> Iterator[Files]:
    """Create the files and the counter of a new party, in a folder without any, and hold them.

    terms: of a client's ledger; None for a party without one. Raises ConfigError if the counter is inside the
    folder, and DataError if it belongs to another party.
    """
    require_outside(counter.folder, folder)
    with alone(folder), alone(counter.folder):
        if not counter.there:
            counter.begin()
        with _open(name, folder, counter, terms) as files:
            counter.require(files.place)
            yield files


@contextmanager
def held(name: str, folder: Path, counter: Counter, terms: Terms | None) -> Iterator[Files]:
    """Lock a party's folder and its counter, and open its files. Arguments as for `begun`.

    Raises ConfigError if another process holds one of them, or if the counter is lost. Raises DataError if
    the files do not belong together, or are an older copy.
    """
    counter.place()
    # Both are locked, because a copy of the folder is another folder with the same counter.
    with alone(folder), alone(counter.folder):
        _require_there(folder, JOURNAL, DIARY, *(() if terms is None else (LEDGER,)))
        with _open(name, folder, counter, terms) as files:
            files.diary.sessions()  # checks all rows once; a request checks only the newest
            counter.require(files.place)
            yield files


@contextmanager
def _open(name: str, folder: Path, counter: Counter, terms: Terms | None) -> Iterator[Files]:
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(folder / JOURNAL))
        diary = SessionStore(folder / DIARY)
        stack.callback(diary.close)
        _bind(folder, diary, "journal", journal.identity)
        ledger = None
        if terms is not None:
            ledger = stack.enter_context(Ledger(folder / LEDGER, terms, counter=counter.ledger))
            _bind(folder, diary, "ledger", ledger.identity)
        _bind(folder, diary, "party", name)
        yield Files(name, journal, diary, counter, ledger)


def _require_there(folder: Path, *names: str) -> None:
    # Opening a lost file would create an empty one in the place where the newest copy must be restored.
    lost = [name for name in names if not (folder / name).is_file()]
    if lost:
        raise DataError(
            f"Expected all files of the party in {folder}, got no {', '.join(lost)}. Restore the newest, "
            "all from one backup."
        )


def _bind(folder: Path, diary: SessionStore, name: str, identity: str) -> None:
    if diary.bound(name, identity) != identity:
        raise DataError(
            f"Expected the {name} that was created with {folder}, got another: it was lost, or copied from "
            "another folder. Restore the folder from one backup."
        )
