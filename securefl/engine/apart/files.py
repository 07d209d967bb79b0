"""What a party has on its disk, held by one process: ledger, journal and diary, and a counter elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from securefl.accounting.ledger import Ledger
from securefl.accounting.store import Terms
from securefl.core.errors import DataError
from securefl.engine.apart.session_store import DIARY, SessionStore
from securefl.storage.counter import Counter, Place, require_outside
from securefl.storage.folder_lock import alone
from securefl.storage.journal import Journal

LEDGER, JOURNAL = "ledger.sqlite", "acts.sqlite"


@dataclass(frozen=True, eq=False)
class Files:
    """The open files of one party. ledger: a client's."""

    name: str
    journal: Journal
    diary: SessionStore
    counter: Counter
    ledger: Ledger | None

    def newest(self, session: bytes) -> int:
        """The newest round of a session that ledger or journal know, or 0."""
        return max(self._released(session), self._acted(session))

    @property
    def place(self) -> Place:
        """How far the party got."""
        sessions, last = self.diary.newest()
        return Place(sessions=sessions, released=self._released(last), acted=self._acted(last))

    def note(self) -> None:
        """Note in the counter how far the party got.

        It comes before a reply leaves: whoever has the reply could otherwise have this party forget, by a
        backup, that it was here.
        """
        self.counter.note(self.place)

    def _released(self, session: bytes) -> int:
        return 0 if self.ledger is None else self.ledger.newest(session, self.name)

    def _acted(self, session: bytes) -> int:
        return self.journal.newest(session, self.name)


def there(folder: Path) -> bool:
    """Whether a party has any file in this folder."""
    return any((folder / name).exists() for name in (LEDGER, JOURNAL, DIARY))


@contextmanager
def begun(name: str, folder: Path, counter: Counter, terms: Terms | None) -> Iterator[Files]:
    """Make the files and the counter of a new party, in a folder without any, and hold them.

    terms: of a client's ledger; None for a party without one. Raises ConfigError for a counter inside the
    folder, and DataError for one that has noted another party.
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
    """Hold a party's folder and its counter, and open its files. Arguments as for `begun`.

    Raises ConfigError while another process holds one of them, or where the counter is lost. Raises DataError
    for files that do not belong together, and for an older copy of them.
    """
    counter.place()
    # Both: a copy of the folder is another folder with the same counter.
    with alone(folder), alone(counter.folder):
        _require_there(folder, JOURNAL, DIARY, *(() if terms is None else (LEDGER,)))
        with _open(name, folder, counter, terms) as files:
            files.diary.sessions()  # all rows are checked once; a request looks at the newest alone
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
        yield Files(name, journal, diary, counter, ledger)


def _require_there(folder: Path, *names: str) -> None:
    # To open one that is lost would begin it anew, and put an empty one where the newest is to go back.
    lost = [name for name in names if not (folder / name).is_file()]
    if lost:
        raise DataError(
            f"Expected the files that {folder} began with, got no {', '.join(lost)}. Put the newest back, "
            "all of them from one time."
        )


def _bind(folder: Path, diary: SessionStore, name: str, identity: str) -> None:
    if diary.bound(name, identity) != identity:
        raise DataError(
            f"Expected the {name} that this folder began with, got another in {folder}: it was lost, or put "
            "there from another folder. Restore the folder from one backup."
        )
