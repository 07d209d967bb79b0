"""A party's one file: killed at any of its writes, on a full disk, or older than its counter."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from sqlite3 import Connection, connect
from typing import Any, cast

import pytest
from support.party_folders import MASKED, Asking, enrolled, made, names

from securefl.accounting.note import HeadNote
from securefl.core.errors import DataError
from securefl.core.release import SERVER
from securefl.deployment import folder as folders
from securefl.deployment.files import Files
from securefl.deployment.party_setup import PartyStudy
from securefl.deployment.server import PartyThread, Relay, Served
from securefl.deployment.status import status
from securefl.storage import database
from securefl.storage.counter import Counter
from securefl.storage.database import Database
from securefl.storage.read_only import read

ME = "client-0001"


@pytest.fixture(autouse=True)
def _built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        PartyStudy, "of", classmethod(lambda cls, study, arm, seed, keeper=None: made(study.text))
    )


class Shots:
    """Copies of a party's folder and counter after each of its writes: what a kill at that moment leaves."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places = (root / ME, root / "counters" / ME)
        self.taken: list[Path] = []
        self._root = root / "shots"
        self._after(monkeypatch, Counter, "note", lambda own, *_: own.folder == self.places[1])
        self._after(monkeypatch, HeadNote, "write", lambda *_: True)
        for name in ("_transaction", "_step"):
            monkeypatch.setattr(database, name, self._taken_after(getattr(database, name)))
        self._after(monkeypatch, Database, "_commit", lambda own: str(own.path) == str(self.file))

    @property
    def file(self) -> Path:
        return self.places[0] / "ledger.sqlite"

    def _taken_after(self, change: Any) -> Any:
        @contextmanager
        def changed(db: Connection) -> Iterator[None]:
            with change(db):
                yield
            if db.execute("PRAGMA database_list").fetchone()[2] == str(self.file):
                self.take()

        return changed

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
def others(root: Path) -> Iterator[Callable[[Mapping[str, bytes]], dict[str, bytes]]]:
    """The exchange with all clients but one."""
    with ExitStack() as stack:
        parties = {
            name: stack.enter_context(folders.opened(root / name)).session()
            for name in names(made(MASKED))
            if name not in (ME, SERVER)
        }
        yield lambda sent: {name: one.answer(sent[name]) for name, one in parties.items() if name in sent}


def content(home: Path) -> list[str]:
    """All that a party's file holds, as another process reads it."""
    return read(home / "ledger.sqlite", lambda db: list(db.iterdump()))


def test_killed_at_any_write_it_opens_again_and_an_older_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrolled(tmp_path, MASKED)
    answered = []
    with others(tmp_path) as exchange, monkeypatch.context() as watched:
        shots = Shots(tmp_path, watched)
        with folders.opened(tmp_path / ME) as party:
            session = party.session()
            begun = len(shots.taken)

            def all_parties(sent: Mapping[str, bytes]) -> dict[str, bytes]:
                if ME not in sent:
                    return exchange(sent)
                answered.append(content(tmp_path / ME))
                own = {ME: session.answer(sent[ME])}
                assert party.files.counter.place() == party.files.place, "noted before the reply leaves"
                answered.append(content(tmp_path / ME))
                return exchange(sent) | own

            asking = Asking(tmp_path, all_parties, MASKED)
            asking.enter()
            assert 1 in asking.play(1)
            left = len(shots.taken)
    newest, seen = shots.taken[left - 1], []
    for number, shot in enumerate(shots.taken[:left]):
        shots.bring(shot)
        if number >= begun:
            assert content(tmp_path / ME) in answered, "a request is on disk as a whole, or not at all"
        with folders.opened(tmp_path / ME) as party:
            assert party.files.ledger is not None
            rows = len(party.files.ledger.rows())
            seen.append((party.files.diary.newest()[0], rows, party.files.newest(asking.session)))
    assert seen == sorted(seen), "nothing that was written is gone"
    assert seen[0][0] in (0, 1)
    assert seen[-1][1] > 0
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


@pytest.mark.parametrize("pages", [0, 1])
def test_a_disk_that_is_full_in_the_middle_of_a_round_leaves_nothing_half_written(
    pages: int, tmp_path: Path
) -> None:
    """Of a request's reservation, secret and acts, all are on disk or none, and no reply leaves without."""
    enrolled(tmp_path, MASKED)
    small_pages(tmp_path / ME / "ledger.sqlite")
    files, failed = list[Files](), list[str]()

    @contextmanager
    def opening() -> Iterator[Served]:
        with folders.opened(tmp_path / ME) as party:
            files.append(party.files)
            session = party.session()
            yield Served(lambda relay, request: session.answer(request), party.files.diary.refuse)

    with others(tmp_path) as exchange, PartyThread(opening) as thread:

        def all_parties(sent: Mapping[str, bytes]) -> dict[str, bytes]:
            replies, before = exchange(sent), content(tmp_path / ME)
            if ME not in sent:
                return replies
            try:
                own = thread.run(lambda: thread.answer(cast(Relay, None), sent[ME])).result()
            except DataError as error:
                failed.append(str(error))
                assert content(tmp_path / ME) == before
                return replies
            return {**replies, ME: own}

        asking = Asking(tmp_path, all_parties, MASKED)
        asking.enter()
        thread.run(lambda: full_after(pages, files[-1])).result()
        assert asking.play(1) == [0, 2, 3], "the sum goes on without it"
        assert len(failed) == 1
        assert "disk is full" in failed[0]
        # There is room again: the party was opened anew, as after a restart.
        asking.transport.leave([ME])
        assert ME in asking.enter()
        assert len(files) == 2
        assert asking.play(2) == [0, 1, 2, 3]
        assert len(failed) == 1


def small_pages(file: Path) -> None:
    """Rewrite a file with the smallest pages, so that each row needs a new one."""
    with closing(connect(file)) as db:
        for statement in ("PRAGMA journal_mode = DELETE", "PRAGMA page_size = 512", "VACUUM"):
            db.execute(statement).fetchall()


def full_after(pages: int, own: Files) -> None:
    """Let the file grow by so many pages."""
    ((now,),) = own.file.rows("PRAGMA page_count")
    own.file.rows(f"PRAGMA max_page_count = {now + pages}")


def test_its_owner_reads_the_status_while_a_request_is_at_work(tmp_path: Path) -> None:
    """A request may take hours, of which the file has nothing before its end."""
    enrolled(tmp_path, MASKED)
    with folders.opened(tmp_path / ME) as party, party.files.file.together(party.files.note):
        party.files.diary.enter(bytes(32), "a study")
        assert status(tmp_path / ME)["sessions"]["count"] == 0
    assert status(tmp_path / ME)["sessions"]["count"] == 1
