"""Initial weights of a study of parties: their digest is agreed to, and no other start is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.coordinated import federation
from support.party_folders import BUILD, CLEAR, enrolled, made, part, pin

from securefl.core.errors import ConfigError
from securefl.core.release import SERVER
from securefl.deployment import folder as folders
from securefl.deployment import plan_file
from securefl.deployment.gathering import TooFewParties
from securefl.deployment.party_setup import PartyStudy
from securefl.deployment.status import status
from securefl.study.config import parse

SHAPES = {"fc1.weight": (8, 64), "fc1.bias": (8,), "fc2.weight": (10, 8), "fc2.bias": (10,)}


def save(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    save_file({name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}, path)


def starting(path: Path) -> str:
    """The study that starts from the file's values, which are nobody's."""
    return CLEAR.replace("hidden = [8]", f'hidden = [8]\nweights = "{path}"\ntrained_on = "public"')


def again(root: Path, name: str, study: str, **more: Any) -> None:
    found = parse(study)
    of = PartyStudy.of(found, found.arms[0], found.study.seeds[0])
    folders.renew(root / name, of, folders.PartyOptions(name=name, arm=of.arm, seed=of.world.seed))


def test_a_party_refuses_a_file_that_was_changed_after_it_agreed_and_the_remedies_work(
    tmp_path: Path,
) -> None:
    file, client = tmp_path / "start.safetensors", tmp_path / "client-0000"
    save(file, 0)
    enrolled(tmp_path, starting(file))
    agreed = file.read_bytes()
    save(file, 1)
    for name in ("client-0000", SERVER):
        with (
            pytest.raises(ConfigError, match=r"initial weights of party\.toml, SHA-256 .*init --again"),
            folders.opened(tmp_path / name),
        ):
            pass
    file.write_bytes(agreed)
    with folders.opened(client):
        pass
    save(file, 1)
    again(tmp_path, "client-0000", starting(file))
    with folders.opened(client):
        pass


def test_a_server_that_starts_elsewhere_gets_no_party(tmp_path: Path) -> None:
    file = tmp_path / "start.safetensors"
    save(file, 0)
    roster = enrolled(tmp_path, starting(file))
    with federation(tmp_path, starting(file)) as own:
        before = plan_file.read(tmp_path / SERVER).weights
        save(file, 1)
        with pytest.raises(ConfigError, match=r"initial weights of party\.toml"):
            own.coordinate(tmp_path / "run")  # its own file was changed
        again(tmp_path, SERVER, starting(file))
        pin(tmp_path / SERVER, roster)
        assert plan_file.read(tmp_path / SERVER).weights != before
        with pytest.raises(TooFewParties):
            own.coordinate(tmp_path / "other")  # its owner agreed to another start than the clients'
    (refusal, *_) = status(tmp_path / "client-0000")["refusals"]
    assert "study (its text, arm, seed or initial weights)" in refusal["why"]


def test_a_study_without_weights_has_the_same_plan_file_as_before(tmp_path: Path) -> None:
    of = made()
    content = folders.init(tmp_path / "client-0000", of, part(of, "client-0000", tmp_path / "counters"))
    assert content.weights is None
    assert "weights" not in (tmp_path / "client-0000" / plan_file.NAME).read_text().split("[plan]")[0]


def test_weights_of_the_parties_own_records_are_refused_with_what_to_do(tmp_path: Path) -> None:
    save(tmp_path / "start.safetensors", 0)
    own = starting(tmp_path / "start.safetensors").replace('"public"', '"ledger"')
    remedy = "cannot tell whether its ledger.*Leave `weights` and `trained_on` out"
    shared = own.replace("[privacy]", f'[privacy]\nledger = "{tmp_path / "people"}"')
    for text in (own, shared.replace("budget = inf", "budget = 4.0")):
        found = parse(text)
        with pytest.raises(ConfigError, match=remedy):
            BUILD(found, found.arms[0], found.study.seeds[0])
    plain = parse(CLEAR)
    BUILD(plain, plain.arms[0], plain.study.seeds[0])
