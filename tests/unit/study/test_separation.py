"""A study whose clients rest between rounds: cohorts, noise over a resumed run, refusals and the forecast."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.private_studies import KEY_HOLDER
from support.tiny_study import composed, run, text, with_privacy, world

from securefl.accounting.composition import compose
from securefl.accounting.figures import brief
from securefl.core.errors import ConfigError
from securefl.core.keys import SecretKey
from securefl.core.messages import client_name
from securefl.core.release import OTHERS, SERVER
from securefl.core.wire import Header
from securefl.engine import server
from securefl.engine.account import Account
from securefl.mechanisms.charges import Protection
from securefl.mechanisms.totals import row_noise
from securefl.protocols.averaging import Averaging, Momentum, Scaled
from securefl.protocols.fltrust import UNIT_UPDATE
from securefl.study.arm import made_folder
from securefl.study.config import Study, parse
from securefl.study.forecast import forecast, lines
from securefl.study.run_report import claimed_curves

ROUNDS, APART, CLIENTS = 6, 3, 9
CENTRAL = {
    "unit": '"client"',
    "adjacency": '"zero-out"',
    "noise": '"central"',
    "adversaries": '["key-holder", "others"]',
    "epsilon": "8.0",
    "budget": "8.0",
    "delta": "1e-2",
    "separation": str(APART),
}


def study(
    rounds: int = ROUNDS,
    share: float = 1 / 3,
    protocol: str = "fedavg",
    more: str = 'aggregation = "partial"',
    **privacy: str,
) -> Study:
    arm = f'[[arm]]\nname = "x"\nprotocol = "{protocol}"\nfraction = {share}\n{more}\n'
    written = text(arm, rounds=rounds, clients=CLIENTS, non_private="[]")
    written = written.replace("batch_size = 48\n", "batch_size = 16\nupdate_bound = 0.5\n")
    return parse(with_privacy(written, CENTRAL | privacy))


def sends(folder: Path, of: Study) -> Mapping[str, list[int]]:
    """The rounds in which each client's ledger has a release."""
    found: dict[str, list[int]] = defaultdict(list)
    home = made_folder(folder, of.arms[0], world(of).seed)
    [file] = [path for path in home.rglob("*.sqlite*") if path.suffix == ".sqlite"]
    with sqlite3.connect(file) as db:
        for holder, number in db.execute("SELECT holder, round FROM releases ORDER BY round"):
            found[holder].append(number)
    return found


def test_a_resumed_run_adds_the_noise_of_one_that_was_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of, here, own = study(), world(study()), server.with_noise
    drawn: dict[int, Any] = {}
    places: list[tuple[Any, Header, Any]] = []

    def watched(plan: Any, record: Any, ask: Any, answers: Any, header: Header) -> Any:
        noised = own(plan, record, ask, answers, header)
        if answers.totals:
            places.append((record.lasting(header.session), header, ask.sums[0]))
            drawn[header.round] = noised.totals["update"].value - answers.totals["update"].value
        return noised

    monkeypatch.setattr(server, "with_noise", watched)
    for rounds in (2, ROUNDS):
        found = run(of, tmp_path, here=here, rounds=rounds)
    plan = composed(of, here)[1]
    assert sorted(drawn) == [*range(1, ROUNDS + 1)]
    secrets = {secret.reveal() for secret, _, _ in places}
    assert len(secrets) == 1
    for secret, header, wanted in places:
        mechanism = Protection(plan, wanted.spec).mechanism
        expected = row_noise(mechanism, SecretKey(secret.reveal()), header, wanted, header.round - 1)
        assert expected is not None
        assert drawn[header.round] == pytest.approx(expected * wanted.spec.grid.step, abs=1e-9)
    for rounds in sends(tmp_path, of).values():
        assert all(later - number >= APART for number, later in pairwise(rounds))
    assert max(map(len, sends(tmp_path, of).values())) == 2
    assert all(len(record["answered"]) == 3 for record in found.records)
    assert found.records[-1]["epsilon"][OTHERS] <= 8.0
    with pytest.raises(ConfigError):  # of another schedule: other coefficients, and another epsilon
        run(study(rounds=ROUNDS + 3), tmp_path)


def test_a_client_that_is_asked_too_early_refuses_and_is_not_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own ledger refuses, whatever the server knows of its last round."""
    monkeypatch.setattr(Account, "resting", lambda self, number: frozenset())
    of = study()
    found = run(of, tmp_path)
    asked = {client_name(k) for record in found.records for k in record["selected"]}
    refused = {name for record in found.records for name in record["abstained"]} - {SERVER}
    assert refused, "some client was drawn too early"
    assert all(
        "rounds between two releases of 'update'" in said and "if the plan ends before it" in said
        for record in found.records
        for name, said in record["abstained"].items()
        if name != SERVER
    )
    own = sends(tmp_path, of)
    assert own.keys() <= asked
    assert all(later - number >= APART for rounds in own.values() for number, later in pairwise(rounds))


@every(
    ("privacy", "said", "remedy"),
    [
        ({"separation": "4"}, "separation = 3 or less", {"separation": "3"}),
        ({"bands": "4"}, "separation = 4", {"bands": "3"}),
        ({"bands": '"btl"'}, "or 'blt', got 'btl'", {"bands": '"blt"'}),
        ({"noise": '"local"'}, "bands = 1", {"noise": '"local"', "bands": "1"}),
        (
            {"noise": '"distributed"', "sum": '"masked"', "dropout": "0.0", "corrupt": "0.0"},
            "bands = 1",
            {"noise": '"distributed"', "sum": '"masked"', "dropout": "0.0", "corrupt": "0.0", "bands": "1"},
        ),
        ({"separation": "1", "bands": '"blt"'}, "Set separation = 2", {"separation": "2", "bands": '"blt"'}),
        ({"separation": "1", "bands": '"blt"'}, "or leave bands out", {"separation": "1"}),
        ({"separation": "0"}, "separation", {"separation": "1"}),
    ],
)
def test_what_no_separation_fits_is_refused(
    privacy: dict[str, str], said: str, remedy: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=said):
        composed(study(**privacy))
    composed(study(**remedy))


@every("separation", ("0", "-3"))
def test_a_separation_that_is_none_is_refused_once(separation: str) -> None:
    """Not also for its bands, of which there would be -3 at most."""
    for bands in ({}, {"bands": "2"}):
        with pytest.raises(ConfigError, match="separation") as refused:
            composed(study(separation=separation, **bands))
        assert "bands" not in str(refused.value)


def test_a_sum_that_is_asked_for_beside_the_rounds_is_refused_with_a_separation() -> None:
    """Nobody rests between two trials of FedCor. The plan and the statement said that each client does."""
    trials = "warm_up = 1\ninterval = 1\nupdates = {}"
    lost = {"non_private": '["loss", "size"]', "budget": "inf"}
    with pytest.raises(ConfigError, match=r"'update', which .* 10 times in 6 rounds.*Set separation = 1"):
        composed(study(protocol="fedcor", more=trials.format(4), **lost))
    for updates, apart in ((0, APART), (4, 1)):
        composed(study(protocol="fedcor", more=trials.format(updates), separation=str(apart), **lost))


def test_more_rounds_between_contributions_need_less_noise() -> None:
    """Two contributions in place of six: independent noise is the smaller one of them by sqrt(3)."""
    rare, often = (composed(study(separation=apart, bands="1"))[1] for apart in (str(APART), "1"))
    assert often.noise_multiplier / rare.noise_multiplier == pytest.approx(np.sqrt(3), rel=1e-9)
    assert rare.max_releases == {"update": 2}


@every(
    ("protocol", "more", "accumulates"),
    [
        ("fedavg", 'aggregation = "partial"', ["update"]),
        ("cs_fl", "", []),
        ("adds", "", []),
        ("feddrop", "", []),
        ("fedadam", "learning_rate = 0.1", []),
        ("pfedme", "lamda = 5.0\nbeta = 0.5", ["update"]),
    ],
)
def test_noise_is_correlated_on_what_a_model_adds_up_alone(
    protocol: str, more: str, accumulates: list[str]
) -> None:
    """All rest between two sums, and are charged for as few of them."""
    of = study(protocol=protocol, more=more)
    algorithm, plan = composed(of)[:2]
    sums = [one.spec for one in algorithm.contributions if one.spec.reduction == "sum"]
    assert [own.name for own in sums if plan.correlation(own).correlated] == accumulates
    assert not plan.correlation(UNIT_UPDATE).correlated, "FLTrust: each round's total has a factor of its own"
    assert all(plan.apart(own) == APART and own.asked(ROUNDS, APART) == 2 for own in sums)


def test_server_momentum_adds_a_total_over_several_rounds() -> None:
    algorithm = composed(study())[0]
    assert isinstance(algorithm, Averaging)
    for update, adds in ((Momentum(beta=0.5), False), (Scaled(factor=2.0), True)):
        [own] = replace(algorithm, server=update).contributions
        assert own.spec.accumulates == adds
    drawn = replace(algorithm, replacement=True).contributions
    assert not any(own.spec.accumulates for own in drawn), "each round divides by draws of its own"


def test_plan_says_why_noise_is_independent_though_clients_rest() -> None:
    """The error of a third that a plan states elsewhere is that of sums over rounds."""
    of = study(protocol="fedadam", more="learning_rate = 0.1")
    said = forecast(of, of.arms[0], world(of)).correlation
    assert said == "the noise of the update is independent: this model is no sum of such totals"
    of = replace(of, privacy=replace(of.privacy, bands=1))
    assert forecast(of, of.arms[0], world(of)).correlation == ""


def test_a_report_has_the_curves_of_what_the_plan_allows() -> None:
    """Arms of equal claims share one, and the server, which sees totals, has none that is finite."""
    of = study()
    of = replace(of, privacy=replace(of.privacy, adversaries=()))
    algorithm, plan = composed(of)[:2]
    bare = replace(plan, non_private=("update",), noise="none")
    arms = {"a": (algorithm, plan), "b": (algorithm, plan), "c": (algorithm, bare)}
    [(name, curve)] = claimed_curves(of, arms).items()
    assert name == "a, b, against the others"
    assert curve.epsilon(plan.delta) == pytest.approx(8.0, rel=1e-6)


@every("privacy", ({}, KEY_HOLDER, {"bands": '"blt"'}))
def test_plan_says_error_and_epsilon_before_and_after(privacy: dict[str, str]) -> None:
    of = study(**privacy)
    plan = composed(of)[1]
    noise = plan.correlation(composed(of)[0].contributions[0].spec)
    own = forecast(of, of.arms[0], world(of))
    alone = replace(plan, noise_multiplier=plan.noise_multiplier * noise.error(ROUNDS))
    event = Protection(alone, composed(of)[0].contributions[0].spec).charge().others
    assert own.epsilon[OTHERS] == pytest.approx(8.0, rel=1e-6)
    assert f"is correlated over {noise.span}, and a client" in own.correlation
    assert f"{noise.error(ROUNDS):.2f} of the error of independent noise at ε 8.00" in own.correlation
    assert own.correlation.endswith(f"the same error at ε {brief(compose({event: 2}, plan.delta))}")
    assert "contributes 2 times at most" in own.correlation
    written = "\n".join(lines(of, [own]))
    assert own.correlation in written
    assert "takes part in one of 3 rounds" in written
    assert "correlated over rounds (a client is in one of 3 rounds at most)" in written
