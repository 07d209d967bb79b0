"""A server that crafts the model reads records from a total; under a finite epsilon it reads none.

`benchmarks/crafted_model.py` has the attack on honest clients. Here it is small.
"""

from __future__ import annotations

import json
from math import inf
from typing import Any

import crafted_model
from click.testing import CliRunner
from crafted_model import STUDY, attack, dealt, noised
from support.every import every
from support.tiny_study import composed

from securefl.algorithm.queries import ValueSpec
from securefl.commands.plan import plan as plan_command
from securefl.core.release import SERVER
from securefl.engine import privacy_card
from securefl.study.config import parse

SMALL = STUDY.replace("hidden = [512]", "hidden = [64]")
CLIENTS, PUBLIC = dealt(10, 30)
CRAFTS = "if it crafts the model"


def small(epsilon: float, kind: Any = "traps", unit: Any = "record") -> crafted_model.Attack:
    return attack(noised(epsilon, unit=unit, study=SMALL), kind, CLIENTS, PUBLIC)


@every(("how", "kind"), [("masked", "bins"), ("masked", "traps"), ("two-server", "traps")])
def test_without_noise_records_are_read_however_the_sum_is_hidden(how: str, kind: Any) -> None:
    """No mask is broken: all clients sign the one model, and only their total is opened."""
    found = attack(SMALL.replace('"masked"', f'"{how}"'), kind, CLIENTS, PUBLIC)
    assert found.epsilon == inf
    assert found.read >= 5
    assert kind == "bins" or found.likeness > 0.99


@every(("epsilon", "unit"), [(8.0, "record"), (1.0, "record"), (8.0, "client")])
def test_under_a_finite_epsilon_none_is_read(epsilon: float, unit: Any) -> None:
    """The probability of a false alarm is below 1e-15.

    In units of the clip, a picture is a signal of norm 14 at most (of 11 records, or 10 clients) and Gaussian
    noise of deviation s >= 0.41 a pixel. It counts if it is within 0.02 sqrt(64) = 0.16 of a record after
    scaling. Records have norms above 3.2, so its part across the record is at most 0.05 of that along it,
    which is below 14 + 10 s but with probability 2e-23. The part across has 63 dimensions of noise, and no
    signal makes it likelier to be small. It is below 0.05 (14 + 10 s) <= 2.3 s with a probability of at most
    exp(31.5 (1 + ln(2.3^2 / 63) - 2.3^2 / 63)) = 5e-22. There are 64 pictures and 300 records.
    """
    for kind in ("bins", "traps"):
        found = small(epsilon, kind, unit)
        assert found.epsilon <= epsilon * 1.01
        assert found.read == 0


def test_pictures_fade_as_epsilon_falls() -> None:
    """At epsilon 1 they are noise: the mean cosine of 20 pictures has a deviation of 0.03."""
    likeness = [small(epsilon).likeness for epsilon in (inf, 1000.0, 1.0)]
    assert likeness[0] > 0.99 > likeness[1] > 0.4
    assert abs(likeness[2]) < 0.3


def server_learns(text: str) -> str:
    of = parse(text)
    algorithm, plan = composed(of)
    return privacy_card.learns(plan, [own.spec for own in algorithm.contributions], SERVER, assumptions=False)


@every(
    ("text", "said"),
    [
        (SMALL, True),
        (SMALL.replace('"masked"', '"two-server"'), True),
        (SMALL.replace('"masked"', '"ckks"'), True),
        (noised(8.0, study=SMALL), False),
        (noised(8.0, unit="client", study=SMALL), False),
        (noised(8.0, unit="client", study=SMALL).replace('"distributed"', '"local"'), False),
    ],
)
def test_the_card_says_what_a_crafted_model_reads(text: str, said: bool) -> None:
    assert (CRAFTS in server_learns(text)) == said


def test_the_plan_says_it_before_all_that_the_server_learns(tmp_path: Any) -> None:
    (tmp_path / "study.toml").write_text(SMALL, encoding="utf-8")
    page = CliRunner().invoke(plan_command, [str(tmp_path / "study.toml")]).stdout
    assert 0 < page.index("crafts the model") < page.index("learns")
    (tmp_path / "noised.toml").write_text(noised(8.0, study=SMALL), encoding="utf-8")
    for name, crafted in (("study.toml", ["update"]), ("noised.toml", [])):
        told = CliRunner().invoke(plan_command, [str(tmp_path / name), "--json"]).stdout
        assert json.loads(told)["arms"][0]["crafted"] == crafted


def test_a_value_that_no_model_moves_is_not_read_by_one() -> None:
    of = parse(SMALL)
    _, plan = composed(of)
    constant = ValueSpec(name="update", reduction="sum", reveals="its vector", on_model=False)
    number = ValueSpec(name="update", reduction="none", reveals="its loss")
    foreign = ValueSpec(name="update", reduction="sum", reveals="its app's value")
    assert [privacy_card.crafts(plan, spec) for spec in (constant, number, foreign)] == [False, False, True]
