"""Reading a study: what cannot be used as written is told with its key, its value and the nearest name."""

from __future__ import annotations

import math
from itertools import product

import pytest
from support.every import every
from support.private_studies import DISTRIBUTED
from support.tiny_study import FEDAVG, FEDPROF, text, with_privacy

from securefl.core.errors import ConfigError
from securefl.study.config import parse, slug

GOOD = text()


def changed(old: str, new: str) -> str:
    assert GOOD.count(old) >= 1, old
    return GOOD.replace(old, new, 1)


def told(toml: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(toml)
    message = str(caught.value)
    assert message.count("\n") < 3
    assert len(message) < 500
    assert "Error" not in message
    return message


@every(
    ("scores", "parameters"),
    product(["clear", "ckks", "pads"], ["strong", "compact"]),
)
def test_a_way_of_scoring_says_which_parameters_it_cannot_use(scores: str, parameters: str) -> None:
    of = text(scores=scores, extra=f'parameters = "{parameters}"\n')
    if scores == "pads" and parameters != "strong":
        assert "Leave the line out" in told(of)
    else:
        assert parse(of).privacy.plan(1).scores == scores


def test_parameters_that_rounds_do_not_have_are_refused_with_those_that_they_have() -> None:
    message = told(text(scores="ckks", extra='parameters = "strong-encrypted"\n'))
    assert all(word in message for word in ("strong-encrypted", "strong", "compact", "words-128"))


def test_an_infinite_budget_is_no_limit() -> None:
    assert parse(GOOD).privacy.budget == math.inf
    assert parse(GOOD).privacy.plan(1).budget is None
    assert parse(changed("budget = inf", "budget = 3")).privacy.plan(1).budget == 3.0
    for bad in ("nan", "-1.0"):
        assert "[privacy] Expected budget in" in told(changed("budget = inf", f"budget = {bad}"))


@every(
    ("old", "new", "key"),
    [
        ("rounds = 2", "rounds = true", "[study] `rounds`"),
        ("rounds = 2", "rounds = 2026-01-01", "[study] Expected text, numbers and lists"),
        ("fraction = 0.5", "fraction = true", "[arm 1] `fraction`"),
        ("[[arm]]", "[network]\nreorder = 1\n[[arm]]", "[network] `reorder`"),
    ],
)
def test_a_wrong_type_is_never_taken_silently(old: str, new: str, key: str) -> None:
    assert key in told(changed(old, new))


def test_whole_numbers_do_for_floats() -> None:
    study = parse(text(FEDAVG.replace("0.5", "1"), FEDPROF + "alpha = 10\n"))
    assert study.arms[0].options.fraction == 1.0
    assert study.arms[1].options.alpha == 10.0


def test_a_union_is_told_in_one_sentence() -> None:
    message = told(text(FEDPROF + 'alpha = "theorem-2"\n'))
    assert message.count("[arm 1]") == 1
    assert "'theorem-2' (did you mean `theorem-1`?)" in message


@every(
    ("key", "takes"),
    [
        *((key, "") for key in ("sum", "unit", "adjacency", "budget")),
        ("non_private", ": a list, or []."),
        ("scores", ': "clear" or "ckks" or "pads".'),
        ("noise", ': "none" or "local" or "distributed" or "central" or "key-holder".'),
        ("delta", ": a number in (0, 1)."),
        ("adversaries", ': a list of "server" or "key-holder" or "others".'),
    ],
)
def test_privacy_has_no_silent_defaults_and_a_missing_key_is_told_with_what_it_takes(
    key: str, takes: str
) -> None:
    lines = [line for line in GOOD.splitlines() if not line.startswith(f"{key} =")]
    assert f"[privacy] Missing key `{key}`; add it{takes}" in told("\n".join(lines))


def test_arms_have_different_folders() -> None:
    assert slug("FedProf, partial (α = 10)") == "fedprof-partial-α-10"
    assert slug("../../etc") == "etc"


@every(
    ("arms", "part"),
    [
        ("arm = []\n", "at least one [[arm]]"),
        ("arm = [1]\n", "[arm 1] Expected a table"),
        ('arm = [{ name = "a" }]\n', "[arm 1] Missing key `protocol`"),
        ('arm = [{ name = "?", protocol = "fedavg" }]\n', "[arm 1] Expected a name with a letter"),
    ],
)
def test_arms_are_tables(arms: str, part: str) -> None:
    body = GOOD[: GOOD.index("[[arm]]")]
    assert part in told(arms + body)


def test_a_key_of_other_protocols_is_not_sent_to_where_it_stands() -> None:
    said = told(text('[[arm]]\nname = "a"\nprotocol = "heads"\nfraction = 0.5\n'))
    assert "[arm 1] Unknown key `fraction`: it belongs under an [[arm]] whose protocol draws clients." in said


def test_an_unknown_encoding_hides_no_other_mistake() -> None:
    said = told(changed("[data]", '[data]\ncsv = { encoding = "utf-61" }\ntest_on = "validation"'))
    assert "Expected `encoding` with the digits" in said
    assert "Expected `validation` beside test_on" in said


def test_a_section_is_a_table() -> None:
    body = GOOD.replace("[cost]", "")
    assert "[cost] Expected a table, got 3" in told("cost = 3\n" + body)


@every(("name", "value"), [("blur_sigma", 1e12), ("noise_deviation", 1e308)])
def test_a_corruption_without_measure_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        parse(GOOD + f"\n[corruption]\n{name} = {value}\n")


def test_some_client_neither_drops_out_nor_colludes() -> None:
    for corrupt in ("0.8", "0.9", "1.0"):
        with pytest.raises(ConfigError):
            parse(with_privacy(text(), DISTRIBUTED | {"epsilon": "2.0", "corrupt": corrupt}))
    whole = with_privacy(text(), DISTRIBUTED | {"epsilon": "2.0", "corrupt": "0.7"})
    assert parse(whole).privacy.corrupt == 0.7
