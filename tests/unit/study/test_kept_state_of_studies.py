"""A study whose hidden sums read kept state is refused, and runs by each remedy that the refusal names."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.arms import OPTIONS, hiding
from support.every import every
from support.tiny_study import composed, run, text, with_privacy, world

from securefl.core.errors import ConfigError
from securefl.engine.privacy_card import learns
from securefl.study.composition import composition
from securefl.study.config import Study, parse

SENT = '["update", "consensus", "votes", "statistic", "counts", "map", "direction"]'
KEEPING = {
    "cs_fl": "fraction = 1.0\nsparsity = 0.01",
    "feddbe": "mean_bound = 4.0",
    "fedlog": 'body = "private"',
    "fedper": "",
    "fedproto": "client_bound = 20.0",
    "fedrep": "head_epochs = 1",
    "lg_fedavg": "",
    "stc": "fraction = 1.0\np = 0.1",
    "fedavg": 'fraction = 1.0\naggregation = "full"\nstale = true',
}
REPEATED = ("fedavg",)
"""Refused whatever the server is said to be."""
FREE = ("fedbabu", "feddrop", "fltrust", "heads", "pfedme", "fedprox")


def of(name: str, how: str = "masked", *, more: str = "", local: str = "", **privacy: str) -> Study:
    options = KEEPING.get(name, OPTIONS.get(name, ["fraction = 1.0"])[0])
    arm = f'[[arm]]\nname = "x"\nprotocol = "{name}"\n{options}\n{more}'
    words = {"sum": f'"{how}"', **hiding((name, options)), "secagg": '"active"', **privacy}
    if how == "clear":
        words = {"sum": '"clear"', **privacy}
    written = text(arm, clients=7, rounds=1, non_private=SENT)
    return parse(with_privacy(written.replace("[privacy]\n", f"{local}\n[privacy]\n"), words))


def card(study: Study) -> str:
    algorithm, plan = composed(study)
    return learns(plan, [part.spec for part in algorithm.contributions], "server")


@every("how", ["masked", "two-server", "ckks"])
@every("name", KEEPING)
def test_without_noise_it_is_refused_with_noise_named_first(name: str, how: str) -> None:
    study = of(name, how)
    with pytest.raises(ConfigError, match=r"for x: .* reads state") as refusal:
        composed(study)
    said = str(refusal.value)
    follows = [] if name in REPEATED else ["semi-honest"]
    remedies = ["noise", "accepts_kept_state", *follows, 'sum = "clear"']
    places = [said.index(remedy, said.index("Add")) for remedy in remedies]
    assert places == sorted(places)


@every("name", KEEPING)
def test_each_remedy_lets_it_run(name: str, tmp_path: Path) -> None:
    per_client = {"unit": '"client"', "adjacency": '"zero-out"', "delta": "1e-2"}
    noise = {"noise": '"distributed"', "epsilon": "8.0", **per_client}
    bounded = "client_bound = 20.0" if name == "fedlog" else ""  # what the refusal names
    noised = of(name, more=bounded, local="update_bound = 0.5", **noise)
    composed(noised)
    accepted = of(name, more="accepts_kept_state = true")
    for study in (accepted, *([] if name in REPEATED else [of(name, secagg='"semi-honest"')])):
        assert run(study, tmp_path / study.privacy.secagg).records
    clear = of(name, "clear")
    composed(clear)


@every("how", ["masked", "two-server"])
def test_an_acceptance_stands_on_the_card_and_in_the_plan(how: str) -> None:
    accepted = of("lg_fedavg", how, more="accepts_kept_state = true")
    assert "the owner accepted that a server that lies can open a single client's update" in card(accepted)
    _, plan = composed(accepted)
    assert '"accepts_kept_state": true' in plan.text()
    followed = of("lg_fedavg", how, secagg='"semi-honest"')
    assert "it must follow it" in card(followed)
    _, plan = composed(followed)
    assert '"accepts_kept_state": false' in plan.text()


@every("name", FREE)
def test_an_arm_that_keeps_nothing_of_the_kind_is_held_and_needs_no_acceptance(name: str) -> None:
    assert "lies" not in card(of(name))
    needless = of(name, more="accepts_kept_state = true")
    with pytest.raises(ConfigError, match="for x: Expected no accepts_kept_state"):
        composed(needless)


@every("words", [{"secagg": '"semi-honest"'}, {"sum": '"clear"'}])
def test_an_acceptance_of_nothing_is_told(words: dict[str, str]) -> None:
    study = of(
        "lg_fedavg", "clear" if "sum" in words else "masked", more="accepts_kept_state = true", **words
    )
    with pytest.raises(ConfigError, match="Delete the key"):
        composed(study)


@every("how", ["masked", "two-server", "ckks"])
def test_what_two_sums_repeat_is_refused_under_a_server_that_follows(how: str) -> None:
    study = of("fedavg", how, secagg='"semi-honest"')
    with pytest.raises(ConfigError, match=r"for x: .* reads state"):
        composed(study)
    accepted = of("fedavg", how, secagg='"semi-honest"', more="accepts_kept_state = true")
    assert "the owner accepted that a server can open" in card(accepted)


def test_an_acceptance_is_true_or_false() -> None:
    with pytest.raises(ConfigError, match="accepts_kept_state`: Expected true or false"):
        of("lg_fedavg", more='accepts_kept_state = "yes"')


def test_an_acceptance_names_one_arm_alone() -> None:
    arm = '[[arm]]\nname = "{0}"\nprotocol = "{1}"\n'
    arms = arm.format("x", "lg_fedavg") + "accepts_kept_state = true\n" + arm.format("y", "fedper")
    words = {"sum": '"masked"', **hiding(("fedavg", ""))}
    study = parse(with_privacy(text(arms, clients=7, rounds=1, non_private=SENT), words))
    composed(study)
    with pytest.raises(ConfigError, match=r"for y: .* reads state"):
        composition(study, study.arms[1], world(study))
