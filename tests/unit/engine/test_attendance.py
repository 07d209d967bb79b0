"""Attendance: who is missing, since when, and the public reason; and that no record moves it."""

from __future__ import annotations

import pytest
from support.every import every

from securefl.core.messages import client_name
from securefl.core.release import KEY_HOLDER
from securefl.engine.attendance import Absence, Absent, Attendance, Seen, spans

FIVE = frozenset(map(client_name, range(5)))


def seen(short: str = "", asked: frozenset[str] = FIVE, **absent: Absence) -> Seen:
    return Seen(asked=asked, absent={f"client-000{k[1]}": why for k, why in absent.items()}, short=short)


def test_an_answer_or_another_reason_ends_an_absence() -> None:
    known = Attendance()
    known.round(1, seen(c1=Absence.SILENT, c2=Absence.SILENT))
    known.round(2, seen(c2=Absence.REFUSED))
    absent = known.round(3, seen(c1=Absence.SILENT, c2=Absence.REFUSED)).absent
    assert absent == (
        Absent("client-0001", "silent", 3),
        Absent("client-0002", "refused the order", 2),
    )


def test_a_round_that_does_not_ask_a_party_says_nothing_of_it_and_ends_nothing() -> None:
    known = Attendance()
    known.round(1, seen(c1=Absence.SILENT))
    others = known.round(2, seen(asked=FIVE - {"client-0001"}))
    assert (others.asked, others.answered, others.absent) == (4, 4, ())
    assert known.round(3, seen(c1=Absence.SILENT)).absent[0].since == 1


def test_a_key_holder_is_named_but_not_counted_among_clients() -> None:
    asked = FIVE | {KEY_HOLDER}
    told = Attendance().round(
        1, Seen(asked=asked, absent={KEY_HOLDER: Absence.SILENT}, short="Expected the key holder.")
    )
    assert told.line() == (
        "round 1: 5 of 5 answered; key-holder silent since round 1; no sum was opened: Expected the key "
        "holder"
    )


def test_a_line_names_eight_and_counts_the_others() -> None:
    many = frozenset(map(client_name, range(20)))
    told = Attendance().round(1, Seen(asked=many, absent=dict.fromkeys(many, Absence.SILENT)))
    assert told.line().startswith("round 1: 0 of 20 answered; client-0000 silent")
    assert told.line().endswith("client-0007 silent since round 1; 12 others absent")
    assert len(told.absent) == 20


def test_who_misses_one_query_of_a_round_is_absent_and_the_latest_reason_counts() -> None:
    together = Seen.together([seen(c1=Absence.SILENT, c2=Absence.SILENT), seen(c2=Absence.INVALID)])
    assert together.absent == {"client-0001": Absence.SILENT, "client-0002": Absence.INVALID}


def test_who_is_outside_the_session_is_named_with_the_reason_of_its_entering() -> None:
    inside = seen(c1=Absence.SILENT, c2=Absence.SILENT)
    out = inside.outside({"client-0001": Absence.REFUSED, KEY_HOLDER: Absence.SILENT})
    assert out.asked == FIVE
    assert out.absent == {
        "client-0001": Absence.REFUSED,
        "client-0002": Absence.SILENT,
        KEY_HOLDER: Absence.SILENT,
    }


@every("reason", Absence)
def test_a_record_comes_back_as_it_went(reason: Absence) -> None:
    one = seen("too few", c3=reason)
    assert Seen.of(one.record()) == one


@every(
    "record",
    [
        {},
        {"asked": [], "absent": {"client-0001": "away"}, "short": ""},
        {"asked": 3, "absent": {}, "short": ""},
    ],
)
def test_another_record_is_refused(record: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        Seen.of(record)


def test_spans_have_first_and_last_round_and_how_many_it_missed() -> None:
    known = Attendance()
    four = FIVE - {"client-0001"}
    rounds = [
        known.round(1, seen(c1=Absence.SILENT)),
        known.round(2, seen(asked=four)),
        known.round(3, seen(c1=Absence.SILENT)),
        known.round(4, seen()),
        known.round(5, seen(c1=Absence.SILENT)),
    ]
    assert spans(rounds) == [
        (Absent("client-0001", "silent", 1), 3, 2),
        (Absent("client-0001", "silent", 5), 5, 1),
    ]
