"""Taking a model out of a run folder: what is refused, what the card says, and that nothing is written."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.command_line import said as command
from support.every import every
from support.read_only import content
from support.tiny_study import FEDAVG, run, text

from securefl.accounting.statements import identity_of
from securefl.core.errors import ConfigError, DataError
from securefl.storage.folder_lock import locked
from securefl.storage.private_folder import CONFIG, RUN, note_format
from securefl.study.arm import ARMS, arm_folder, checkpoint_file
from securefl.study.checkpoint import Checkpoint
from securefl.study.config import Study, parse
from securefl.study.export import taken
from securefl.study.folder import private_copy
from securefl.study.world import build
from securefl.training.trained import load

LG = '[[arm]]\nname = "Own bodies"\nprotocol = "lg_fedavg"\n'
OF = parse(text(FEDAVG, LG, seeds="[3, 5]"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole(OF, tmp_path_factory.mktemp("run"))


def whole(of: Study, folder: Path) -> Path:
    """A run folder in which all arms have finished."""
    note_format(folder, RUN)
    (folder / CONFIG).write_text(of.text)
    for seed in of.study.seeds:
        here = build(of, seed)
        for arm in of.arms:
            run(of, folder, here=here, arm=arm)
    return folder


def told(*words: object) -> str:
    done = command("export", *words)
    return str(done.exception) if done.exception is not None else done.output


def test_nothing_is_written_in_the_run(finished: Path, tmp_path: Path) -> None:
    before = content(finished)
    said = told(finished, "--arm", "FedAvg", "--seed", 5, "-o", tmp_path / "model.safetensors")
    assert "seed 5, 2 rounds: the model that all clients have" in said
    assert content(finished) == before


def test_the_same_run_gives_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    for name in ("one.safetensors", "two.safetensors"):
        taken(OF, finished, "fedavg").write(tmp_path / name)
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()


def test_the_card_says_what_ledger_and_record_say(finished: Path, tmp_path: Path) -> None:
    card = json.loads(told(finished, "--arm", "FedAvg", "-o", tmp_path / "model.safetensors", "--json"))
    file = checkpoint_file(arm_folder(finished, OF.arms[0], 3))
    with Checkpoint(file) as checkpoint:
        noted = checkpoint.load()[1][-1]["ledger"]
    assert card["ledger"] == {"run": identity_of(file), "entries": noted["count"], "head": noted["head"]}
    assert card["privacy"]["epsilon"] == {"server": "inf", "key-holder": 0.0, "others": "inf"}
    assert card["privacy"]["learns"]["server"].startswith("of each client ")
    assert (card["seed"], card["rounds"], card["part"], card["client"]) == (3, 2, "whole", None)
    assert load(tmp_path / "model.safetensors").card == card


def test_epsilon_is_said_not_to_cover_a_clients_own_body(finished: Path) -> None:
    said = taken(OF, finished, "Own bodies", client=1).card["privacy"]["covers"]
    assert said == "No epsilon covers this file: it has values that never left the client's device."


@every(
    ("words", "match"),
    [
        (["--arm", "fedavq"], "got 'fedavq' .did you mean `FedAvg`"),
        (["--arm", "FedAvg", "--seed", "4"], "a seed among 3, 5, got 4"),
        (["--arm", "Own bodies", "--client", "6"], "a client from 0 to 5, got 6"),
        (["--arm", "Own bodies", "--client", "-1"], "a client from 0 to 5, got -1"),
        (["--arm", "FedAvg", "--client", "0"], "all clients have the same model"),
        ([], "Expected the name of an arm, which of FedAvg, Own bodies, got none"),
    ],
)
def test_what_is_not_there_is_named(words: list[str], match: str, finished: Path, tmp_path: Path) -> None:
    done = command("export", finished, "-o", tmp_path / "x.safetensors", *words)
    with pytest.raises(ConfigError, match=match):
        raise done.exception or AssertionError(done.output)
    assert not (tmp_path / "x.safetensors").exists()


def test_an_arm_that_never_finished_is_refused_with_the_command_that_goes_on(tmp_path: Path) -> None:
    of = parse(text(FEDAVG, LG))
    note_format(tmp_path, RUN)
    (tmp_path / CONFIG).write_text(of.text)
    run(of, tmp_path, rounds=1)
    goes_on = f"go on with: securefl run {tmp_path}/study.toml --out {tmp_path}"
    for arm, rounds in (("FedAvg", 1), ("Own bodies", 0)):
        with pytest.raises(ConfigError, match=f"got {rounds} of 2 rounds; {goes_on}"):
            taken(of, tmp_path, arm)
    assert not arm_folder(tmp_path, of.arms[1], 3).exists(), "a refused export began an arm"


def test_a_run_at_work_is_refused(finished: Path) -> None:
    with locked(finished), pytest.raises(ConfigError, match="is in use by"):
        taken(OF, finished, "FedAvg")


def test_a_ledger_that_lost_releases_is_refused(tmp_path: Path) -> None:
    of = parse(text(FEDAVG))
    whole(of, tmp_path)
    home = arm_folder(tmp_path, of.arms[0], 3)
    with closing(sqlite3.connect(home / "ledger.sqlite")) as db, db:
        db.execute("DELETE FROM releases WHERE round = 2")
    with pytest.raises(DataError, match="changed or are missing") as refused:
        taken(of, tmp_path, "FedAvg")
    assert str(home / "ledger.sqlite") in str(refused.value), "and not a temporary copy of it"
    (home / "ledger.sqlite").unlink()
    with pytest.raises(ConfigError, match="got 0 of 2 rounds"):
        taken(of, tmp_path, "FedAvg")
    assert not (home / "ledger.sqlite").exists()


def test_a_run_that_goes_on_during_the_copy_is_noticed(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = shutil.copytree(finished, tmp_path / "run")
    copy = shutil.copyfile

    def late(source: Path, target: Path) -> None:
        copy(source, target)
        with source.open("ab") as file:
            file.write(b"\0")

    monkeypatch.setattr(shutil, "copyfile", late)
    with pytest.raises(ConfigError), private_copy(copied, ARMS):
        pass
