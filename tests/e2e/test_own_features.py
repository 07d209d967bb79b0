"""From a person's own texts, images and arrays by `securefl features` to predictions in their own words."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from PIL import Image
from support.command_line import done, said
from support.feature_files import HEADS, study

import securefl
from securefl.commands.main import cli
from securefl.core.errors import ConfigError, DataError
from securefl.study import run_report

SENTENCES = Path(__file__).parents[1] / "support" / "sentences.csv"
MEANS = """
import torch
from torch import nn


class Means(nn.Module):
    def forward(self, x):
        return torch.cat([x.mean((2, 3)), x.amax((2, 3)) - 1, x[:, :, 0, 0]], 1)
"""
OPEN = ("non_private = []", 'non_private = ["statistic"]')
LDA = HEADS.replace('"heads"', '"heads"\nhead = "ridge"')


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(run_report, "figures", lambda *_: [])
    Path("net.py").write_text(MEANS)
    return tmp_path


def trained(data: str, head: str = LDA) -> None:
    """A study of these lines of [data] in study.toml, run and exported to model.safetensors."""
    path = study(Path(), data, head, epsilon="inf")
    text = path.read_text().replace(*OPEN).replace('"fedcor", concentration = 0.5', '"iid"')
    path.write_text(text.replace("public_num_examples = 65", ""))
    done("run", path, "--out", "out", "--workers", 1)
    done("export", "out", "--run-code", "-o", "model.safetensors")


def test_texts_get_a_head(folder: Path) -> None:
    """Sixty sentences of three topics, of which the model sees 48, and new ones in a table without topics."""
    pytest.importorskip("wordllama")
    whole = pd.read_csv(SENTENCES)
    test = np.arange(len(whole)) % 5 == 0
    whole[~test].to_csv("seen.csv", index=False)
    whole[test].to_csv("new.csv", index=False)
    written = said("features", "seen.csv", "--text", "text", "--target", "topic", "--out", "seen.npz").output
    lines = written.partition("[data]\n")[2]
    assert 'classes = ["kitchen", "sport", "weather"]' in lines
    trained(lines.partition("seen.npz\n")[0])
    done("features", "new.csv", "--text", "text", "--out", "new.npz")
    done("predict", "model.safetensors", "new.npz", "-o", "predicted.csv")
    predicted = pd.read_csv("predicted.csv")["prediction"].to_numpy()
    assert (predicted == whole[test]["topic"].to_numpy()).mean() >= 0.75, "a third by chance"


def photos(root: Path) -> None:
    """Dark images of nights and bright ones of days, of several sizes."""
    rng = np.random.default_rng(0)
    for place, name in enumerate(("day", "night")):
        (root / name).mkdir(parents=True)
        for k in range(40):
            pixels = rng.random((20 + k % 3, 30, 3)) * (255 if place == 0 else 120)
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{k}.png")


def test_a_folder_of_images_by_an_own_network(folder: Path) -> None:
    photos(folder / "photos")
    written = said(
        "features", "photos", "--out", "p.npz", "--network", "net:Means", "--about", "means", "--size", 16
    ).output
    assert re.search("were computed by means, SHA-256 [0-9a-f]{16}; its training data", written)
    trained('source = "p.npz"\nclasses = ["day", "night"]')
    done(
        "features",
        "photos/night",
        "--out",
        "new.npz",
        "--network",
        "net:Means",
        "--about",
        "means",
        "--size",
        16,
    )
    done("predict", "model.safetensors", "new.npz", "-o", "predicted.csv")
    assert set(pd.read_csv("predicted.csv")["prediction"]) == {"night"}


@pytest.mark.parametrize(
    ("network", "about", "match"),
    [
        (
            "net:Means",
            "other means",
            "expected features by 'means, SHA-256 .*', as the model's card says, "
            "got features by 'other means, ",
        ),
        ("other:Other", "means", "the network of the card"),
    ],
    ids=["other words", "other code under the same words"],
)
def test_features_of_another_network_are_refused(network: str, about: str, match: str, folder: Path) -> None:
    """The attack: rows of the same width, which another network computed, would be read without a word."""
    photos(folder / "photos")
    done("features", "photos", "--out", "p.npz", "--network", "net:Means", "--about", "means")
    trained('source = "p.npz"\nclasses = ["day", "night"]')
    Path("other.py").write_text(MEANS.replace("Means", "Other"))
    done("features", "photos", "--out", "other.npz", "--network", network, "--about", about)
    refused = said("predict", "model.safetensors", "other.npz", "-o", "predicted.csv")
    assert isinstance(refused.exception, DataError)
    assert re.search(match, str(refused.exception))
    assert not Path("predicted.csv").exists()


def test_a_model_computes_the_features_of_its_study(folder: Path) -> None:
    """`[data] features`: the card names the network, and records are read as they were before it."""
    rng = np.random.default_rng(0)
    y = np.arange(80) % 2
    x = rng.random((80, 3, 6, 6)).astype(np.float32) * np.where(y, 1.0, 0.4)[:, None, None, None].astype("f4")
    np.savez("raw.npz", x=x, y=y)
    trained('source = "raw.npz"\nclasses = 2\nfeatures = "net:Means"\nnetwork = "means"')
    names: dict[str, type] = {}
    exec(MEANS, names)
    model = securefl.load("model.safetensors", network=names["Means"]())
    assert (model.predict(x) == y).mean() > 0.9
    assert (model.predict(model.inputs(x)) == model.predict(x)).all(), "features are read too"
    with pytest.raises(ConfigError, match="features, got none"):
        securefl.load("model.safetensors").predict(x)

    class Other(names["Means"]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.more = securefl.load("model.safetensors").module

    with pytest.raises(ConfigError, match="other features"):
        securefl.load("model.safetensors", network=Other()).predict(x)
    refused = said("predict", "model.safetensors", "raw.npz", "-o", "p.csv")
    assert "--network module:name" in str(refused.exception)
    done("predict", "model.safetensors", "raw.npz", "-o", "p.csv", "--network", "net:Means")
    assert pd.read_csv("p.csv")["prediction"].tolist() == model.predict(x).tolist()


def test_arrays_of_pixels_are_read_as_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (5, 3, 8, 8)).astype(np.uint8)
    np.savez("a.npz", x=pixels, y=[0, 1, 0, 1, 1])
    np.save("b-x.npy", pixels.astype(np.float32) / 255)
    for source in ("a.npz", "b-x.npy"):
        done("features", source, "--out", "f.npz", "--network", "net:Means")
        with np.load("f.npz") as file:
            assert file["x"][:, :3] == pytest.approx(pixels.mean((2, 3)) / 255, abs=1e-6)
            assert ("y" in file.files) == (source == "a.npz")
    refused = said("features", "f.npz", "--out", "g.npz", "--network", "net:Means")
    assert "got features that 'net:Means" in str(refused.exception)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["seen.csv", "--out", "f.npz"], "Expected --text, the column of texts"),
        (["seen.csv", "--text", "txt", "--out", "f.npz"], "expected one column 'txt'.*did you mean `text`"),
        (["seen.csv", "--text", "text", "--out", "f.npz"], "row 2, column 'text': expected a text, got none"),
        (["seen.csv", "--text", "text", "--out", "f.npz", "--network", "net:Means"], "row 2"),
        (["digits", "--target", "x", "--out", "f.npz"], "Expected --text"),
        (["nothing", "--out", "f.npz"], "or a file or folder, got 'nothing'"),
        (["digits", "--out", "f.npz", "--network", "net:Nothing"], "Nothing"),
        (["digits", "--out", "f.npz", "--network", "wordllama"], "reads numbers or images for digits"),
        (["digits", "--out", "f.npz", "--network", "efficientnet_lite0", "--about", "x"], "Leave it out"),
        (["digits", "--out", "f.npz", "--network", "net:torch"], "to be a class or function"),
        (["empty", "--out", "f.npz"], "1 to 1,000,000 images, got 0"),
    ],
)
def test_what_cannot_be_read_is_refused(words: list[str], match: str, folder: Path) -> None:
    pytest.importorskip("wordllama")
    Path("seen.csv").write_text("text,topic\nA goal.,sport\n,sport\n")
    Path("empty").mkdir()
    with pytest.raises((ConfigError, DataError), match=match):
        CliRunner().invoke(cli, ["features", *words], catch_exceptions=False)
    assert not Path("f.npz").exists()
