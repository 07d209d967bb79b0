"""A pretrained public network that computes features of sentences. A package supplies its weights.

| name | package | licence | input |
|---|---|---|---|
| `wordllama` | wordllama 0.4.0.post1 | MIT by the package | the first 512 tokens of a text |

It has 32,000 token vectors of length 256, which derive from those of Llama 2 and other language models, and
were trained on public pairs of sentences.
A sentence's features are the mean of its tokens' vectors, as wordllama computes them. Epsilon does not cover
the data that the vectors were trained on. Nothing is downloaded, and no code of the package is run: its two
files are read under their SHA-256.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefl.core.installed import needing
from securefl.training.networks import Network, published

WEIGHTS: Final = "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5"
"""SHA-256 of the token vectors."""
TOKENIZER: Final = "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68"
"""SHA-256 of the tokenizer's file."""
ABOUT: Final = (
    "WordLlama 0.4.0 (256 numbers a sentence), token vectors of Llama 2 and other language models trained on "
    f"public pairs of sentences, licence MIT by its package, weights SHA-256 {WEIGHTS[:16]}"
)
"""The description of the network for reports (`securefl.data.networks`)."""
WIDTH: Final = 256
MOST_TOKENS: Final = 512
"""Further tokens of a text are not read."""
_PAD: Final = -1
_PACKAGE: Final = "wordllama 0.4.0.post1"


class Sentences(nn.Module):
    """Codes of tokens (n, MOST_TOKENS), int64 with -1 behind the last -> mean vectors (n, WIDTH).

    A text without a token becomes zeros.
    """

    vectors: Tensor

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.from_numpy(vectors))

    def forward(self, x: Tensor) -> Tensor:
        codes = x.long()
        present = codes >= 0
        found = self.vectors[codes.clamp(min=0)] * present[..., None]
        return found.sum(1) / present.sum(1, keepdim=True).clamp(min=1)


def wordllama() -> Network:
    """The network, for `securefl features --text`.

    Raises ConfigError if its packages are not installed, and DataError if their files are not the published
    ones.
    """
    with needing("text", "for the network wordllama"):
        from tokenizers import Tokenizer

        home = Path(str(distribution("wordllama").locate_file("wordllama")))
    from safetensors.numpy import load_file

    weights = published(home / "weights" / "l2_supercat_256.safetensors", WEIGHTS, _PACKAGE)
    words = published(home / "tokenizers" / "l2_supercat_tokenizer_config.json", TOKENIZER, _PACKAGE)
    vectors = load_file(weights)["embedding.weight"].astype(np.float32)
    return Network(
        module=Sentences(vectors).eval(),
        name=f"wordllama {WEIGHTS} {TOKENIZER}",
        about=ABOUT,
        tokens=_tokens(Tokenizer.from_file(str(words))),
    )


def _tokens(tokenizer: Any) -> Callable[[Sequence[str]], NDArray[np.int64]]:
    def codes(texts: Sequence[str]) -> NDArray[np.int64]:
        found = np.full((len(texts), MOST_TOKENS), _PAD, np.int64)
        for row, one in enumerate(tokenizer.encode_batch(list(texts), add_special_tokens=False)):
            own = one.ids[:MOST_TOKENS]
            found[row, : len(own)] = own
        return found

    return codes
