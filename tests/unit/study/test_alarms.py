"""A run in which something went wrong says so: who was silent, what diverged, who learnt nothing, why."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from support.command_line import said as command
from support.every import every
from support.private_studies import client_level
from support.round_records import round_record
from support.tiny_study import FEDAVG, study, text, world

from securefl.commands.exit_codes import ExitCode
from securefl.storage.private_folder import private_page
from securefl.study import results, run_report
from securefl.study.alarms import alarms, once
from securefl.study.arm import ArmRun
from securefl.study.config import Study, parse
from securefl.study.run import run_arm
from securefl.study.seeded import World
from securefl.training.evaluation import constant_accuracy

LG = '[[arm]]\nname = "LG"\nprotocol = "lg_fedavg"\nfraction = 0.5\n'


def record(number: int, answered: tuple[int, ...] = (2,), **changes: Any) -> dict[str, Any]:
    return round_record(number, answered=list(answered), **changes)


@pytest.fixture(scope="module")
def here() -> World:
    return world(study(FEDAVG))


def run(here: World, *records: dict[str, Any]) -> ArmRun:
    return ArmRun(study(FEDAVG).arms[0], here, list(records))


def test_a_run_that_went_well_has_no_alarm(here: World) -> None:
    quiet = record(3, (), asked=0)  # FedLog's public statistic is asked for once
    assert alarms([run(here, record(1), record(2), quiet)]) == ()


def test_nobody_in_any_round_is_told_with_the_most_frequent_reason(here: World) -> None:
    why = {"client-0000": "It diverged.", "client-0002": "It diverged."}
    (found,) = alarms([run(here, *(record(n, (), abstained=why) for n in (1, 2)))])
    said = "FedAvg: nobody answered in any of 2 rounds: the model is as it began. Most often: It diverged."
    assert (found.text, found.learnt) == (said, False)
    (rejected_from,) = alarms([run(here, record(1, (), rejected_from={"client-0000": "Expected 3 bytes."}))])
    assert rejected_from.text.endswith(
        "in any of 1 round: the model is as it began. Most often: Expected 3 bytes."
    )
    (nobody,) = alarms([run(here, record(1, (), asked=0, selected=[]))])
    assert not nobody.learnt, "there was nobody left to ask"


@every(
    ("silent", "of", "learnt", "said"),
    [
        ([2], 4, True, "nobody answered in 1 of 4 rounds (round 2)."),
        ([1, 2, 4], 4, True, "nobody answered in 3 of 4 rounds (rounds 1, 2, 4)."),
        ([4], 4, True, "nobody answered in 1 of 4 rounds (round 4)."),
        (
            [3, 4],
            4,
            False,
            "nobody answered from round 3 on to the last, round 4: the model has not changed since.",
        ),
        ([2, 3, 4], 4, False, "nobody answered from round 2 on to the last, round 4"),
        ([*range(1, 20, 2)], 20, True, "10 of 20 rounds (rounds 1, 3, 5, 7, 9, ...)"),
    ],
)
def test_silent_rounds_are_told(silent: list[int], of: int, learnt: bool, said: str, here: World) -> None:
    rounds = [record(n, () if n in silent else (2,)) for n in range(1, of + 1)]
    (found,) = alarms([run(here, *rounds)])
    assert found.learnt is learnt
    assert said in found.text


def test_clients_that_never_answer_or_diverge_are_named(here: World) -> None:
    """One is silent, one diverges in a round, and one is lost in the only round that it is in."""
    rounds = [record(n, (2,), selected=[0, 1, 2] if n < 3 else [0, 2, 3]) for n in range(1, 4)]
    rounds[0]["answered"] = [1, 2]
    rounds[1]["without_records"] = {"client-0001": "got one that diverged."}
    (found,) = alarms([run(here, *rounds)])
    assert found.text == (
        "FedAvg: 2 of 4 clients diverged, or are in no sum: client-0000 in 3 of 3 rounds, client-0001 in 1 "
        "of 2 rounds. Most often: got one that diverged."
    )
    assert found.learnt
    many = [record(n, (0,), selected=[*range(9)]) for n in (1, 2)]
    assert "client-0005 in 2 of 2 rounds, ..." in alarms([run(here, *many)])[0].text


def test_all_rounds_without_a_client_are_counted(here: World) -> None:
    """It diverged in one of them, and failed otherwise in the others."""
    rounds = [record(n, (1,), selected=[0, 1]) for n in range(1, 5)]
    for n, own in enumerate(rounds):
        own["abstained"] = {"client-0000": "beyond the grid" if n else "got one that diverged"}
    assert "client-0000 in 4 of 4 rounds" in alarms([run(here, *rounds)])[0].text


def test_each_seed_names_its_own_clients(here: World) -> None:
    def of(seed: int, lost: int) -> ArmRun:
        rounds = [record(n, {0, 1, 2} - {lost}, selected=[0, 1, 2]) for n in (1, 2)]
        return run(replace(here, seed=seed), *rounds)

    told = alarms([of(1, 0), of(2, 2), of(3, 0)])
    assert [own.text.partition(":")[0] for own in told] == [
        "FedAvg (seed 1, and alike under 1 more of 3 seeds)",
        "FedAvg (seed 2, the only one of 3)",
    ]
    assert "client-0000" in told[0].text
    assert "client-0002" in told[1].text
    named = [("A", ": client-0002 in 2 of 2 rounds."), ("B", ": client-0000 in 2 of 2 rounds.")]
    assert once(named) == ["A: client-0002 in 2 of 2 rounds.", "B: client-0000 in 2 of 2 rounds."]


SHARED = {"sum": '"masked"', "noise": '"distributed"', "dropout": "0.2", "corrupt": "0.0", "min_honest": "2"}


@every("of", [client_level(rounds=1), client_level(rounds=1, **SHARED)])
def test_a_client_that_diverges_under_an_epsilon_is_told_to_its_owner(of: Study, tmp_path: Path) -> None:
    """It answers as one without records, since silence would tell of them: the server sees no difference."""
    diverging = parse(of.text.replace("learning_rate = 0.2", "learning_rate = 1e30"))
    played = run_arm(diverging, diverging.arms[0], world(diverging), tmp_path, lambda *_: None)
    assert [len(record["answered"]) for record in played.records] == [6]
    assert all("diverged" in why for record in played.records for why in record["without_records"].values())
    assert [len(record["without_records"]) for record in played.records] == [6]
    (told, *_) = alarms([played])
    assert "6 of 6 clients diverged, or are in no sum: client-0000 in 1 of 1 round" in told.text
    (row,) = results.abstentions([played]).to_dict("records")
    assert (row["what"], row["clients"], row["rounds"], row["times"]) == ("blank", 6, 1, 6)


def test_sentences_that_differ_in_numbers_alone_are_one() -> None:
    told = [("A", " (seed 1): 1 of 2 rounds."), ("B", ": 12 of 30 rounds."), ("C", ": never.")]
    said = "A (seed 1): 1 of 2 rounds. Alike but for numbers: B."
    assert once(told) == [said, "C: never."]
    many = once((f"epsilon = {at}: A", f": {at} rounds.") for at in range(14))
    assert len(many) == 1
    assert many[0].endswith("; epsilon = 3: A; 10 more."), "cells are named by their noise"
    assert once([]) == []


@every("bad", [{"accuracy": math.nan}, {"loss": math.nan}, {"loss": math.inf}])
def test_a_model_that_diverged_is_told(bad: dict[str, float], here: World) -> None:
    poor = {"accuracy": 0.05, **bad}
    (lost,) = alarms([run(here, record(1), record(2, accuracy=None, loss=None), record(3, **poor))])
    assert (
        "the model diverged: accuracy or loss is no finite number in 1 of 2 tested rounds (round 3)"
        in lost.text
    )
    assert not lost.learnt
    (found,) = alarms([run(here, record(1, **poor), record(2))])
    assert (found.learnt, "in 1 of 2 tested rounds (round 1)" in found.text) == (True, True)


def test_an_arm_no_better_than_one_answer_is_told(here: World) -> None:
    constant = constant_accuracy(here.problem.server_y, "classification")
    (found,) = alarms([run(here, record(1, accuracy=constant))])
    assert found.learnt
    assert f"no better than the {constant:.3f} of one constant answer, the most frequent class" in found.text
    assert alarms([run(here, record(1, accuracy=constant + 1e-9))]) == ()


def test_personal_models_are_compared_with_an_answer_for_each_client() -> None:
    here = world(study(FEDAVG))
    object.__setattr__(here, "records", [(x[y == k], y[y == k]) for k, (x, y) in enumerate(here.records)])
    (found,) = alarms([run(here, record(1, accuracy=0.99, personal=True))])
    assert "no better than the 1.000 of one constant answer to each client's test records" in found.text
    assert alarms([run(here, record(1, accuracy=0.99))]) == (), "a global model knows no client"


def test_a_constant_answer_to_a_regression_is_the_mean() -> None:
    targets = np.array([[0.2], [0.4]], np.float32)
    assert constant_accuracy(targets, "regression") == pytest.approx((0.2 / 0.3 + 0.3 / 0.4) / 2, rel=1e-6)


def test_reasons_are_counted_without_their_numbers(here: World) -> None:
    first = record(
        1,
        abstained={"client-0000": "It has 3 of 5."},
        rejected_from={"server": "Bad bytes."},
        selected=[0, 1, 2],
    )
    second = record(2, abstained={"client-0001": "It has 4 of 5.", "client-0000": "It has 9 of 5."})
    of = study(FEDAVG)
    found = results.collect(of, [run(here, first, second)])
    assert found.abstentions.to_dict("records") == [
        row("clients", "abstained", "It has 3 of 5.", clients=2, rounds=2, times=3),
        row("server", "refused", "Bad bytes.", clients=0, rounds=1, times=1),
        row(
            "clients",
            "silent",
            "no reason is on record: it was lost on the way, or is part of a sum that came to nothing",
            clients=1,
            rounds=1,
            times=1,
        ),
    ]
    said = json.loads(json.dumps(run_report.private_json(found), allow_nan=False))
    assert said["abstentions"][0]["reason"] == "It has 3 of 5."


def row(who: str, what: str, reason: str, **counts: int) -> dict[str, Any]:
    return {"arm": "FedAvg", "who": who, "what": what, "reason": reason, **counts, "told": ""}


def test_an_accuracy_that_is_nan_at_the_end_is_no_accuracy(here: World, tmp_path: Path) -> None:
    of = study(FEDAVG)
    found = results.collect(of, [run(here, record(1), record(2, accuracy=math.nan, loss=math.nan))])
    assert math.isnan(found.summary[0].final_accuracy)
    assert not found.learnt
    said = json.loads(json.dumps(run_report.as_json(found), allow_nan=False))
    assert said["arms"][0]["final_accuracy"] is None
    page = private_page(run_report.write(of, found, [], tmp_path, "securefl run x")).read_text()
    assert "FedAvg: the model diverged" in page


# Whole runs -------------------------------------------------------------------------------------


def diverging(folder: Path) -> Path:
    toml = folder / "study.toml"
    wrong = text(FEDAVG, LG, non_private='["update"]').replace("learning_rate = 0.2", "learning_rate = 1e30")
    toml.write_text(wrong)
    return toml


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("diverging")
    out = folder / "run"
    return out, command("run", diverging(folder), "--out", out, "--workers", "1")


def test_a_run_in_which_all_diverged_ends_with_its_own_exit_code(ended: tuple[Path, Result]) -> None:
    out, result = ended
    assert result.exit_code == ExitCode.UNLEARNT == 4
    assert result.stderr.count("nobody answered in any of 2 rounds") == 1
    assert result.stderr.count("Warning: ") == 1
    assert "got a training that diverged. Lower the learning rate" in result.stderr
    page = (out / "private" / "report.html").read_text()
    assert "FedAvg: nobody answered in any of 2 rounds" in page
    assert "Missing parts" in page
    assert "got a training that diverged" in (out / "private" / "abstentions.csv").read_text()
    summary = json.loads((out / "private" / "summary.json").read_text())
    assert [(own["arm"], own["learnt"]) for own in summary["warnings"]] == [("FedAvg", False), ("LG", False)]
    assert {own["what"] for own in summary["abstentions"]} == {"abstained"}


def test_its_report_ends_alike(ended: tuple[Path, Result], tmp_path: Path) -> None:
    out, _ = ended
    again = command("report", out, "--out", tmp_path / "pages", "--json")
    assert again.exit_code == ExitCode.UNLEARNT
    assert "Warning: FedAvg: nobody answered" in again.stderr
    assert "Alike but for numbers: LG." in again.stderr
    assert len(json.loads(again.stdout)["private"]["warnings"]) == 2, "stdout is JSON alone"


def test_global_and_personal_models_are_told_apart(ended: tuple[Path, Result]) -> None:
    out, _ = ended
    page = (out / "report.html").read_text()
    assert ">global</td>" in page
    assert ">personal</td>" in page
    assert "Accuracy is the share of test records whose class is right." in page
    said = json.loads((out / "summary.json").read_text())["answer"]
    assert said.startswith("Nothing was learnt: FedAvg, the only arm with a global model, ended at")
    assert "Accuracies of personal models are not for publication: no epsilon covers them." in page
