"""Initial weights and own code of a study of parties: their digests are agreed to, and others refused."""

from __future__ import annotations

from dataclasses import replace
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
from securefl.deployment.party_setup import PartyStudy, require_agreed
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


def test_code_that_nobody_agreed_to_is_not_told_of_as_changed_and_the_remedy_works(tmp_path: Path) -> None:
    file, home = tmp_path / "start.safetensors", tmp_path / "client-0000"
    save(file, 0)
    of = made(starting(file))
    content = folders.init(home, of, part(of, "client-0000", tmp_path / "counters"))
    plan_file.write(home, replace(content, files={}))
    with pytest.raises(
        ConfigError, match=r"none, got SHA-256 .*: the study names it since, or nobody was asked"
    ):
        require_agreed(plan_file.read(home), of.plan, of.world)
    again(tmp_path, "client-0000", starting(file))
    require_agreed(plan_file.read(home), of.plan, of.world)


def test_a_server_that_starts_elsewhere_gets_no_party(tmp_path: Path) -> None:
    file = tmp_path / "start.safetensors"
    save(file, 0)
    roster = enrolled(tmp_path, starting(file))
    with federation(tmp_path, starting(file)) as own:
        before = plan_file.read(tmp_path / SERVER).files["weights"]
        save(file, 1)
        with pytest.raises(ConfigError, match=r"initial weights of party\.toml"):
            own.coordinate(tmp_path / "run")  # its own file was changed
        again(tmp_path, SERVER, starting(file))
        pin(tmp_path / SERVER, roster)
        assert plan_file.read(tmp_path / SERVER).files["weights"] != before
        with pytest.raises(TooFewParties):
            own.coordinate(tmp_path / "other")  # its owner agreed to another start than the clients'
    (refusal, *_) = status(tmp_path / "client-0000")["refusals"]
    assert "study (its text, arm, seed, initial weights or own code)" in refusal["why"]


def test_a_study_without_files_of_its_own_names_none(tmp_path: Path) -> None:
    of = made()
    content = folders.init(tmp_path / "client-0000", of, part(of, "client-0000", tmp_path / "counters"))
    assert content.files == {}
    assert plan_file.read(tmp_path / "client-0000") == content


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


CODE = """
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy


def pictures():
    x, y = load_digits(return_X_y=True)
    return x.reshape(-1, 1, 8, 8) / 16, y


def model(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, outputs))


def loss(outputs, targets):
    return cross_entropy(outputs, targets, reduction="none")


def features():
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
"""
OWN = (
    CLEAR.replace('"digits"', '"records:pictures"\nclasses = 10\nfeatures = "nets:features"')
    .replace('kind = "mlp"\nhidden = [8]', 'kind = "models:model"')
    .replace("[privacy]", '[loss]\nfunction = "losses:loss"\n\n[privacy]')
)
MODULES = {
    "records": "code of the data",
    "nets": "code of the features",
    "models": "code of the model",
    "losses": "code of the loss",
}


def home_of(root: Path) -> Path:
    root.mkdir()
    for module in MODULES:
        (root / f"{module}.py").write_text(CODE)
    return root


def other(module: Path) -> None:
    """Code of the same results but for its own: another author's."""
    module.write_text(module.read_text() + "\n# mended\n")


def test_a_party_refuses_code_that_was_changed_after_it_agreed_and_the_remedies_work(tmp_path: Path) -> None:
    home = home_of(tmp_path / "study")
    of = made(OWN, home)
    folders.init(tmp_path / "client-0000", of, part(of, "client-0000", tmp_path / "counters"))
    agreed = plan_file.read(tmp_path / "client-0000")
    require_agreed(agreed, of.plan, of.world)
    for module, what in MODULES.items():
        file = home / f"{module}.py"
        other(file)
        found = parse(OWN, home=home)
        changed = BUILD(found, found.arms[0], found.study.seeds[0])
        with pytest.raises(ConfigError, match=rf"{what} of party\.toml, SHA-256 .* SHA-256 .*init --again"):
            require_agreed(agreed, changed.plan, changed.world)
        assert changed.work != of.work
        folders.renew(tmp_path / "client-0000", changed, part(changed, "client-0000", tmp_path / "counters"))
        require_agreed(plan_file.read(tmp_path / "client-0000"), changed.plan, changed.world)
        file.write_text(CODE)
