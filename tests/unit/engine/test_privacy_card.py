"""What the privacy card says of hidden sums: who may collude, what of one client shows, and which server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.every import every
from support.hidden_plans import hidden

from securefl.algorithm.plan import Plan
from securefl.algorithm.queries import Schedule, ValueSpec
from securefl.engine.privacy_card import learns

OWN = ValueSpec(name="own", reduction="sum", reveals="its vector", form="real")
TERMS: dict[str, Any] = {
    "delta": 1e-5,
    "max_rounds": 1,
    "non_private": ("own",),
    "dropout": 0.1,
    "corrupt": 0.2,
    "min_cohort_size": 10,
    "max_cohort_size": 10,
    "min_honest": 4,
    "max_client_weight": 0.4,
}


def said(**words: Any) -> str:
    return learns(Plan(**{"sum": "masked", **TERMS, **words}), [OWN], "server")


@every(
    ("words", "error"),
    [
        ({}, 0.91),  # six surely remain, of whom one observes: sqrt(1 - 1 / 6)
        ({"weights": {"own": "draws"}, "draws": 12}, 0.77),  # as far as draws may go: sqrt(1 - 0.4)
        ({"weights": {"own": "counts"}, "min_num_examples": 10, "max_num_examples": 15}, 0.83),
        ({"weights": {"own": "counts"}, "min_num_examples": 9, "max_num_examples": 9}, 0.91),
        ({"weights": {"own": "counts"}, "public_num_examples": 5}, 0.91),
    ],
)
def test_the_card_says_how_well_one_clients_value_is_guessed(words: dict[str, Any], error: float) -> None:
    wanted = (
        f"the same standard deviation, a guess of one client's value from one sum errs by {error:g} of it"
    )
    assert wanted in said(**words)


def test_the_card_says_which_server_masks_hold_against() -> None:
    warning = "a server that breaks the protocol can open one client's value"
    assert warning not in said()
    assert warning in said(secagg="semi-honest")
    assert warning not in said(secagg="semi-honest", sum="two-server"), "nobody unmasks there"
    assert warning not in said(secagg="semi-honest", sum="clear"), "every single one is open there"


def test_the_card_says_that_state_in_code_of_others_is_not_held() -> None:
    """It may be in a file or an attribute: nobody can see it. The remedies stand beside."""
    warning = "not held against a server that lies: state that code of the client's own keeps for its own"
    for how in ("masked", "two-server", "ckks"):
        found = said(sum=how)
        assert warning in found
        assert found.index("noise of an epsilon up to") > found.index(warning)
        assert "the owner accepted" in said(sum=how, accepts_kept_state=True)
        assert warning not in said(sum=how, accepts_kept_state=True)
        assert warning not in said(sum=how, secagg="semi-honest")
    assert warning not in said(sum="clear")


def test_the_card_says_that_no_opening_of_encrypted_sums_is_checked() -> None:
    warning = "a server that breaks the protocol reads the key holder's key"
    assert warning in said(sum="ckks")
    assert warning not in said()
    assert warning not in said(sum="two-server")


def test_the_card_says_who_may_collude() -> None:
    assert "up to 20 % of a cohort may collude with it" in said()
    assert "no client may collude with it" in said(corrupt=0.0)


@every(("most", "often"), [("schedule", "5 times"), (1, "1 time"), (40, "40 times")])
def test_the_card_says_how_many_linear_functions_of_a_vector_there_are(most: Any, often: str) -> None:
    own = ValueSpec(
        name="own",
        reduction="none",
        reveals="its vector",
        reveals_encrypted="a score",
        schedule=Schedule(period=2, initial=1, max_releases=most),
    )
    plan = Plan(delta=1e-5, max_rounds=8, non_private=("own",))
    assert learns(plan, [own], "server") == "of each client its vector"
    concealed = learns(replace(plan, scores="pads"), [own], "server")
    assert concealed == f"of each client a score (one linear function of its vector, at most {often})"


def test_clients_of_a_hidden_sum_see_who_else_is_asked() -> None:
    """Each of them checks the cohort and the draws in its order, so it sees them."""
    own = ValueSpec(name="own", reduction="sum", reveals="its vector")
    clear = Plan(delta=1e-5, max_rounds=1, non_private=("own",))
    masked = hidden(clear, 6, min_cohort_size=3)
    assert learns(clear, [own], "others").endswith("whether it was selected itself")
    assert learns(masked, [own], "others").endswith("who else is asked, with which weight")
    number = ValueSpec(name="number", reduction="none", reveals="a number")
    assert learns(masked, [number], "others").endswith("whether it was selected itself")
