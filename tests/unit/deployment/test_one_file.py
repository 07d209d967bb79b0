"""A party's one file: killed at any of its writes, on a full disk, or older than its counter."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from sqlite3 import Connection, connect
from typing import Any

import pytest
from support.every import every
from support.party_folders import MASKED, Asking, enrolled, made, names

from securefl.accounting.note import HeadNote
from securefl.core.errors import DataError
from securefl.core.release import SERVER
from securefl.deployment import folder as folders
from securefl.deployment import keys
from securefl.deployment.messages import REFUSED, Enter, Entered, decode_envelope, encode_envelope
from securefl.storage import database
from securefl.storage.counter import Counter

pytestmark = pytest.mark.usefixtures("built_once")

ME = "client-0001"


class Shots:
    """Copies of a party's folder and counter after each of its writes: what a kill at that moment leaves."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places = (root / ME, root / "counters" / ME)
        self.taken: list[Path] = []
        self._root = root / "shots"
        self._after(monkeypatch, Counter, "note", lambda own, *_: own.folder == self.places[1])
        self._after(monkeypatch, HeadNote, "write", lambda *_: True)
        whole, ledger = database._undone, str(self.places[0] / "ledger.sqlite")

        @contextmanager
        def undone(db: Connection, *statements: str) -> Iterator[None]:
            with whole(db, *statements):
                yield
            # A step alone is on no disk.
            whole_one = statements == database._TRANSACTION
            if whole_one and db.execute("PRAGMA database_list").fetchone()[2] == ledger:
                self.take()

        monkeypatch.setattr(database, "_undone", undone)

    def _after(self, monkeypatch: pytest.MonkeyPatch, kind: Any, name: str, mine: Any) -> None:
        real = getattr(kind, name)

        def written(*args: Any) -> None:
            real(*args)
            if mine(*args):
                self.take()

        monkeypatch.setattr(kind, name, written)

    def take(self) -> None:
        shot = self._root / f"{len(self.taken)}"
        for place in self.places:
            shutil.copytree(place, shot / place.parent.name / place.name)
        self.taken.append(shot)

    def bring(self, shot: Path, counter: Path | None = None) -> None:
        """Put the folder of one shot in its place, with its own counter or that of another."""
        for place, found in zip(self.places, (shot, counter or shot), strict=True):
            shutil.rmtree(place)
            shutil.copytree(found / place.parent.name / place.name, place)


@contextmanager
def serving(root: Path) -> Iterator[Asking]:
    with folders.opened(root / ME) as party:
        session = party.session()

        def exchange(sent: Mapping[str, bytes], entering: bool) -> dict[str, bytes]:
            if ME not in sent:
                return {}
            own = {ME: session.answer(sent[ME])}
            assert party.files.counter.place() == party.files.place, "noted before the reply leaves"
            return own

        yield Asking(root, exchange, MASKED)


def test_killed_at_any_write_it_opens_again_and_an_older_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled(tmp_path, MASKED)
    with monkeypatch.context() as watched:
        shots = Shots(tmp_path, watched)
        with serving(tmp_path) as asking:
            asking.enter()
            asking.server.retries_left = 0
            asking.play(1)
            left = len(shots.taken)
    newest, seen = shots.taken[left - 1], []
    for shot in shots.taken[:left]:
        shots.bring(shot)
        with folders.opened(tmp_path / ME) as party:
            assert party.files.ledger is not None
            rows = len(party.files.ledger.rows())
            seen.append((party.files.diary.newest()[0], rows, party.files.newest(asking.session)))
    assert seen == sorted(seen), "nothing that was written is gone"
    assert seen[0][0] in (0, 1)
    assert seen[-1][2] == 1, "the reply has left, and the round is never played again"
    older = [shot for shot, one in zip(shots.taken, seen, strict=False) if one < seen[-1]]
    assert older
    for shot in older:
        shots.bring(shot, counter=newest)
        with pytest.raises(DataError, match="older copy"), folders.opened(tmp_path / ME):
            pass
    shots.bring(newest)
    with folders.opened(tmp_path / ME):
        pass


def test_on_a_full_disk_it_enters_no_session_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    enrolled(tmp_path, MASKED)
    of, own = made(MASKED), keys.read(tmp_path / SERVER, SERVER)
    with folders.opened(tmp_path / ME) as party:
        # The long name of the study needs a new page of the file.
        enter = Enter.of(of.plan, "s" * 4000, of.work, party.pinned, bytes(32), own)
        request, session, file = encode_envelope(enter), party.session(), party.files.diary._db
        pages = file.rows("PRAGMA page_count")[0][0]
        file.rows(f"PRAGMA max_page_count = {pages}")
        assert session.answer(request) == REFUSED
        assert party.files.diary.sessions() == []
        assert "disk is full" in party.files.diary.refusals()[0].text
        file.rows(f"PRAGMA max_page_count = {100 * pages}")
        assert decode_envelope(session.answer(request), Entered, sender=ME).number == 0
        assert len(party.files.diary.sessions()) == 1


@every("pages", [0, 1])
def test_on_a_disk_that_fills_in_the_middle_of_a_round_the_sum_goes_on_without_it(
    pages: int, tmp_path: Path
) -> None:
    enrolled(tmp_path, MASKED)
    with closing(connect(tmp_path / ME / "ledger.sqlite")) as db:
        # With the smallest pages each row needs a new one.
        for statement in ("PRAGMA journal_mode = DELETE", "PRAGMA page_size = 512", "VACUUM"):
            db.execute(statement).fetchall()
    refused = []
    with ExitStack() as stack:
        clients = [name for name in names(made(MASKED)) if name != SERVER]
        parties = {name: stack.enter_context(folders.opened(tmp_path / name)) for name in clients}
        sessions = {name: party.session() for name, party in parties.items()}
        file = parties[ME].files.diary._db

        def exchange(sent: Mapping[str, bytes], entering: bool) -> dict[str, bytes]:
            replies = {name: sessions[name].answer(own) for name, own in sent.items() if name in sessions}
            refused.extend(name for name, reply in replies.items() if reply == REFUSED)
            return replies

        asking = Asking(tmp_path, exchange, MASKED)
        asking.enter()
        ((now,),) = file.rows("PRAGMA page_count")
        file.rows(f"PRAGMA max_page_count = {now + pages}")
        assert asking.play(1) == [0, 2, 3]
        assert set(refused) == {ME}
        file.rows(f"PRAGMA max_page_count = {100 * now}")
        # There is room again. It left the session, as after a restart, and enters it by the next request.
        asking.transport.leave([ME])
        assert ME in asking.enter()
        assert asking.play(2) == [0, 1, 2, 3]
