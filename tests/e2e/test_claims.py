"""What a client can gain by lying about itself, and what the run says of clients that are not there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
from support.changed_protocols import Changed
from support.every import every
from support.offenders import offenders
from support.tiny_study import FEDAVG, FEDPROF, run, study, world

from securefl.algorithm.clients import ClientContext
from securefl.algorithm.queries import Value, ValueSpec
from securefl.protocols.contributions import Count, Size
from securefl.study import results, run_report
from securefl.study.arm import ArmRun, arm_folder, checkpoint_file
from securefl.study.arm_options import ProtocolOptions
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Arm
from securefl.study.seeded import World
from securefl.study.world import build

BY_SIZE = '[[arm]]\nname = "RP"\nprotocol = "fedavg_rp"\nscheme = "I"\nfraction = 0.5\n'


@dataclass(frozen=True)
class Claiming:
    """Numbers of records, of which client 1 claims another one."""

    own: Size | Count
    claim: float

    @property
    def spec(self) -> ValueSpec:
        return self.own.spec

    def compute(self, context: ClientContext) -> Value:
        return Value(clear=np.array([self.claim])) if context.client == 1 else self.own.compute(context)


def lying(options: ProtocolOptions, claim: float) -> Arm:
    changed = Changed(options, lambda own: Claiming(own, claim) if isinstance(own, Size | Count) else own)
    return Arm(name="x", protocol="fedavg", options=changed)


@every("claim", [-1e9, 0.0, 1.7e308])
def test_a_false_number_of_records_costs_its_sender_alone(claim: float, tmp_path: Path) -> None:
    of = study(BY_SIZE, rounds=3)
    finished = run(of, tmp_path, arm=lying(of.arms[0].options, claim))
    for record in finished.records:
        assert set(record["rejected_from"]) == {"client-0001"}
        assert record["answered"] == sorted(set(record["selected"]))
    assert finished.records[-1]["accuracy"] != finished.records[0]["accuracy"]


@every("claim", [-1e9, -5.0, 0.0, 5.0, 1.7e308])
def test_a_false_count_in_a_sum_stays_within_the_records_there_are(claim: float, tmp_path: Path) -> None:
    """Beyond the grid it is cut to it, since silence would tell; n is false, and still one that n can be."""
    of = study(FEDAVG.replace("0.5", "1.0"), rounds=3)
    arm = lying(of.arms[0].options, claim)
    finished = run(of, tmp_path, arm=arm)
    assert not any(record["rejected_from"] for record in finished.records)
    assert not finished.records[0]["abstained"]
    with Checkpoint(checkpoint_file(arm_folder(tmp_path, arm, 3))) as checkpoint:
        state, _ = checkpoint.load()
    assert state is not None
    assert 6 <= state.memory["records"][0] <= world(of).problem.records
    assert all(np.isfinite(record["accuracy"]) for record in finished.records)


def test_speeds_say_nothing_about_records() -> None:
    """The population is public: worlds that differ in who holds what have the same one."""
    of = study(FEDAVG)
    skewed = replace(
        world(of), records=[(np.zeros((k + 1, 1, 8, 8), np.float32), np.zeros(k + 1)) for k in range(6)]
    )
    assert world(of).population().seconds.tolist() == skewed.population().seconds.tolist()


def test_the_lost_are_counted(tmp_path: Path) -> None:
    of = study(FEDAVG, rounds=4, extra="[network]\ndropout = 0.3\n")
    finished = run(of, tmp_path)
    table = results.collect(of, [finished])
    lost = table.metrics["survivors_lost"]
    assert lost.sum() > 0
    assert lost.tolist() == [3 - len(record["answered"]) for record in finished.records]
    assert table.participation["answered"].sum() == 12 - lost.sum()
    assert table.participation["selected"].sum() == 12


# What the modelled costs count ------------------------------------------------------------------


def cost_world(more: str = "", **local: Any) -> World:
    of = study(FEDAVG, extra=more)
    return build(replace(of, local=replace(of.local, **local)), 3)


def test_steps_are_charged_as_the_passes_they_are() -> None:
    sizes = np.array([16, 32, 160])
    assert cost_world().passes(sizes).tolist() == [2.0, 2.0, 2.0]
    assert cost_world(epochs=None, steps=10, batch_size=16).passes(sizes).tolist() == [10.0, 5.0, 1.0]
    paper = cost_world('[cost]\npreset = "cifar10_v2"\n')
    assert paper.cost_model.bits_per_sample == 8 * 64, "a pixel of real data is a byte"


def test_an_introduction_takes_time_and_energy(tmp_path: Path) -> None:
    """FedProf asks everybody for a profile in round 1, and only then."""
    of = study(FEDPROF, rounds=2)
    first, second = run(of, tmp_path).records
    assert first["seconds"] > 1.2 * second["seconds"]
    assert first["watt_hours"] > 1.2 * second["watt_hours"]


def test_the_constant_sizes_of_a_preset_are_charged_as_published(tmp_path: Path) -> None:
    of = study(
        FEDAVG.replace("fraction", 'aggregation = "partial"\nfraction'), extra="[cost]\nreal_bytes = false\n"
    )
    here = world(of)
    finished = run(of, tmp_path, here=here)
    one = finished.records[-1]
    chosen = sorted(set(one["selected"]))
    mhz, ghz = here.devices.mhz[chosen], here.devices.ghz[chosen]
    send = 3 * 3.0 * 8 / (mhz * np.log2(11))
    train = 5 * here.sizes[chosen] * 28 * 28 * 8 * 400 / (ghz * 1e9)
    assert one["seconds"] == pytest.approx(float(np.max(send + train)))


# The privacy card -------------------------------------------------------------------------------

OFTEN = " (one linear function of its vector, at most 2 times; {})"
LEFT = {
    "pads": "at worst one that is legal reads one entry to 0.0002 % of its anchor's unit, "
    "2 on one vector to 0.0001 %",
    "ckks": "at worst one that is legal reads one entry to 0.000000003 % of its anchor's unit, "
    "2 on one vector to 0.000000002 %",
}
CARD = {
    'protocol = "fedavg"\naggregation = "partial"': "its model update",
    'protocol = "fedavg"': "its model update, its number of records",
    'protocol = "fedavg_rp"': "its model update, its number of records",
    'protocol = "active_fl"': (
        "its model update, the mean loss of the model on its records, its number of records"
    ),
    'protocol = "fedprof"': f"its model update, one score of its profile{OFTEN}",
    'protocol = "fedprof"\nvariant = "mean-only"': (
        f"its model update, one score of its profile, and the variances in it{OFTEN}"
    ),
    'protocol = "fedprof"\nalpha = "theorem-1"': (
        f"its model update, one score of its profile{OFTEN}, its number of records"
    ),
}


LIMITS = {
    "ckks": (
        " (a server that breaks the protocol, with one client as its accomplice, reads any entry of it, and "
        "the key holder's key)"
    ),
}
"""Under pads it gets the declared number, and no more."""


def test_the_privacy_card_says_what_each_protocol_shows(tmp_path: Path) -> None:
    ways = ("clear", "ckks", "pads")
    # A protocol without scores is the same under all ways to hide them: two tell.
    cases = [(arm, way) for arm in CARD for way in ways if "fedprof" in arm or way in ways[:2]]
    assert offenders(cases, lambda case: check_card(*case, Path(mkdtemp(dir=tmp_path)))) == []


def check_card(arm: str, scores: str, folder: Path) -> None:
    of = study(f'[[arm]]\nname = "x"\nfraction = 0.5\n{arm}\n', scores=scores, rounds=1)
    here = world(of)
    algorithm = of.arms[0].options.build(here.problem)
    collected = results.collect(of, [run(of, folder, here=here)])
    server, key_holder, _ = run_report.privacy_card(collected, {"x": (algorithm, of.privacy.plan(1))})
    expected = CARD[arm].format(LEFT.get(scores))
    if scores == "clear" and "fedprof" in arm:
        rest = ", its number of records" if "theorem" in arm else ""
        expected = "its model update, its whole profile" + rest
    beyond = LIMITS.get(scores, "") if "fedprof" in arm else ""
    # No sum is noised, so a server that crafts the model reads records from it.
    expected = expected.replace(
        "its model update", "its model update, and single records if it crafts the model"
    )
    assert server.learns == f"of each client {expected}{beyond}"
    assert server.epsilon == "∞ (non-private)"
    learns = "blinded integers, uniform to it"
    if scores == "clear" or "fedprof" not in arm:
        learns = "nothing: it takes no part"
    elif scores == "ckks":
        learns = "who takes part, and the weights of each query, such as the server's baseline"
    elif scores == "pads":
        learns = (
            "how many are asked and answer, not which; "
            "the weights of each query, such as the server's baseline"
        )
    assert key_holder.learns == learns


def test_arms_that_show_the_same_share_a_row(tmp_path: Path) -> None:
    of = study(FEDAVG, FEDPROF, FEDPROF.replace("FedProf", "Prof 2"), scores="ckks", rounds=1)
    here = world(of)
    runs: list[ArmRun] = [run(of, tmp_path / arm.name, here=here, arm=arm) for arm in of.arms]
    arms = {arm.name: (arm.options.build(here.problem), of.privacy.plan(1)) for arm in of.arms}
    rows = run_report.privacy_card(results.collect(of, runs), arms)
    assert [(row.party, list(row.arms)) for row in rows] == [
        ("server", ["FedAvg"]),
        ("server", ["FedProf", "Prof 2"]),
        ("key-holder", ["FedAvg"]),
        ("key-holder", ["FedProf", "Prof 2"]),
        ("others", ["FedAvg", "FedProf", "Prof 2"]),
    ]
