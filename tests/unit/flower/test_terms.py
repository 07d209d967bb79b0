"""Terms of a Flower app: packaged sets, files, run configs, and what is said about wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.every import every

from securefl.accounting.composition import compose
from securefl.core.errors import ConfigError
from securefl.flower.terms import FILE, PACKAGED, AppTerms, packaged
from securefl.mechanisms.charges import events_of

MASKED = {"securefl.terms": "without-noise"}


def test_the_noised_set_has_a_least_cohort_and_a_finite_epsilon_for_all_its_rounds() -> None:
    terms = AppTerms.of({"securefl.terms": "noised", "securefl.evaluation": "accuracy"}, [])
    assert terms.plan.min_cohort_size == 10
    assert terms.updates.cohort == 10
    assert terms.plan.non_private == ()
    assert terms.plan.budget == 4.0
    for party in terms.plan.adversaries:
        events = events_of(
            terms.plan, [*terms.updates.spec(terms.plan).values()], party, terms.plan.max_rounds
        )
        assert compose(events, terms.plan.delta) <= 4.0
        if party == "server":
            assert compose(events, terms.plan.delta) == pytest.approx(3.34, abs=0.005), "as the page says"
    assert terms.plan.guess_error() > 0.75


def test_the_set_without_noise_says_so_in_its_name_and_text() -> None:
    terms = AppTerms.of(MASKED, [])
    assert terms.plan.hidden
    assert not terms.plan.noisy
    assert terms.plan.min_cohort_size == 10
    assert set(terms.plan.non_private) == {"update", "evaluation"}
    assert "WITHOUT NOISE" in packaged("without-noise")


@every("name", PACKAGED)
def test_a_file_may_build_on_a_packaged_set(name: str, tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text(f'terms = "{name}"\nevaluation = ["a"]\n[plan]\nmax_rounds = 7\nmin_cohort_size = 20\n')
    terms = AppTerms.read(path)
    assert terms.plan.max_rounds == 7
    assert terms.plan.sum == "masked"
    assert terms.updates.evaluation == ("a",)
    assert terms.updates.cohort == (20 if terms.plan.noisy else 0), "noise is made for the least cohort"
    assert terms.source == str(path)


def test_a_run_config_says_the_same_as_a_file(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(
        'terms = "without-noise"\nmetrics = ["a", "b"]\n[plan]\nmin_num_examples = 5\nmax_num_examples = 6\n'
        'non_private = ["update"]\nweights = {update = "counts"}\n'
    )
    config: dict[str, Any] = {
        **MASKED,
        "securefl.metrics": "a, b",
        "securefl.plan.min_num_examples": 5,
        "securefl.plan.max_num_examples": 6,
        "securefl.plan.non_private": "update",
        "securefl.plan.weights.update": "counts",
        "securefl.deadline": 60.0,
        "learning-rate": 0.1,
    }
    said, read = AppTerms.of(config, []), AppTerms.of({}, [tmp_path])
    assert said.plan == read.plan
    assert said.updates == read.updates
    named = AppTerms.of({"securefl.terms": FILE}, [tmp_path / "none", tmp_path])
    assert named.plan == read.plan


def test_a_run_config_changes_the_file_beside_the_app(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('terms = "noised"\n[plan]\nmax_rounds = 5\n')
    terms = AppTerms.of({"securefl.plan.max_rounds": 3, "securefl.plan.budget": 1.5}, [tmp_path])
    assert (terms.plan.max_rounds, terms.plan.budget, terms.plan.noise_multiplier) == (3, 1.5, 8.0)
    assert str(tmp_path / FILE) in terms.source
    assert "run config" in terms.source


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no terms": ({}, r"securefl\.terms = \"noised\".*or a file securefl\.toml beside the app"),
    "a misspelt key": ({**MASKED, "securefl.metric": "x"}, r"`securefl\.metric`.*`metrics`"),
    "a misspelt key alone": ({"securefl.term": "noised"}, r"`securefl\.term` \(did you mean `terms`\?\)"),
    "a misspelt set": ({"securefl.terms": "noise"}, r"got 'noise' \(did you mean `noised`\?\)"),
    "a misspelt key of the plan": (
        {**MASKED, "securefl.plan.min_cohort": 3},
        r"\[plan\] Unknown key `min_cohort` \(did you mean `min_cohort_size`\?\)",
    ),
    "a key of the plan outside it": (
        {**MASKED, "securefl.min_cohort_size": 3},
        r"did you mean `plan\.min_cohort_size`\?",
    ),
    "an earlier word": ({**MASKED, "securefl.plan.least_cohort": 3}, r"min_cohort_size"),
    "a misspelt table": ({**MASKED, "securefl.plam.budget": 1}, r"`plan`"),
    "a missing file": ({"securefl.terms": "other.toml"}, r"a file other\.toml beside the app"),
    "a number for a set": ({"securefl.terms": 3}, r"got 3"),
    "a text for a number": ({**MASKED, "securefl.plan.budget": "x"}, r"`budget`: Expected a number"),
    "a value for the table": ({**MASKED, "securefl.plan": 3}, r"a table \[plan\]"),
    "both": ({**MASKED, "securefl.plan.weights": 1, "securefl.plan.weights.update": "counts"}, "got both"),
    "both the other way": (
        {**MASKED, "securefl.plan.weights.update": "counts", "securefl.plan.weights": 1},
        "got both",
    ),
    "counts without a range": (
        {**MASKED, "securefl.plan.weights.update": "counts"},
        r"`min_num_examples` and `max_num_examples`",
    ),
    "not chargeable": ({**MASKED, "securefl.plan.non_private": ""}, r"would leave its client without noise"),
    "a bound that adapts": (
        {"securefl.terms": "noised", "securefl.bound_quantile": 0.5},
        r"bound_quantile` \(no strategy moves a bound .*: leave it out, and `update_bound` stays\)",
    ),
    "metrics without noise": (
        {"securefl.terms": "noised", "securefl.metrics": "loss"},
        r"no training metrics beside update_bound",
    ),
}


@every(("config", "said"), WRONG.values())
def test_a_wrong_run_config_is_refused_with_the_key_and_the_nearest_one(config: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AppTerms.of(config, [])


@every(
    ("text", "said"),
    [
        ("terms = 'noisd'\n", r"did you mean `noised`"),
        ("evaluations = []\n", r"`evaluations` \(did you mean `evaluation`\?\)"),
        ("terms = 'noised'\nbudget = 3.0\n", r"did you mean `plan\.budget`"),
        ("evaluation = ['a']\n", r"or a table \[plan\], got neither"),
        ("terms = \n", r"Expected TOML"),
        ("terms = 'noised'\n[plan]\nbudget = 'a'\n", r"`budget`"),
        ("terms = 'noised'\nevaluation = 3\n", r"`evaluation`"),
        ("terms = 'noised'\nbound_quantile = 0.5\n", r"leave it out, and `update_bound` stays"),
        ("terms = 'noised.toml'\n", r"packaged set"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text(text)
    for read in (lambda: AppTerms.read(path), lambda: AppTerms.of({}, [tmp_path])):
        with pytest.raises(ConfigError, match=said) as error:
            read()
        assert str(path) in str(error.value)
