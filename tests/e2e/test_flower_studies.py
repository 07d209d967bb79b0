"""Studies over Flower have the models of one process, bit for bit; who is lost on the way is left out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.grid_double import Fate, failing, from_another, late, silent, twice
from support.grid_parties import Parties
from support.hidden_studies import FEDAVG, shares_of_noise
from support.hidden_studies import hidden as hidden_study
from support.tiny_study import text

from securefl.core.errors import ConfigError
from securefl.core.release import PARTIES, SERVER
from securefl.deployment.coordinator import OwnMachines
from securefl.deployment.plan_file import HolderTerms, PlanFile
from securefl.flower.exchange import GridExchange
from securefl.study.arm import ArmRun
from securefl.study.run import run_arm

CLIENTS, ROUNDS = 5, 2
FEDPROF = FEDAVG.replace("fedavg", "fedprof")
hidden = partial(hidden_study, clients=CLIENTS, rounds=ROUNDS)
STUDIES = {
    "FedAvg, clear": text(FEDAVG, clients=CLIENTS, rounds=ROUNDS),
    "FedAvg, masked": hidden("masked"),
    "FedAvg, ckks": hidden("ckks", rounds=1),
    "FedAvg, two-server": hidden("two-server"),
    "FedProf, encrypted scores, masked": hidden("masked", FEDPROF).replace(
        'scores = "clear"', 'scores = "ckks"'
    ),
    "FedLog, shares of noise": shares_of_noise(CLIENTS),
}


@pytest.mark.parametrize("name", STUDIES)
def test_the_models_are_those_of_one_process_bit_for_bit(name: str) -> None:
    one, several = Parties(STUDIES[name]), Parties(STUDIES[name])
    mine, theirs = one.played(one.together()), several.played(several.apart())
    assert [several.why(own) for own in several.others] == [""] * len(several.others)
    assert one.survivors == several.survivors
    assert not np.array_equal(mine[0].broadcast, one.made.algorithm.start().broadcast)
    for a, b in zip(mine, theirs, strict=True):
        assert np.array_equal(a.broadcast, b.broadcast)


def test_the_servers_books_say_what_clients_spent() -> None:
    parties = Parties(shares_of_noise(CLIENTS))
    parties.played(parties.apart())
    spent = {own: parties.files["server"].ledger.worst(own) for own in PARTIES}
    assert spent == {own: parties.files["client-0000"].ledger.worst(own) for own in PARTIES}
    assert 0 < spent["server"] < 5


EVERYBODY, OTHERS = (0, 1, 2, 3, 4), (0, 1, 3, 4)


@every(
    ("fate", "survive"),
    [
        (silent, OTHERS),
        (late, OTHERS),
        (failing, OTHERS),
        (twice, EVERYBODY),
        (from_another, EVERYBODY),
    ],
)
def test_a_node_s_fate_costs_its_own_party_the_round(fate: Fate, survive: Any) -> None:
    """From the second wave of round 1 on. It is back in round 2, if its node is."""
    parties = Parties(hidden("masked"))
    engine, node = parties.apart(), parties.nodes["client-0002"]
    looks = [0]

    def fated(number: int, reply: Any) -> Any:
        looks[0] += 1
        return [(0, reply)] if looks[0] == 1 else fate(number, reply)  # the first is of its entering

    def between(number: int) -> None:
        parties.grid.fates = {node: fated} if number == 1 else {}

    parties.played(engine, between)
    assert parties.survivors == {1: {survive}, 2: {EVERYBODY}}
    assert parties.files["client-0000"].ledger.worst("server") == float(
        "inf"
    )  # unprotected, as the study says


def test_a_party_that_is_started_again_is_back_in_the_next_round() -> None:
    parties = Parties(hidden("masked"))
    engine, waves = parties.apart(), [0]

    def meddle(node: int, message: Any) -> Any:
        waves[0] += node == parties.nodes["client-0002"]
        if waves[0] == 4:  # in the middle of the masked sum
            parties.start("client-0002")
        return message

    parties.grid.meddle = meddle
    parties.played(engine)
    assert parties.survivors == {1: {OTHERS}, 2: {EVERYBODY}}
    assert "restart" in " ".join(entry.text for entry in parties.files["client-0002"].diary.refusals())


def agreed(parties: Parties) -> PlanFile:
    """What the server's owner agreed to."""
    made = parties.made
    terms = HolderTerms.of(made.plan)
    return PlanFile(
        name=SERVER, arm=made.arm.name, seed=1, counter="", terms=terms, plan=made.plan, clients=CLIENTS
    )


def test_a_run_that_was_cut_off_goes_on_in_its_session(tmp_path: Path) -> None:
    parties = Parties(hidden("masked"))
    made, grid = parties.made, parties.grid

    def run(rounds: int) -> ArmRun:
        exchange = GridExchange(grid, parties.nodes, deadline=5, clock=grid.clock, pause=grid.pause)
        backend = OwnMachines(agreed(parties), parties.pinned, parties.keys[SERVER], exchange)
        return run_arm(made.study, made.arm, made.world, tmp_path, print, rounds=rounds, backend=backend)

    assert len(run(1).records) == 1
    records = run(2).records
    assert [record["answered"] for record in records] == [[0, 1, 2, 3, 4]] * 2
    assert all(record["bytes_up"] > 0 and record["bytes_down"] > 0 for record in records)
    assert {record["epsilon"]["server"] for record in records} == {float("inf")}
    assert len(parties.files["client-0000"].diary.sessions()) == 1
    assert parties.why("client-0000") == ""


@every(
    ("section", "said"),
    [
        ("[network]\ndropout = 0.5", r"no \[network\] if parties run on machines of their own"),
        ("[corruption]\nreversed = 0.5", r"no reversed in \[corruption\] if parties run on machines"),
    ],
)
def test_what_only_a_simulation_has_is_refused(section: str, said: str, tmp_path: Path) -> None:
    parties = Parties(text(FEDAVG, clients=CLIENTS, rounds=1, extra=section))
    made = parties.made
    backend = OwnMachines(agreed(parties), parties.pinned, parties.keys[SERVER], lambda requests: {})
    with pytest.raises(ConfigError, match=said):
        run_arm(made.study, made.arm, made.world, tmp_path, print, backend=backend)
