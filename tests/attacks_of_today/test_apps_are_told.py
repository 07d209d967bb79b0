"""What a lying server reads of an app that keeps state is said to nobody who runs an app or a loop.

i59.1: "Code that is not ours (Flower apps, loops) counts as reading state: the card says 'not held', the
remedies beside." The table of the threat model: "Flower apps, loops and protocols of others: not held,
said". `learns` has the words, but only studies, `masked_sum` and `select_by_profile` show it: no command,
page or log of an app, a party of an app (`LocalDeployment`, `served`), or `SecureAggregator` does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["docs/flower-strategies.md", "docs/tutorials/flower-app.md", "docs/how-to/own-loop.md"]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_for_code_of_others_says_what_is_not_held(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert "state-that-a-client-keeps" in text or "keeps state" in text


def test_what_runs_apps_and_loops_has_the_words_of_the_card() -> None:
    parts = [*(ROOT / "securefl/flower").glob("*.py"), *(ROOT / "securefl/deployment").glob("*.py")]
    parts.append(ROOT / "securefl/engine/aggregator.py")
    assert [one.name for one in parts if "privacy_card" in one.read_text(encoding="utf-8")]
