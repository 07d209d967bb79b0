"""The rules of attempts and rounds, each against a journal in memory, and what a restart keeps of them."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.every import every
from support.tiny_secagg import agreement, entropy, header, journal

from securefl.core.acts import Begin, RecordAct, entering
from securefl.core.agreement import Question
from securefl.core.errors import DataError
from securefl.core.keys import SecretKey
from securefl.core.release import KEY_HOLDER
from securefl.core.wire import Header
from securefl.storage.database import Database, joined
from securefl.storage.journal import KIND, Journal

SESSION = header().session
NAMES = tuple(f"client-000{number}" for number in range(5))


def place(number: int = 1, attempt: int = 1, stage: int = 2) -> Header:
    return Header(SESSION, number, attempt, stage)


def begin(
    at: Header | None = None,
    *,
    members: tuple[str, ...] = NAMES,
    signers: int = 4,
    once: bool = False,
    ask: int = 0,
    again: int = 0,
    context: str = "",
    client: str = NAMES[0],
    name: str = "update",
) -> Begin:
    at = at or place()
    question = Question(SESSION, 0 if ask else at.round, name, ask, again)
    told = hashlib.sha256(repr((at.place(), members, question, context)).encode()).digest()
    return Begin(
        client=client,
        header=at,
        questions=(question,),
        members=members,
        signers=signers,
        once=frozenset({name} if once else ()),
        context=told,
    )


def act(begun: Begin, kind: Any = "sign", digest: bytes = b"one set") -> RecordAct:
    return RecordAct(
        client=begun.client, header=begun.header, questions=begun.questions, act=kind, digest=digest
    )


def answer(kept: Journal, order: Begin | RecordAct) -> Any:
    [found] = kept.record([order])
    return found


def allowed(kept: Journal, order: Begin) -> bool:
    found = answer(kept, order)
    assert found is None or isinstance(found, SecretKey)
    return found is not None


# Attempts go up -----------------------------------------------------------------------------------


def test_attempts_go_up_and_never_down() -> None:
    kept = journal()
    assert allowed(kept, begin(place(attempt=2)))
    assert not allowed(kept, begin(place(attempt=1)))
    assert allowed(kept, begin(place(attempt=3)))
    assert not allowed(kept, begin(place(attempt=2), context="another task"))
    assert allowed(kept, begin(place(attempt=1, stage=3)))  # a later stage is a later place
    assert not allowed(kept, begin(place(attempt=4)))


def test_the_same_attempt_begins_again_with_the_same_secret() -> None:
    kept = journal()
    first, again = answer(kept, begin()), answer(kept, begin())
    assert first == again
    assert len(first.reveal()) == 32


def test_two_agreements_in_one_place_are_two_attempts() -> None:
    kept = journal()
    assert allowed(kept, begin(context="one task"))
    assert not allowed(kept, begin(context="another task"))


def test_a_client_acts_in_its_newest_attempt_alone() -> None:
    kept = journal()
    old, new = begin(), begin(place(attempt=2))
    assert allowed(kept, old)
    assert answer(kept, act(old, "deal"))
    assert allowed(kept, new)
    for kind in ("deal", "mask", "sign"):
        assert answer(kept, act(old, kind, b"not done before")) is False
    for kind in ("deal", "mask", "sign"):
        assert answer(kept, act(new, kind)) is True


def test_a_round_is_played_again_attempt_by_attempt(tmp_path: Path) -> None:
    """Cut off in its second attempt: what was done in the first may be done again, and nothing more."""
    old, new = begin(), begin(place(attempt=2))
    with Journal(tmp_path / "journal.sqlite") as kept:
        secret = answer(kept, old)
        assert answer(kept, act(old, "deal"))
        assert answer(kept, new) == secret
        assert answer(kept, act(new, "deal", b"fewer"))
    with Journal(tmp_path / "journal.sqlite") as kept:
        assert answer(kept, old) == secret
        assert answer(kept, act(old, "deal")) is True
        for kind in ("mask", "sign"):
            assert answer(kept, act(old, kind)) is False, "the newer attempt has begun"
        assert answer(kept, new) == secret
        assert answer(kept, act(new, "deal", b"fewer")) is True
        for kind in ("mask", "sign"):
            assert answer(kept, act(new, kind)) is True
        assert answer(kept, act(old)) is False


def test_what_was_said_is_said_again_until_the_round_is_over(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.sqlite") as kept:
        assert kept.said("server", place(1), "request", lambda: b"first") == b"first"
    with Journal(tmp_path / "journal.sqlite") as kept:
        assert kept.said("server", place(1), "request", lambda: b"second") == b"first"
        assert kept.said("server", place(1), "other", lambda: b"second") == b"second"
        assert kept.said("key-holder", place(1), "request", lambda: b"third") == b"third"
        assert kept.said("server", place(2), "request", lambda: b"fourth") == b"fourth"
    assert b"first" not in content(tmp_path / "journal.sqlite")


def test_nothing_is_recorded_of_an_attempt_that_was_not_begun() -> None:
    kept = journal()
    for kind in ("deal", "mask", "sign"):
        assert answer(kept, act(begin(), kind)) is False


# Cohorts --------------------------------------------------------------------------------------------


def test_a_cohort_that_grows_is_refused() -> None:
    """It is held against the first cohort, not against the one before."""
    kept = journal()
    assert allowed(kept, begin(members=NAMES[:4]))
    assert not allowed(kept, begin(place(attempt=2), members=NAMES))
    assert not allowed(kept, begin(place(attempt=2), members=(NAMES[0], NAMES[4])))
    assert allowed(kept, begin(place(attempt=2), members=NAMES[:3]))
    assert allowed(kept, begin(place(attempt=3), members=NAMES[:4]))


def test_fewer_signers_are_refused_and_more_are_not() -> None:
    kept = journal()
    assert allowed(kept, begin(signers=4))
    assert not allowed(kept, begin(place(attempt=2), signers=3))
    assert allowed(kept, begin(place(attempt=3), signers=5))
    assert allowed(kept, begin(place(attempt=4), signers=4))


# Signing --------------------------------------------------------------------------------------------


@every("kind", ["deal", "mask", "sign"])
def test_an_act_may_be_repeated_and_not_changed(kind: str) -> None:
    kept = journal()
    begun = begin()
    assert allowed(kept, begun)
    assert answer(kept, act(begun, kind)) is True
    assert answer(kept, act(begun, kind)) is True
    assert answer(kept, act(begun, kind, b"another set")) is False
    assert answer(kept, act(begun, kind)) is True


def test_after_signing_no_other_attempt_is_entered() -> None:
    kept = journal()
    begun = begin()
    assert allowed(kept, begun)
    assert answer(kept, act(begun))
    for later in (place(attempt=2), place(attempt=1, stage=3)):
        assert not allowed(kept, begin(later))
        assert not allowed(kept, begin(later, members=NAMES[:4]))
    assert allowed(kept, begun)  # its own attempt again, after a restart
    assert answer(kept, act(begun)) is True
    # Put anew, with fresh noise and a fresh charge, it is another question.
    assert allowed(kept, begin(place(attempt=2), again=1))


def test_an_attempt_with_one_signed_question_is_not_entered_for_the_other_either() -> None:
    """All questions of an attempt, or none: a refused one leaves no trace of the others."""
    kept = journal()
    one, other = begin(), begin(place(attempt=2), name="count")
    both = replace(begin(place(attempt=2)), questions=(*other.questions, *one.questions))
    assert allowed(kept, one)
    assert answer(kept, act(one))
    assert not allowed(kept, both)
    assert answer(kept, act(other, "deal")) is False
    assert allowed(kept, other)


def test_clients_and_sessions_do_not_know_of_each_other() -> None:
    kept = journal()
    begun = begin()
    assert allowed(kept, begun)
    assert answer(kept, act(begun))
    assert allowed(kept, begin(place(attempt=2), client=NAMES[1]))
    elsewhere = Header(bytes(32), 1, 2, 2)
    strange = replace(begun, header=elsewhere, questions=(Question(bytes(32), 1, "update"),))
    assert allowed(kept, strange)


# Rounds and values that cannot change ------------------------------------------------------------------


def test_rounds_go_up_and_secrets_with_them() -> None:
    kept = journal()
    first = answer(kept, begin(place(1)))
    second = answer(kept, begin(place(2)))
    assert first != second
    assert answer(kept, begin(place(1))) is None
    assert answer(kept, begin(place(1, attempt=9), name="other")) is None
    assert answer(kept, begin(place(2))) == second
    assert kept.secrets([NAMES[0]], SESSION, 1) == [None]


def test_a_value_that_cannot_change_is_signed_once_in_a_session() -> None:
    kept = journal()
    first = begin(place(1), once=True)
    assert allowed(kept, first)
    assert answer(kept, act(first))
    for later in (
        begin(place(2), once=True),
        begin(place(3, stage=9), once=True, ask=1),
        begin(place(4), once=True, members=NAMES[:3], signers=9),
    ):
        assert not allowed(kept, later)
    assert allowed(kept, begin(place(4), once=True, again=1))  # noised anew: another value
    changing = journal()
    assert allowed(changing, begin(place(1)))
    assert answer(changing, act(begin(place(1))))
    assert allowed(changing, begin(place(2)))


def test_a_value_that_cannot_change_is_signed_in_its_newest_round_alone() -> None:
    """The attempt of round 1 still waits for a signature when round 2 asks for the same value."""
    for newest_signs in (False, True):
        kept = journal()
        first, second = begin(place(1), once=True), begin(place(2), once=True)
        assert allowed(kept, first)
        assert answer(kept, act(first, "mask"))
        assert allowed(kept, second)
        if newest_signs:
            assert answer(kept, act(second)) is True
        assert answer(kept, act(first)) is False
        assert answer(kept, act(second)) is True


def test_a_value_that_cannot_change_is_one_question_over_its_asks() -> None:
    """An introduction of it and an Ask of the rounds open one sum together."""
    kept = journal()
    introduced, asked = begin(place(1), once=True, ask=1), begin(place(1, stage=3), once=True)
    assert allowed(kept, introduced)
    assert allowed(kept, asked)
    assert answer(kept, act(introduced)) is False
    assert not allowed(kept, begin(place(1, attempt=2), once=True, ask=1))  # below the place of the other
    assert answer(kept, act(asked)) is True


def test_a_finished_round_is_wiped_but_for_values_that_cannot_change(tmp_path: Path) -> None:
    """What a secret masked in round 1 is not to be read off the disk in round 2."""
    path = tmp_path / "journal.sqlite"
    with Journal(path) as kept:
        # More than one, so that the next round's record does not happen to lie over all of them.
        asked = [begin(place(1), name=f"value {number}") for number in range(20)]
        secret = answer(kept, asked[0])
        assert all(allowed(kept, one) for one in asked)
        assert allowed(kept, begin(place(1), once=True, name="statistic"))
        assert answer(kept, act(begin(place(1), once=True, name="statistic")))
        assert secret.reveal() in content(path)
        assert all(one.context in content(path) for one in asked)
        assert allowed(kept, begin(place(2)))
    assert secret.reveal() not in content(path)
    assert not any(one.context in content(path) for one in asked)
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT name, round FROM questions ORDER BY round").fetchall()
    db.close()
    assert rows == [("statistic", 1), ("update", 2)]
    with Journal(path) as kept:
        assert not allowed(kept, begin(place(3), once=True, name="statistic"))


def content(path: Path) -> bytes:
    """All bytes of the database, once its log is in it."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return b"".join(file.read_bytes() for file in path.parent.iterdir())


# The key holder ---------------------------------------------------------------------------------------


def opening(digest: bytes, at: Header | None = None, once: bool = False) -> RecordAct:
    at = at or place()
    question = Question(SESSION, 0 if once else at.round, "update")
    return RecordAct(client=KEY_HOLDER, header=at, questions=(question,), act="open", digest=digest)


def test_the_key_holder_opens_one_total_of_a_question() -> None:
    kept = journal()
    assert answer(kept, opening(b"total")) is True
    assert answer(kept, opening(b"total")) is True
    assert answer(kept, opening(b"another")) is False
    assert answer(kept, opening(b"another", place(attempt=2))) is False
    assert answer(kept, opening(b"total", place(attempt=2))) is True
    assert answer(kept, opening(b"next round", place(2))) is True
    assert answer(kept, opening(b"total")) is False  # of a round that is over


def test_the_key_holder_opens_a_value_that_cannot_change_once_in_a_session() -> None:
    kept = journal()
    assert answer(kept, opening(b"total", place(1), once=True)) is True
    assert answer(kept, opening(b"another", place(2), once=True)) is False
    assert answer(kept, opening(b"total", place(2), once=True)) is True


# The file ---------------------------------------------------------------------------------------------


def test_everything_stands_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path) as kept:
        secret = answer(kept, begin())
        lasting = kept.lasting(NAMES, SESSION)
        for kind in ("deal", "mask", "sign"):
            assert answer(kept, act(begin(), kind))
    with Journal(path) as kept:
        assert answer(kept, begin()) == secret
        assert kept.lasting(NAMES, SESSION) == lasting
        for kind in ("deal", "mask", "sign"):
            assert answer(kept, act(begin(), kind)) is True
            assert answer(kept, act(begin(), kind, b"opposite")) is False
        assert not allowed(kept, begin(place(attempt=2)))


def test_a_lost_record_knows_another_secret(tmp_path: Path) -> None:
    """Nothing that was drawn before comes out a second time: the session cannot go on, and says nothing."""
    with Journal(tmp_path / "one") as kept, Journal(tmp_path / "other") as lost:
        assert answer(kept, begin()) != answer(lost, begin())
        assert kept.lasting(NAMES, SESSION) != lost.lasting(NAMES, SESSION)


def test_a_wave_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal(path) as kept:
        db = sqlite3.connect(path)
        db.execute(
            "CREATE TRIGGER full BEFORE INSERT ON questions WHEN NEW.party = 'client-0001' "
            "BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
        db.commit()
        with pytest.raises(DataError, match="SQLITE_CONSTRAINT_TRIGGER"):
            kept.record([begin(), begin(client=NAMES[1])])
        assert db.execute("SELECT COUNT(*) FROM questions").fetchone() == (0,)
        assert db.execute("SELECT COUNT(*) FROM parties").fetchone() == (0,)
        db.execute("DROP TRIGGER full")
        db.commit()
        db.close()
        assert all(answer is not None for answer in kept.record([begin(), begin(client=NAMES[1])]))


# Rows of one transaction ---------------------------------------------------------------------------


def test_two_processes_see_each_others_acts(tmp_path: Path) -> None:
    """A row is not remembered beyond its transaction."""
    path = tmp_path / "journal.sqlite"
    with Journal(path) as one, Journal(path) as other:
        assert allowed(one, begin())
        assert answer(other, act(begin(), digest=b"their set"))
        assert not answer(one, act(begin(), digest=b"our set"))


def test_a_round_reads_a_row_once(tmp_path: Path) -> None:
    file = Database(tmp_path / "run.sqlite", joined(KIND, lost="Begin anew."))
    with closing(file), Journal(file) as kept:
        read: list[str] = []
        for before in (1, 2):  # in one commit, and after it: then from the file
            with file.together(read.clear):
                file._db.set_trace_callback(read.append)
                assert allowed(kept, begin())
                assert all(answer(kept, act(begin(), kind)) for kind in ("deal", "mask", "sign"))
                selected = [line.split()[3] for line in read if line.startswith("SELECT")]
                assert {name: selected.count(name) for name in set(selected)} == {
                    "parties": 1,
                    "attempts": 1,
                    "questions": 1,
                }, before


def test_a_round_that_is_over_is_over_in_the_same_transaction() -> None:
    over, now = begin(place(1)), begin(place(2))
    assert Journal().record([over, now, act(over, "deal"), act(now, "deal")])[2:] == [False, True]


def test_what_a_failed_step_recorded_does_not_count(tmp_path: Path) -> None:
    file = Database(tmp_path / "run.sqlite", joined(KIND, lost="Begin anew."))
    with closing(file), Journal(file) as kept:
        file._db.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON questions WHEN NEW.party = 'client-0001' "
            "BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
        with file.together(lambda: None):
            with pytest.raises(DataError, match="SQLITE_CONSTRAINT_TRIGGER"):
                kept.record([begin(), begin(client=NAMES[1])])
            assert not answer(kept, act(begin(), "deal"))
            assert allowed(kept, begin())
            assert answer(kept, act(begin(), "deal"))


def test_an_agreement_is_entered_as_it_stands() -> None:
    agreed = agreement(5)
    kept = Journal(random=entropy("entering"))
    signers = agreed.parameters.signers
    assert allowed(kept, entering(NAMES[0], agreed, signers))
    told = replace(agreed, task=bytes(32))
    assert not allowed(kept, entering(NAMES[0], told, signers))
    assert allowed(kept, entering(NAMES[0], replace(told, header=header(1, 2)), signers))


def test_the_first_total_that_was_told_stays(tmp_path: Path) -> None:
    """A large one in one round and a small one in another would weigh the same clients differently."""
    parties, path = ["client-0000", "client-0001"], tmp_path / "journal.sqlite"
    for told in (100, 60):
        with Journal(path) as kept:
            assert kept.totals(parties, bytes(32), [told] * 2) == [100, 100]
            assert kept.totals(parties, bytes(32), [10] * 2) == [100, 100]
            assert kept.totals(parties, bytes([1] * 32), [told, 7]) == [100, 7]
