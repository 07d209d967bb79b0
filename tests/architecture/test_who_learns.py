"""The tables of who learns what are those that the privacy card makes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import who_learns
from support.arms import ARMS
from support.every import every

from securefl.core.installed import entry_points
from securefl.engine import privacy_card
from securefl.linear.checked import CheckedCkks
from securefl.mechanisms import charges
from securefl.mechanisms.agreed import stance
from securefl.mechanisms.mechanism import Local
from securefl.sums.two_server import TwoServer

TEXTS = {page: (who_learns.ROOT / page).read_text(encoding="utf-8") for page in who_learns.PAGES}


@every("page", who_learns.PAGES)
def test_a_page_has_the_words_of_the_card(page: str) -> None:
    """If this fails, run `python tools/who_learns.py --write`."""
    assert TEXTS[page] == who_learns.filled(page, TEXTS[page])


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
    assert TEXTS["README.md"] != who_learns.filled("README.md", TEXTS["README.md"])


def test_another_charge_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    none = charges.Protection(*who_learns.composed(who_learns.CASES[-2])).charge()
    monkeypatch.setattr(charges.Protection, "charge", lambda own: none)
    assert TEXTS["README.md"] != who_learns.filled("README.md", TEXTS["README.md"])


def test_the_readme_has_few_rows() -> None:
    assert sum(case.both for case in who_learns.CASES) <= 20


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"once each in README\.md"):
        who_learns.filled("README.md", "no marker")


def test_each_protocol_stands_in_the_table_of_kept_state() -> None:
    """A protocol more is a row more, or a name in one."""
    rows = who_learns.state_table().splitlines()[2:]
    for point in entry_points(group="securefl.protocols"):
        assert any(re.search(rf"\b{point.name}\b", row.split("|")[1]) for row in rows), point.name
    assert sum(" refused " in row for row in rows) == 8


LIES = ("a server that lies", "reads the key holder's key")
"""What cards say of a server that does not follow the protocol."""
_MADE = TEXTS[who_learns.MODEL].split(who_learns.STATE)[1].split(who_learns.END)[0].splitlines()
ROWS = [line.split("|")[1:-1] for line in _MADE if line.startswith("| ")][1:]


@every(("protocol", "options"), ARMS)
def test_every_arm_has_the_stance_of_its_row_and_its_card_says_so(protocol: str, options: str) -> None:
    """A row names several protocols by one of them, and one set of their options."""
    named = [row for row in ROWS if re.search(rf"\b{protocol}\b", row[0])]
    told = named[-1] if "private" in options else named[0]
    for cell, (plan, specs) in zip(told[1:], who_learns.served(arm_of(protocol, options)), strict=True):
        found = stance(plan, specs)
        assert found == cell.strip()
        if plan.hidden and found != "refused":
            card = privacy_card.learns(plan, specs, "server")
            lies = plan.secagg == "active" and any(words in card for words in LIES)
            assert (lies or "no figure bounds" in card) == (found == "not held, said")


def arm_of(protocol: str, options: str) -> dict[str, Any]:
    return tomllib.loads(options) | {"protocol": protocol}


def test_another_stance_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(who_learns, "stance", lambda plan, specs: "held")
    assert TEXTS[who_learns.MODEL] != who_learns.filled(who_learns.MODEL, TEXTS[who_learns.MODEL])


@every("page", ["flower-strategies.md", "tutorials/flower-app.md", "how-to/own-loop.md"])
def test_a_page_for_code_of_others_says_that_its_state_is_not_held(page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    assert "threat-model.md#state-that-a-client-keeps" in text
