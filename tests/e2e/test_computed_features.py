"""`[data] features`: a frozen network computes them client by client, once, and is told of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.command_line import said
from support.feature_files import HEADS, study
from support.outside import installed
from support.tiny_study import run

from securefl.core.errors import ConfigError, DataError
from securefl.data import shakespeare
from securefl.study import own_code as records
from securefl.study import run_report, world
from securefl.study.config import read
from securefl.training import networks
from securefl.training.networks import named

BODY = """
import torch
from torch import nn


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(64)[:, :40])

    def forward(self, x):
        return x.flatten(1) @ self.weight
"""
DATA = 'source = "digits"\nfeatures = "body:Body"\nnetwork = "a map that was drawn"'
SENTENCE = (
    "The features in digits were computed by a map that was drawn; its training data are outside epsilon"
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The study, with its network beside it and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "body.py").write_text(BODY, encoding="utf-8")
    return study(tmp_path, DATA, HEADS)


def rewritten(path: Path, old: str, new: str) -> Path:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


def test_clients_have_their_features_once(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = world.build(read(rewritten(own, DATA, 'source = "digits"')), 1)
    done: list[tuple[int, int]] = []
    of = read(rewritten(own, 'source = "digits"', DATA))
    here = world.build(of, 1, tell=lambda now, total: done.append((now, total)))
    assert here.problem.shape == (40,)
    for (mine, y), (whole, same) in zip(here.records, plain.records, strict=True):
        assert np.allclose(mine, whole.reshape(len(whole), -1)[:, :40])
        assert np.array_equal(y, same)
    assert done[-1] == (1797, 1797), "the test part too"
    kept = tmp_path / "cache" / "securefl" / "features"
    assert len([*kept.glob("*.npz")]) == 21, "a file for each client"

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(networks, "per_record_outputs", refuse)
    again = world.build(of, 1)
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(here.records, again.records, strict=True))


def test_a_run_says_what_epsilon_leaves_out(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_report, "figures", lambda *_: [])
    planned = said("plan", own)
    assert f"The features come from body:Body in {tmp_path / 'body.py'}" in planned.output
    assert SENTENCE in " ".join(planned.output.split())
    done = said("run", own, "--out", tmp_path / "out", "--workers", 1)
    assert done.exit_code == 0, done.output
    assert SENTENCE in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    versions = json.loads((tmp_path / "out" / "versions.json").read_text())
    assert versions["features"] == "a map that was drawn"
    assert "body:Body in" in versions["code of the features"]


def test_a_run_does_not_go_on_with_another_network(own: Path, tmp_path: Path) -> None:
    run(read(own), tmp_path / "out")
    rewritten(tmp_path / "body.py", "[:, :40]", "[:, 24:]")
    with pytest.raises(DataError, match="other features"):
        run(read(own), tmp_path / "out")


def test_kept_features_that_were_changed_are_refused(own: Path, tmp_path: Path) -> None:
    world.build(read(own), 1)
    first, second, *_ = sorted((tmp_path / "cache" / "securefl" / "features").iterdir())
    first.write_bytes(second.read_bytes()[:-1])
    with pytest.raises(DataError, match="Remove it"):
        world.build(read(own), 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return x.flatten(1) @ self.weight", "return x", r"features \(n, k\), got \(1, 1, 8, 8\)"),
        ("x.flatten(1)", "x.flatten(1)[:, :7]", "Expected records that body:Body reads, got some of shape"),
        ("torch.eye(64)[:, :40]", "torch.eye(64)[:, :40] / 0", "finite features"),
        ("torch.eye(64)[:, :40]", "torch.randn(64, 40)", "to make the same network each time"),
        ("x.flatten(1) @", "x.flatten(1).flip(0) @", "got Body, which does not"),
        ("super().__init__()", "raise OSError('gone')", "to make a network, got OSError: gone"),
        ("class Body(nn.Module):", "class Body:", "to make"),
        ("import torch\n", "import torch\nraise ImportError('gone')\n", "to import body:Body"),
    ],
)
def test_what_makes_no_features_is_refused(own: Path, old: str, new: str, message: str) -> None:
    rewritten(own.parent / "body.py", old, new)
    with pytest.raises((ConfigError, DataError), match=message):
        world.build(read(own), 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('source = "digits"\nfeatures = "efficientnet"', "did you mean `efficientnet_lite0`"),
        ('source = "digits"\nfeatures = "efficientnet_lite0"\nnetwork = "x"', "Expected no `network` beside"),
        ('source = "digits"\nfeatures = "gone:Body"', "Expected the module of 'gone:Body'"),
    ],
)
def test_a_network_that_there_is_not_is_refused(own: Path, data: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        world.build(read(rewritten(own, DATA, data)), 1)


def test_text_is_refused(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The play is made up: a newcomer has no file of one."""
    roles = ("ROMEO", "JULIET", "NURSE")
    play = "\n\n".join(f"{name}:\n{('but soft what light ' * 200)[:2100]}" for name in roles)
    monkeypatch.setattr(records, "load", lambda *_, **__: shakespeare.split(play, np.random.default_rng(0)))
    rewritten(own, "epsilon = 1.0", "epsilon = inf")
    with pytest.raises(ConfigError, match="`features`, got text"):
        world.build(read(rewritten(own, DATA, 'source = "shakespeare"\nfeatures = "body:Body"')), 1)


def test_a_package_brings_its_network(own: Path, tmp_path: Path) -> None:
    source = BODY + (
        "\n\ndef body():\n    from securefl.training.networks import Network\n\n"
        '    return Network(module=Body(), name="body 1", about="a body of a package")\n\n\n'
        "def number():\n    return 3\n"
    )
    points = {"securefl.networks": "their_body = bodies:body\ntheir_number = bodies:number"}
    with installed(tmp_path / "site", {"bodies.py": source}, points):
        here = world.build(read(rewritten(own, DATA, 'source = "digits"\nfeatures = "their_body"')), 1)
        with pytest.raises(ConfigError, match="got int"):
            named("their_number")
    assert here.problem.shape == (40,)
    assert "computed by a body of a package; its training data" in here.marks.outside[0]
