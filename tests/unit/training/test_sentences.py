"""The sentence network: as its package computes it, under a digest, each text on its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.every import every

from securefl.core.errors import ConfigError, DataError
from securefl.data.networks import is_name
from securefl.training import sentences
from securefl.training.networks import Network, named

pytest.importorskip("wordllama")
pytest.importorskip("tokenizers")
TEXTS = ["The cat sat on the mat.", "Ein Satz, auch mit Umlauten: Öl.", "", "word " * 2000]


@pytest.fixture(scope="module")
def network() -> Network:
    return named("wordllama")


def computed(network: Network, texts: list[str], folder: Path) -> np.ndarray:
    assert network.tokens is not None
    return network.features(network.tokens(texts), folder, lambda done: None)


def test_features_are_those_of_the_package(network: Network, tmp_path: Path) -> None:
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
    from wordllama.inference import WordLlamaInference

    home = Path(sys.modules["wordllama"].__file__ or "").parent
    vectors = load_file(home / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
    words = Tokenizer.from_file(str(home / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    theirs = WordLlamaInference(vectors, words)
    short = [text for text in TEXTS if 0 < len(text) < 1000]
    assert computed(network, short, tmp_path) == pytest.approx(theirs.embed(short), abs=1e-6)


def test_a_text_does_not_depend_on_others(network: Network, tmp_path: Path) -> None:
    together = computed(network, TEXTS, tmp_path)
    alone = [computed(network, [text], tmp_path)[0] for text in TEXTS]
    assert np.array_equal(together, np.stack(alone))
    assert not together[2].any(), "a text without a token"
    assert np.isfinite(together).all()


def test_it_says_what_it_is(network: Network) -> None:
    assert is_name(network.about)
    assert sentences.WEIGHTS in network.name
    assert not any(entry.requires_grad for entry in network.module.parameters())
    assert sum(entry.numel() for entry in network.module.buffers()) == 32_000 * sentences.WIDTH
    assert network.module(torch.full((1, 4), -1)).tolist() == [[0.0] * sentences.WIDTH]


@every("name", ["WEIGHTS", "TOKENIZER"])
def test_a_file_of_another_digest_is_not_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, name, "0" * 64)
    with pytest.raises(DataError, match="Reinstall wordllama"):
        sentences.wordllama()


def test_without_the_extra_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pip install wordllama==.* 'tokenizers>=.*'$"):
        sentences.wordllama()
