"""A party's one SQLite file, with ledger, journal and diary, and its counter elsewhere. A process holds both.

Each call of the three objects is one durable commit. They come in this order, so that a party that is killed
after any of them has counted at least what left:

1. A session is entered before the party acts in it. 2. Charges are reserved, and acts recorded, before values
are made. 3. Charges are committed before the bytes exist. 4. The counter is noted before the reply leaves.

The file has one age: no restore can bring back an old journal beside a new ledger. A counter that is ahead of
the file shows an older copy, and the folder is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from securefl.accounting import store
from securefl.accounting.ledger import Ledger
from securefl.accounting.store import Terms
from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import ClientState, ValueSpec
from securefl.core.errors import DataError
from securefl.deployment import session_store
from securefl.deployment.party import PartySession
from securefl.deployment.roster import PinnedRoster
from securefl.deployment.session_cap import SessionCap
from securefl.deployment.session_store import ACTS, LEDGER, LOST, SessionStore, require_file
from securefl.engine.party import Party
from securefl.mechanisms.charges import Protection
from securefl.storage import journal as acts
from securefl.storage.counter import Counter, Place, require_outside
from securefl.storage.database import Database, joined
from securefl.storage.folder_lock import locked
from securefl.storage.journal import Journal

_OF_CLIENT = joined(store.KIND, acts.KIND, session_store.KIND, lost=LOST)
_OF_OTHERS = joined(acts.KIND, session_store.KIND, lost=LOST)
Count = Callable[[bytes], str]
"""Counts a session without noise, durably. Gives the reason if there may be no more; else an empty text."""


@dataclass(frozen=True, eq=False)
class Files:
    """The open file of one party. ledger: None unless the party is a client."""

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
        counted = self.ledger is not None and any(Protection(plan, one).bare for one in spec.values())
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


@contextmanager
def held(
    name: str, folder: Path, counter: Counter, terms: Terms | None, *, new: bool = False
) -> Iterator[Files]:
    """Lock a party's folder and its counter, and open its file.

    Args:
        terms: of a client's ledger; None for a party without one.
        new: whether the party is new, and its file and counter are made.

    Raises ConfigError if another process holds folder or counter, if the counter is lost, or, of a new party,
    inside the folder. Raises DataError if the file is lost, another party's, or an older copy.
    """
    path, kind = (folder / ACTS, _OF_OTHERS) if terms is None else (folder / LEDGER, _OF_CLIENT)
    if new:
        require_outside(counter.folder, folder)
    else:
        counter.place()
    # Both are locked, because a copy of the folder is another folder with the same counter.
    with locked(folder), locked(counter.folder), ExitStack() as stack:
        if new and not counter.there:
            counter.begin()
        # The first file of a new party may have been cut off, but a file that the counter knows was lost.
        if not new or counter.ledger.exists() or counter.place() != Place():
            require_file(path)
        file = stack.enter_context(closing(Database(path, kind)))
        ledger = None
        if terms is not None:
            ledger = stack.enter_context(Ledger(file, terms, counter=counter.ledger))
        files = Files(name, Journal(file), SessionStore(file), counter, ledger)
        if (whose := files.diary.bound("party", name)) != name:
            raise DataError(f"Expected {path} of {name}, got that of {whose}. Name the party's own folder.")
        files.diary.sessions()  # checks all rows once; a request checks only the newest
        counter.require(files.place)
        yield files
