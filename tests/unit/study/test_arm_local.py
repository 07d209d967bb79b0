"""An arm with settings of training of its own: it runs as a study with these in [local] would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.private_studies import DPSGD, private
from support.tiny_study import FEDAVG, plain, run, study, text, world

from securefl.core.errors import ConfigError
from securefl.study.composition import composition
from securefl.study.config import Study, parse
from securefl.sweep.cells import parse_sweep, value_at

OWN = FEDAVG.replace('"FedAvg"', '"own"') + "local = { learning_rate = 0.05, steps = 3 }\n"
MIXED = text(FEDAVG, OWN, rounds=1)


def records(of: Study, folder: Path, arm: int = 0) -> list[dict[str, Any]]:
    """The arm's records, without its name."""
    return [{**own, "arm": ""} for own in plain(run(of, folder, arm=of.arms[arm]).records)]


def test_an_arm_runs_with_its_own_settings_alone(tmp_path: Path) -> None:
    """In model, accuracy and modelled time. The arm beside it has those of the section."""
    of, bare = parse(MIXED), study(FEDAVG, rounds=1)
    ends = ("learning_rate = 0.2\nepochs = 2", "learning_rate = 0.05\nsteps = 3")
    expected = records(parse(bare.text.replace(*ends)), tmp_path / "whole")
    assert records(of, tmp_path / "own", 1) == expected
    section = records(bare, tmp_path / "bare")
    assert records(of, tmp_path / "other") == section
    assert all(section[0][key] != expected[0][key] for key in ("loss", "seconds"))


def test_what_an_arm_does_not_name_is_the_sections() -> None:
    own = parse(MIXED).arms[1].local
    assert own is not None
    assert (own.learning_rate, own.steps, own.epochs, own.batch_size) == (0.05, 3, None, 48)
    assert value_at(parse(MIXED), "arm.local.learning_rate", parse(MIXED).arms[1]) == 0.05
    swept = parse_sweep(f'{MIXED}[sweep.grid]\n"arm.local.momentum" = [0.0, 0.9]\n')
    assert [[arm.local.momentum for arm in cell.study.arms if arm.local] for cell in swept.cells] == [
        [0.0, 0.0],
        [0.9, 0.9],
    ]


def test_a_bound_of_an_arm_is_what_its_value_is_charged_by() -> None:
    """Wherever an arm is composed: parties of a deployment, forecasts and reservations have no other way."""
    arms = [FEDAVG, FEDAVG.replace('"FedAvg"', '"own"') + "local = { update_bound = 0.5 }\n"]
    of = study(*arms)
    moved = [composition(of, arm, world(of))[0].contributions[0].spec.sensitivity for arm in of.arms]
    assert moved[0] == {}
    assert set(moved[1].values()) == {0.5, 1.0}


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("{ learning_rat = 0.1 }", "learning_rate"),
        ("{ learning_rate = -1.0 }", "learning_rate"),
        ("{ epochs = 1, steps = 3 }", "steps"),
        ("0.1", "local"),
    ],
)
def test_settings_that_are_refused_name_the_arm_and_the_key(own: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)arm 2.*{said}"):
        parse(MIXED.replace("{ learning_rate = 0.05, steps = 3 }", own))


def test_a_sweep_over_a_key_that_an_arm_has_otherwise_is_refused_and_the_remedy_works() -> None:
    """The arm would be labelled by a setting that it did not train with."""
    grid = '[sweep.grid]\n"local.learning_rate" = [0.05, 0.5]\n'
    with pytest.raises(ConfigError, match="own: Expected no `learning_rate`") as caught:
        parse_sweep(MIXED + grid)
    assert "the cell learning_rate = 0.5" in str(caught.value)
    assert len(parse_sweep(MIXED.replace("learning_rate = 0.05, ", "") + grid).cells) == 2


def test_settings_of_training_beside_dpsgd_are_refused_and_the_remedies_work() -> None:
    whole = private("fedavg", "fraction = 1.0\n").text
    with pytest.raises(ConfigError, match="Expected bounds alone in `local` beside"):
        parse(f"{whole}local = {{ learning_rate = 0.05 }}\n")
    parse(f"{whole}local = {{ update_bound = 0.5 }}\n")
    parse(whole)


def test_settings_of_a_preset_beside_dpsgd_are_refused_by_its_name_and_the_remedies_work() -> None:
    """Nobody wrote `local` there."""
    whole = private("pfedme", "lamda = 2.0\n").text
    preset = whole.replace("lamda = 2.0", 'lamda = 2.0\npreset = "authors"')
    said = "which the preset 'authors' sets. Leave .dpsgd. out, or the preset if"
    with pytest.raises(ConfigError, match=said):
        parse(preset)
    parse(whole)
    parse(preset.replace(DPSGD, "\n"))
