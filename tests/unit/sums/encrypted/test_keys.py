"""The key holder's keys of encrypted sums: how much each opened is known after a restart too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from securefl.core.release import KEY_HOLDER
from securefl.core.wire import Header
from securefl.storage.journal import Journal
from securefl.storage.own_record import OwnRecord
from securefl.sums.encrypted import keys
from securefl.sums.encrypted.keys import SumKeys

PLACE = Header(bytes(32), 1, 1, 0)


def opens(own: SumKeys, integers: int, request: bytes) -> None:
    own.openings.once(request, integers, keys.MOST_INTEGERS, lambda: b"", sender="server")


def test_a_restart_forgets_no_opening() -> None:
    """The flooding is sized for the count: after a restart the key has opened all that it had before."""
    record, next_ = OwnRecord(KEY_HOLDER, Journal()), replace(PLACE, stage=1)
    first = SumKeys(record)
    first.enter(PLACE, 100)
    opens(first, 100, b"one")
    first.enter(next_, 50)
    opens(first, 50, b"two")
    again = SumKeys(record)
    again.enter(next_, 50)
    assert again.pair.public == first.pair.public
    assert again.opened >= first.opened == 150
    opens(again, 50, b"two")  # the same request once more, of a server that did not hear the answer
    assert again.opened == 200
    again.enter(replace(PLACE, round=2), 10)
    assert again.opened == 200


def test_a_restart_at_a_place_of_its_own_takes_a_new_key() -> None:
    """What the lost process opened since is nowhere on record, so its key opens nothing more."""
    record = OwnRecord(KEY_HOLDER, Journal())
    first = SumKeys(record)
    first.enter(PLACE, 100)
    again = SumKeys(record)
    again.enter(replace(PLACE, stage=1), 100)
    assert again.pair.public != first.pair.public


def test_a_key_that_was_renewed_in_a_round_is_that_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MOST_INTEGERS", 100)
    record, next_ = OwnRecord(KEY_HOLDER, Journal()), replace(PLACE, stage=1)
    first = SumKeys(record)
    first.enter(PLACE, 80)
    opens(first, 80, b"one")
    before = first.pair.public
    first.enter(next_, 80)
    assert first.pair.public != before
    again = SumKeys(record)
    again.enter(next_, 80)
    assert again.pair.public == first.pair.public
