"""Silence is a message: under a finite epsilon neither who answers nor any length tells of the records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.every import every
from support.private_studies import DISTRIBUTED, KEY_HOLDER, client_level, noised_fedprof, private
from support.tiny_study import FEDAVG, run, text, world
from support.tiny_study import study as written
from support.transcripts import NEIGHBOURS, all_spoilt, epsilon, few, require_alike, transcript

from securefl.core.abstaining import Reason
from securefl.core.errors import DataError, LocalProtocolError
from securefl.core.release import KEY_HOLDER as HOLDER
from securefl.core.release import SERVER
from securefl.engine.party import computing
from securefl.engine.party.computing import Computing
from securefl.engine.party.contributing import Contributing
from securefl.study.config import parse

LOSSES = "loss_bound = 3.0\nfraction = 1.0"
NOISED = {"noise": '"local"', "epsilon": "8.0"}
PRIVATE = {
    "fedavg": private("fedavg", 'fraction = 1.0\naggregation = "partial"'),
    "fedavg by counts": private("fedavg", 'fraction = 1.0\naggregation = "full"'),
    "fedprox": private("fedprox", "fraction = 1.0"),
    "fedadam": private("fedadam", "fraction = 1.0"),
    "lg_fedavg": private("lg_fedavg", ""),
    "fedrep": private("fedrep", ""),
    "fedbabu": private("fedbabu", "fine_tune_epochs = 1"),
    "cfcfm": private("cfcfm", "fraction = 1.0"),
    "stc": private("stc", "fraction = 1.0\np = 0.1"),
    "cs_fl": private("cs_fl", "fraction = 1.0\nsigns = true"),
    "fedprof": noised_fedprof(),
    "active_fl": private("active_fl", LOSSES, **NOISED),
    "pow_d": private("pow_d", LOSSES, **NOISED),
    "fedlog, DP-SGD body": private("fedlog", 'body = "dp-sgd"', **NOISED),
}
"""Record-level privacy by DP-SGD, and noise on whatever else is sent."""
FAST = ("none", "several spoilt")


def test_the_attack_one_training_record_or_none(tmp_path: Path) -> None:
    """Specification of DP, 2.20: a client without records abstained, since its count is charged nothing."""
    of = PRIVATE["fedavg by counts"]
    none, one = (transcript(of, few(world(of), count), tmp_path / str(count)) for count in (0, 1))
    assert 0 < epsilon(none, SERVER) < 20
    assert none.pattern() == one.pattern()


@every("name", PRIVATE)
def test_private_records_show_in_no_pattern(name: str, tmp_path: Path) -> None:
    require_alike(PRIVATE[name], tmp_path, FAST, world(PRIVATE[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_no_neighbour_of_private_records_shows(name: str, tmp_path: Path) -> None:
    require_alike(PRIVATE[name], tmp_path, NEIGHBOURS, world(PRIVATE[name]))


@every("noise", ["central", "distributed", "key-holder"])
def test_clients_are_private_as_a_whole(noise: str, tmp_path: Path) -> None:
    said = {"central": {}, "distributed": DISTRIBUTED, "key-holder": KEY_HOLDER}[noise]
    more = {} if noise == "central" else {"min_cohort_size": "4", "max_client_weight": "0.51"}
    of = client_level(rounds=1, **said, **more)
    require_alike(of, tmp_path, ["none", "all nan"], world(of))


def test_a_key_holder_with_epsilon_0_sees_everybody_answer(tmp_path: Path) -> None:
    """Profiles are unprotected against the server. The key holder opens one score of each all the same."""
    arm = '[[arm]]\nname = "x"\nprotocol = "fedprof"\nfraction = 1.0\n'

    of = parse(
        text(arm, rounds=1, clients=4, scores="ckks").replace(
            'scores = "ckks"', 'scores = "ckks"\nparameters = "compact"'
        )
    )
    here = world(of)
    base, bad = (
        transcript(of, own, tmp_path / str(k)) for k, own in enumerate((here, all_spoilt(here, "nan")))
    )
    assert epsilon(bad, HOLDER) == 0
    assert base.finished is not None
    assert bad.finished is not None
    requests = [[seen for seen in own.seen if seen.to == HOLDER] for own in (base, bad)]
    assert Counter(requests[0]) == Counter(requests[1])
    assert "client-0001" in bad.finished.records[0]["without_records"]


# Reasons ------------------------------------------------------------------------------------------


def test_every_reason_has_a_class_and_one_alone_is_of_the_records() -> None:
    assert [reason for reason in Reason if reason.told == "records"] == [Reason.RECORDS]
    assert {reason.told for reason in Reason} == {"public", "charged", "holder", "records"}
    assert len({reason.word for reason in Reason}) == len(Reason)


def test_a_reason_of_the_records_cannot_be_expressed_where_silence_tells() -> None:
    party: Any = object.__new__(Contributing)
    with pytest.raises(LocalProtocolError, match="whatever its records are"):
        party._abstain(0, DataError("It has none."), speaks=True)


def test_the_class_of_a_reason_is_on_record(tmp_path: Path) -> None:
    """Without noise a client may be silent; the person at the machine sees that its records are why."""
    of = written(FEDAVG.replace("0.5", "1.0"), rounds=1)
    finished = run(of, tmp_path, here=all_spoilt(world(of), "nan"))
    assert finished.records[0]["reasons"] == {"client-0001": "records"}
    assert not finished.records[0]["without_records"]


def test_an_update_beyond_its_grid_is_cut_and_not_silent(tmp_path: Path) -> None:
    """Private training is paid for, so its model may be far away; its length and sender stay."""
    of = private("fedavg", 'fraction = 1.0\naggregation = "partial"')
    wild = parse(of.text.replace("learning_rate = 0.5\n", "learning_rate = 5e3\n"))
    found = transcript(wild, world(wild), tmp_path)
    assert found.finished is not None
    assert not any(record["abstained"] for record in found.finished.records)
    assert all(np.isfinite(record["epsilon"][SERVER]) for record in found.finished.records)


@every("speaking", [{0}, set()])
def test_training_that_fails_for_one_client_stops_no_other(speaking: set[int]) -> None:
    def fails(fits: Any) -> Any:
        raise RuntimeError("A code beyond the embedding.")

    values: Any = object.__new__(Computing)
    task = SimpleNamespace(client=0, wants=("update",))
    vars(values).update(
        _fits={"update": SimpleNamespace(fit=lambda context: context)},
        _values={},
        _trainer=fails,
        _job=lambda *asked: asked,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computing, "_question", lambda task, name: name)
        if speaking:
            values.train([(task, None)], speaking)
            assert values._made == {}
        else:
            with pytest.raises(RuntimeError, match="beyond the embedding"):
                values.train([(task, None)], speaking)
