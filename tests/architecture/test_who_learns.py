"""The tables of who learns what are those that the privacy card makes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import who_learns
from support.arms import ARMS
from support.every import every

from securefl.core.installed import entry_points
from securefl.engine import privacy_card
from securefl.linear.checked import CheckedCkks
from securefl.mechanisms import charges
from securefl.mechanisms.mechanism import Local
from securefl.sums.two_server import TwoServer

PAGE = who_learns.PAGE.read_text(encoding="utf-8")
WORDS = PAGE.split(who_learns.BEGIN)[1].split(who_learns.END)[0].strip()


def test_the_page_has_the_words_of_the_card() -> None:
    """If this fails, run `python tools/who_learns.py --write`."""
    assert who_learns.filled(PAGE) == PAGE


@every(
    ("owner", "name", "words"),
    [
        (privacy_card, "_told", lambda plan, spec, reveals: f"all of {reveals}"),
        (Local, "learns", lambda self, party: ""),
        (CheckedCkks, "key_holder_learns", "everything"),
        (TwoServer, "key_holder_learns", "everything"),
    ],
)
def test_other_words_of_the_card_are_found(
    owner: object, name: str, words: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, words)
    assert who_learns.table() != WORDS


def test_another_charge_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    none = charges.Protection(*who_learns.composed(who_learns.CASES[-2])).charge()
    monkeypatch.setattr(charges.Protection, "charge", lambda own: none)
    assert who_learns.table() != WORDS


@every("text", ["no marker", PAGE.replace(who_learns.END, ""), PAGE + PAGE])
def test_a_page_without_its_markers_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(who_learns, "CASES", who_learns.CASES[1:2])
    monkeypatch.setattr(who_learns, "state_table", str)
    with pytest.raises(ValueError, match=who_learns.BEGIN):
        who_learns.filled(text)


def test_each_protocol_stands_in_the_table_of_kept_state() -> None:
    """A protocol more is a row more, or a name in one."""
    rows = who_learns.state_table().splitlines()[2:]
    for point in entry_points(group="securefl.protocols"):
        assert any(re.search(rf"\b{point.name}\b", row.split("|")[1]) for row in rows), point.name
    assert sum(" refused " in row for row in rows) == 4


LIES = ("a server that lies", "reads the key holder's key")
"""What cards say of a server that does not follow the protocol."""
STATES = PAGE.split(who_learns.STATE)[1].split(who_learns.END)[0].strip()
ROWS = [line.split("|")[1:-1] for line in STATES.splitlines()[2:]]


@every(("protocol", "options"), ARMS)
def test_every_arm_has_the_stance_of_its_row_and_its_card_says_so(protocol: str, options: str) -> None:
    """A row names several protocols by one of them, and one set of their options."""
    named = [row for row in ROWS if re.search(rf"\b{protocol}\b", row[0])]
    told = named[-1] if "private" in options else named[0]
    columns = zip(told[1:], who_learns.served(protocol, tomllib.loads(options)), strict=True)
    for cell, (plan, specs) in ((cell, one) for cell, column in columns for one in column):
        found = who_learns.stance(plan, specs)
        assert found == cell.strip()
        if plan.hidden and found != "refused":
            card = privacy_card.learns(plan, specs, "server")
            lies = plan.secagg == "active" and any(words in card for words in LIES)
            assert (lies or "no figure bounds" in card) == (found == "not held, said")


def test_another_stance_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(who_learns, "stance", lambda plan, specs: "held")
    assert who_learns.state_table() != STATES


@every("page", ["flower-strategies.md", "tutorials/flower-app.md", "how-to/own-loop.md"])
def test_a_page_for_code_of_others_says_that_its_state_is_not_held(page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    assert "threat-model.md#state-that-a-client-keeps" in text
