"""Every guarantee that a docstring lists is named here, beside the tests that try to break it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.every import every

from securefl.accounting.ledger import Ledger
from securefl.mechanisms.protecting import protect

TESTS = Path(__file__).parents[1]

# In the order of the docstring, by the words that each begins with.
PROTECT = {
    "The charge depends on the plan": """
        unit/mechanisms/test_protect.py test_the_charge_follows_from_the_plan_and_not_from_the_value
        """,
    "A value that its client noises carries the noise": """
        unit/mechanisms/test_protect.py test_a_sum_that_its_client_noises_carries_the_noise_that_is_charged
        unit/mechanisms/test_protect.py test_a_value_that_is_noised_is_whole_numbers_before
        """,
    "A noised value beyond its grid": """
        unit/mechanisms/test_protect.py test_a_value_beyond_its_grid_is_cut_to_it_before_it_is_weighted
        unit/engine/test_offered.py test_integers_beyond_their_grid_are_cut_to_it
        """,
    "A share of distributed noise": """
        unit/mechanisms/test_protect.py test_a_share_of_noise_has_its_room_beside_the_largest_value
        """,
    "A weight never increases the distance": """
        unit/engine/test_offered.py test_weights_move_integers_no_further_apart
        """,
    "A sum that the plan hides": """
        unit/mechanisms/test_protect.py test_a_hidden_sum_leaves_as_hidden_integers_or_not_at_all
        """,
    "A number that the plan hides": """
        unit/mechanisms/test_protect.py test_a_hidden_number_leaves_sealed_or_not_at_all
        """,
    "With a `secret`, the same place": """
        unit/mechanisms/test_protect.py test_a_secret_gives_the_same_noise_again_and_another_place_other_noise
        """,
    "Under a `sampling_rate` below 1": """
        unit/mechanisms/test_secret_draws.py test_a_client_that_is_not_drawn_sends_zeros_and_nothing_else
        """,
    "With a `secret`, two contents": """
        unit/mechanisms/test_protect.py test_two_values_in_one_place_have_two_fingerprints
        unit/accounting/test_ledger.py
            test_what_was_sent_is_sent_again_in_the_same_words_alone_and_costs_nothing
        """,
}
SEND = {
    "A release leaves only under its own reservation": """
        unit/accounting/test_ledger.py test_a_release_that_does_not_fit_its_reservation_does_not_leave
        """,
    "If one release of these messages may not leave": """
        unit/accounting/test_ledger.py test_one_bad_message_keeps_the_whole_outbox_in
        """,
    "The commit is durable before the bytes": """
        properties/test_exchange.py test_the_ledger_is_on_disk_before_the_bytes_exist
        unit/accounting/test_ledger.py test_kill_9_forgets_nothing_that_left
        """,
    "A release that was sent leaves again only": """
        unit/accounting/test_ledger.py test_a_release_leaves_once
        unit/accounting/test_ledger.py
            test_what_was_sent_is_sent_again_in_the_same_words_alone_and_costs_nothing
        """,
    "A release with charge": """
        unit/accounting/test_ledger.py test_what_has_no_finite_price_is_repeated_without_a_fingerprint
        """,
    "No release is encoded in any other way": """
        unit/core/test_wire.py test_a_release_is_not_encoded_without_the_ledger
        unit/core/test_wire.py test_what_only_stands_where_a_release_should_is_not_encoded
        unit/core/test_release.py test_nobody_but_the_ledger_makes_a_permit
        """,
    "A message without a release": """
        unit/accounting/test_ledger.py test_a_message_without_a_release_costs_nothing
        """,
}


def guarantees(of: Callable[..., Any]) -> list[str]:
    """The sentences of a docstring's list, each in one line."""
    listed = re.search(r"Guarantees:\n(.*?)(\n\n|$)", inspect.getdoc(of) or "", re.DOTALL)
    assert listed is not None
    return [" ".join(one.split()) for one in re.split(r"^ *- ", listed[1], flags=re.MULTILINE)[1:]]


def defined_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@every(("of", "tried"), [(protect, PROTECT), (Ledger.send, SEND)])
def test_every_guarantee_has_its_tests(of: Callable[..., Any], tried: dict[str, str]) -> None:
    for promised, named in zip(guarantees(of), tried, strict=True):
        assert promised.startswith(named)
        words = tried[named].split()
        assert words
        for file, test in zip(words[::2], words[1::2], strict=True):
            assert test in defined_in(TESTS / file)
